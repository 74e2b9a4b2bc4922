//! The pool's invariants, checked from scratch. Owns: what must hold between any two calls. Must not know:
//! production paths: tests call it after every step.

use crate::Pool;
use crate::ensure::ensure;
use crate::ids::{NONE, NvmePlace, PageKey, UserId};
use crate::index::entry::{Cell, ENDS_MAX};
use crate::index::flags::ON_NVME;
use crate::limits::HELD_PERCENT_MAX;
use crate::memory::leases::NO_PAGE;
use crate::memory::leases::counts::{Holding, UserHolding};
use crate::memory::slots::SlotState;
use crate::store::records::{MappedChange, SlotChange};
use std::collections::HashMap;

impl Pool {
    /// Checks every invariant; an error names the first that does not hold.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), String> {
        self.store.check(self.check_leases()?)?;
        self.check_sessions()?;
        ensure!(self.curves.is_complete(self.namespaces.places_len()), "a namespace has no curve");
        self.curves.check()
    }

    /// Extents that pages have, those that readers cannot see included.
    #[doc(hidden)]
    pub fn extents(&self) -> u64 {
        let live = (0..self.store.pages().end()).filter(|index| self.store.pages()[*index].is_used());
        live.map(|index| {
            self.store.pages().cells(index).iter().filter(|cell| cell.has(ON_NVME)).count() as u64
        })
        .sum()
    }

    /// Where the shards of a page are on NVMe; none for those that are not.
    #[doc(hidden)]
    pub fn places(&self, page: PageKey) -> Vec<Option<NvmePlace>> {
        let Some(index) = self.store.pages().resolve(page) else { return Vec::new() };
        let place = |cell: &Cell| cell.has(ON_NVME).then_some(cell.place());
        self.store.pages().cells(index).iter().map(place).collect()
    }

    /// What a table of the slots has to say now: those that hold something, or that somebody may write.
    #[doc(hidden)]
    pub fn slots_told(&self) -> Vec<SlotChange> {
        self.store.all_changes(&self.namespaces)
    }

    /// What a table has to say of slots that somebody has mapped.
    #[doc(hidden)]
    pub fn mapped_told(&self) -> Vec<MappedChange> {
        self.store.all_mapped()
    }

    /// The leases' sums; gives how many leases each slot has.
    fn check_leases(&self) -> Result<HashMap<u32, u32>, String> {
        let mut leases: HashMap<u32, u32> = HashMap::new();
        let mut clients: HashMap<u64, Holding> = HashMap::new();
        let mut users: HashMap<UserId, UserHolding> = HashMap::new();
        let (mut quarantined, mut held_bytes, mut lasting_bytes) = (0, 0, 0);
        for lease in self.leases.iter() {
            let counts = clients.entry(lease.client.0).or_default();
            counts.leases += 1;
            counts.leased += lease.items.len() as u32;
            let bytes: u64 = lease.items.iter().map(|item| self.store.slots().slot_bytes(item.slot)).sum();
            let lasting = if lease.kind.is_lasting() { bytes } else { 0 };
            counts.leased_bytes += bytes;
            counts.lasting_bytes += lasting;
            lasting_bytes += lasting;
            let user = users.entry(self.leases.counts().user_of(lease.client)).or_default();
            user.leases += 1;
            user.lasting_bytes += lasting;
            counts.held += if lease.kind.is_held() { lease.items.len() as u32 } else { 0 };
            for item in &lease.items {
                *leases.entry(item.slot).or_default() += 1;
                let bytes = self.store.slots().slot_bytes(item.slot);
                quarantined += if lease.kind.is_quarantined() { bytes } else { 0 };
                held_bytes += if lease.kind.is_held() { bytes } else { 0 };
                let reserved = self.store.slots().meta(item.slot).state() == SlotState::Reserved;
                ensure!(
                    !reserved || !lease.kind.is_write() && item.page == NO_PAGE,
                    "slot {} is reserved by none",
                    item.slot
                );
            }
        }
        let counted: HashMap<u64, Holding> =
            self.leases.counts().clients().map(|(client, holding)| (client.0, holding)).collect();
        ensure!(clients == counted, "the clients' shares do not add up");
        ensure!(quarantined == self.leases.counts().quarantined_bytes, "{quarantined} bytes in quarantine");
        ensure!(held_bytes == self.leases.counts().held_bytes, "{held_bytes} bytes held");
        ensure!(
            lasting_bytes == self.leases.counts().lasting_bytes,
            "{lasting_bytes} bytes that time does not free"
        );
        ensure!(
            users == self.leases.counts().users().collect::<HashMap<_, _>>(),
            "the users' shares do not add up"
        );
        let all = self.leases.iter().count();
        ensure!(all == self.leases.counts().leases as usize, "{all} leases");
        self.check_granted()?;
        Ok(leases)
    }

    /// What this server granted is within its limits. What was held of those before comes on top: a process that says nothing holds
    /// that of several.
    fn check_granted(&self) -> Result<(), String> {
        let mut clients: HashMap<u64, usize> = HashMap::new();
        let (mut leases, mut held_bytes, mut lasting_bytes) = (0, 0, 0);
        for lease in self.leases.iter().filter(|lease| !lease.found) {
            let bytes: u64 = lease.items.iter().map(|item| self.store.slots().slot_bytes(item.slot)).sum();
            *clients.entry(lease.client.0).or_default() += lease.items.len();
            leases += 1;
            held_bytes += if lease.kind.is_held() { bytes } else { 0 };
            lasting_bytes += if lease.kind.is_lasting() { bytes } else { 0 };
        }
        let limits = self.store.limits();
        ensure!(
            clients.values().all(|slots| *slots <= limits.client_slots_max as usize),
            "a client was granted too much"
        );
        ensure!(leases <= limits.leases_max as usize, "more leases than leases_max");
        ensure!(
            lasting_bytes <= self.room().all_bytes_ever(),
            "leases that time does not end were granted too much"
        );
        let dram_bytes = self.store.slots().largest_dram_bytes();
        ensure!(held_bytes <= dram_bytes / 100 * HELD_PERCENT_MAX, "too much is mapped to copy beside it");
        Ok(())
    }

    fn check_sessions(&self) -> Result<(), String> {
        let (mut tips, mut lists): (HashMap<u32, u32>, usize) = (HashMap::new(), 0);
        for (at, session) in self.sessions.iter() {
            ensure!(self.sessions.find(session.ns, &session.id) == Some(at), "session {at} is lost");
            lists += usize::from(session.tip.is_some());
            let end = self.sessions.list_end(self.store.pages(), at);
            if end.page != NONE {
                *tips.entry(end.page).or_default() += 1;
            }
            self.store.check_path(end).map_err(|error| format!("session {at} {error}"))?;
        }
        let others = self.store.protections().len()
            + self.store.protections().unowned().count()
            + self.store.going().left_branches as usize;
        self.store.pages().check_tips(lists + others)?;
        for index in (0..self.store.pages().end()).filter(|index| self.store.pages().is_live(*index)) {
            let expected = tips.get(&index).copied().unwrap_or(0);
            ensure!(
                self.store.pages()[index].cell.ends() == expected.min(ENDS_MAX),
                "page {index} is the end of {expected} sessions"
            );
        }
        ensure!(self.sessions.ends_are_whose_they_say(), "a page is the end of a session that has another");
        ensure!(self.sessions.tenants_add_up(), "a session is not where its tenant looks for it");
        ensure!(self.sessions.len() <= self.store.limits().sessions_max, "more sessions than sessions_max");
        Ok(())
    }
}
