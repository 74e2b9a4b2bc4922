//! The pool's invariants, checked from scratch. Owns: what must hold between any two calls. Must not know:
//! production paths: tests call it after every step.

use crate::Pool;
use crate::ids::{NONE, NvmePlace, PageKey, UserId};
use crate::index::entry::Cell;
use crate::index::flags::{
    COUNTED_DRAM, COUNTED_NVME, CellFlags, DIRTY, DURABLE, FILLED, LEAVING, Line, ON_NVME, PROMOTING,
    PROTECTED, QUEUED, UNFINISHED, URGENT, WRITING,
};
use crate::index::list_id::ListId;
use crate::index::path_end::PathEnd;
use crate::limits::HELD_PERCENT_MAX;
use crate::memory::leases::NO_PAGE;
use crate::memory::leases::counts::{Holding, UserHolding};
use crate::memory::slots::SlotState;
use crate::store::going::Search;
use std::collections::{HashMap, HashSet};

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

#[derive(Default)]
struct Sums {
    live: u32,
    in_table: usize,
    visible: u64,
    dram_pages: u64,
    nvme_pages: u64,
    nvme_bytes: u64,
    dirty_bytes: u64,
    writing: u64,
    unfinished: u64,
    kept_bytes: u64,
    kept: HashMap<u16, u64>,
    owned: HashMap<u32, (u32, u16)>,
    /// Slots that a page, or what is left of it, reads or writes.
    ios: HashMap<u32, u32>,
}

impl Pool {
    /// Checks every invariant; an error names the first that does not hold.
    #[doc(hidden)]
    pub fn check(&self) -> Result<(), String> {
        let mut sums = Sums::default();
        for index in 0..self.store.pages().end() {
            if self.store.pages()[index].is_used() {
                self.check_entry(index, &mut sums)?;
            }
        }
        self.check_sums(&sums)?;
        self.check_slots(&sums)?;
        self.check_lists()?;
        self.check_sessions()?;
        self.store.policy().check(self.store.pages())?;
        self.check_protections()?;
        ensure!(self.curves.is_complete(self.namespaces.places_len()), "a namespace has no curve");
        self.curves.check()?;
        ensure!(self.store.nvme().strangers_add_up(), "the strangers do not add up");
        Ok(())
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
        let place = |cell: &Cell| cell.has(ON_NVME).then_some(cell.place);
        self.store.pages().cells(index).iter().map(place).collect()
    }

    fn check_entry(&self, index: u32, sums: &mut Sums) -> Result<(), String> {
        let entry = &self.store.pages()[index];
        sums.live += 1;
        for (shard, cell) in self.store.pages().cells(index).iter().enumerate() {
            self.check_cell(index, shard as u16, cell, sums)?;
        }
        if entry.is_gone() {
            ensure!(!entry.is_visible(), "page {index} is gone and visible");
            ensure!(entry.parent == NONE && entry.is_leaf(), "page {index} is gone and in the tree");
            let busy = self.store.pages().cells(index).iter().any(|cell| cell.has(PROMOTING | WRITING));
            ensure!(busy, "page {index} is gone, and nothing keeps its entry");
            return Ok(());
        }
        sums.in_table += 1;
        sums.visible += u64::from(entry.is_visible());
        let waits = !entry.is_visible() && self.store.pages().cells(index).iter().any(Cell::committed);
        ensure!(entry.has(UNFINISHED) == waits, "page {index} waits for shards: {waits}");
        sums.unfinished += u64::from(waits);
        sums.dram_pages += u64::from(entry.has(COUNTED_DRAM));
        sums.nvme_pages += u64::from(entry.has(COUNTED_NVME));
        ensure!(
            self.store.pages().find(entry.ns, &entry.hash) == Some(index),
            "page {index} is not in the table"
        );
        let cells = self.store.pages().cells(index);
        let all = |bits: CellFlags| entry.is_visible() && cells.iter().all(|cell| cell.has(bits));
        ensure!(entry.has(COUNTED_DRAM) == all(FILLED), "page {index} is miscounted in DRAM");
        ensure!(entry.has(COUNTED_NVME) == all(ON_NVME), "page {index} is miscounted on NVMe");
        let parent = (entry.parent != NONE).then(|| &self.store.pages()[entry.parent]);
        if entry.is_visible() {
            ensure!(cells.iter().all(Cell::committed), "page {index} is visible and incomplete");
            ensure!(
                parent.is_none_or(|parent| parent.is_visible()),
                "page {index} is visible, its parent is not"
            );
        } else {
            let reachable = parent.is_none_or(|parent| parent.is_visible());
            ensure!(!reachable || !cells.iter().all(Cell::committed), "page {index} should be visible");
            let used = !entry.is_leaf() || cells.iter().any(|cell| cell.slot != NONE || cell.committed());
            ensure!(used, "page {index} is hollow");
        }
        if entry.has(DURABLE) {
            ensure!(all(ON_NVME), "page {index} is durable and not on NVMe");
            ensure!(
                parent.is_none_or(|parent| parent.has(DURABLE)),
                "page {index} is durable, its parent is not"
            );
        }
        if entry.has(LEAVING) {
            let alone = cells.iter().all(|cell| cell.slot == NONE);
            ensure!(
                all(ON_NVME) && alone && entry.list().is_none(),
                "page {index} leaves NVMe and is elsewhere"
            );
        }
        self.check_links(index)
    }

    fn check_cell(&self, index: u32, shard: u16, cell: &Cell, sums: &mut Sums) -> Result<(), String> {
        let entry = &self.store.pages()[index];
        let bytes = self.store.slots().shard_bytes_of(self.store.pages()[index].ns);
        let slot = cell.slot;
        sums.nvme_bytes += if cell.has(ON_NVME) { bytes } else { 0 };
        if cell.has(ON_NVME) && !entry.has(LEAVING) {
            sums.kept_bytes += self
                .store
                .nvme()
                .extent_bytes(self.store.slots().shard_bytes_of(self.store.pages()[index].ns));
            *sums.kept.entry(cell.place.segment).or_default() += self
                .store
                .nvme()
                .extent_bytes(self.store.slots().shard_bytes_of(self.store.pages()[index].ns));
        }
        sums.dirty_bytes += if cell.has(DIRTY) { bytes } else { 0 };
        sums.writing += u64::from(cell.has(WRITING));
        ensure!(
            !(cell.has(PROMOTING) && cell.has(FILLED | WRITING)),
            "page {index} is read into and used at once"
        );
        ensure!(
            !cell.has(FILLED | PROMOTING | WRITING) || slot != NONE,
            "page {index} has bytes and no slot"
        );
        ensure!(!cell.has(DIRTY) || cell.has(FILLED), "page {index} is dirty and has no bytes");
        if self.store.nvme().is_off(self.store.pages(), index) {
            ensure!(cell.has(FILLED), "page {index} is neither on NVMe nor in DRAM");
        } else if entry.parent != NONE && self.store.nvme().is_off(self.store.pages(), entry.parent) {
            ensure!(!cell.has(ON_NVME | DIRTY), "page {index} is on NVMe, and what it hangs on is not");
        }
        if cell.has(DIRTY) && !cell.has(WRITING) {
            ensure!(entry.has(QUEUED | URGENT), "page {index} is dirty and not in the write queue");
        }
        ensure!(self.store.nvme().is_alive() || !cell.has(DIRTY | ON_NVME), "page {index} believes in NVMe");
        if slot == NONE {
            return Ok(());
        }
        if cell.has(PROMOTING | WRITING) {
            *sums.ios.entry(slot).or_default() += 1;
        }
        if entry.is_gone() {
            ensure!(
                self.store.slots().meta(slot).state == SlotState::Doomed,
                "slot {slot} of a gone page is not doomed"
            );
            return Ok(());
        }
        ensure!(sums.owned.insert(slot, (index, shard)).is_none(), "slot {slot} has two pages");
        let meta = self.store.slots().meta(slot);
        ensure!(meta.state == SlotState::Used, "slot {slot} has a page and is {:?}", meta.state);
        ensure!((meta.owner, meta.shard) == (index, shard), "slot {slot} believes in another page");
        ensure!(!cell.granted() || meta.leases == 1, "slot {slot} is granted under {} leases", meta.leases);
        Ok(())
    }

    fn check_links(&self, index: u32) -> Result<(), String> {
        let mut child = self.store.pages()[index].first_child;
        let mut prev = NONE;
        let mut sunk = false;
        while child != NONE {
            let entry = &self.store.pages()[child];
            ensure!(entry.is_used() && !entry.is_gone(), "page {index} has a child that is gone");
            let linked = entry.parent == index && (prev == NONE || entry.prev == prev);
            let deep = (self.store.pages().depth(index) + 1, self.store.pages().jump_below(index));
            ensure!((entry.depth, entry.jump) == deep, "page {child} does not know how deep it is");
            ensure!(linked, "page {child} is linked wrongly");
            if entry.is_visible() && self.store.nvme().is_alive() {
                let bound = self.store.pages().is_bound_for_nvme(child);
                ensure!(!bound || !sunk, "page {child} is behind those that NVMe lost");
                sunk |= !bound;
            }
            (prev, child) = (child, entry.next);
        }
        let first = self.store.pages()[index].first_child;
        ensure!(
            first == NONE || self.store.pages()[first].prev == prev,
            "page {index} does not know its last child"
        );
        Ok(())
    }

    fn check_sums(&self, sums: &Sums) -> Result<(), String> {
        let tally = self.store.tally();
        ensure!(
            sums.live == self.store.pages().len(),
            "{} entries, {} counted",
            sums.live,
            self.store.pages().len()
        );
        ensure!(
            sums.in_table == self.store.pages().table_len(),
            "the table has {}",
            self.store.pages().table_len()
        );
        ensure!(sums.visible == tally.visible, "{} pages, {} counted", sums.visible, tally.visible);
        ensure!(sums.dram_pages == tally.dram_pages, "{} pages in DRAM", sums.dram_pages);
        ensure!(sums.nvme_pages == tally.nvme_pages, "{} pages on NVMe", sums.nvme_pages);
        ensure!(sums.nvme_bytes == tally.nvme_bytes, "{} bytes on NVMe", sums.nvme_bytes);
        ensure!(
            sums.dirty_bytes == tally.dirty_bytes,
            "{} dirty, {} counted",
            sums.dirty_bytes,
            tally.dirty_bytes
        );
        let (kept_bytes, by_segment) = self.store.nvme().kept();
        ensure!(sums.kept_bytes == kept_bytes, "{} bytes are to stay on NVMe", sums.kept_bytes);
        for (segment, bytes) in by_segment.iter().enumerate() {
            let counted = sums.kept.get(&(segment as u16)).copied().unwrap_or(0);
            ensure!(counted == *bytes, "segment {segment} keeps {counted} bytes, {bytes} counted");
        }
        ensure!(
            sums.unfinished == self.store.going().unfinished_pages,
            "{} pages wait for shards, {} counted",
            sums.unfinished,
            self.store.going().unfinished_pages
        );
        ensure!(sums.writing == tally.writing, "{} being written, {} counted", sums.writing, tally.writing);
        ensure!(self.store.pages().len() <= self.store.limits().pages_max, "more pages than pages_max");
        Ok(())
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
                let reserved = self.store.slots().meta(item.slot).state == SlotState::Reserved;
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
        ensure!(
            clients.values().all(|slots| slots.leased <= self.store.limits().client_slots_max),
            "a client holds too much"
        );
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
        ensure!(all <= self.store.limits().leases_max as usize, "more leases than leases_max");
        ensure!(lasting_bytes <= self.room().all_bytes_max(), "leases that time does not end hold too much");
        let dram_bytes = self.store.config().slab_bytes * u64::from(self.store.config().slab_count);
        ensure!(held_bytes <= dram_bytes / 100 * HELD_PERCENT_MAX, "too much is held to copy beside it");
        Ok(leases)
    }

    fn check_slots(&self, sums: &Sums) -> Result<(), String> {
        let mut leases = self.check_leases()?;
        let (mut used_bytes, mut leased_bytes, mut pinned_bytes) = (0, 0, 0);
        for (slab, this) in self.store.slots().slabs().iter().enumerate() {
            let mut used = 0;
            for (at, meta) in this.metas.iter().enumerate() {
                let slot = self.store.slots().number(slab as u32, at as u32);
                let (held, ios) =
                    (leases.remove(&slot).unwrap_or(0), sums.ios.get(&slot).copied().unwrap_or(0));
                let owned = sums.owned.contains_key(&slot);
                ensure!(owned == (meta.state == SlotState::Used), "slot {slot} is {:?}", meta.state);
                if meta.state == SlotState::Free {
                    ensure!(held == 0 && ios == 0, "slot {slot} is free and held");
                    continue;
                }
                ensure!(
                    meta.state != SlotState::Reserved || (held == 1 && ios == 0),
                    "slot {slot} is reserved and has {held} leases"
                );
                used += 1;
                let bytes = self.store.slots().slot_bytes(slot);
                used_bytes += bytes;
                leased_bytes += if held > 0 { bytes } else { 0 };
                pinned_bytes += if held > 0 || ios > 0 { bytes } else { 0 };
                ensure!(meta.leases == held, "slot {slot} has {held} leases, {} counted", meta.leases);
                ensure!(u32::from(meta.ios) == ios, "slot {slot} has {ios} operations, {} counted", meta.ios);
                ensure!(meta.state == SlotState::Used || held > 0 || ios > 0, "slot {slot} is lost");
            }
            ensure!(used == this.used, "slab {slab} has {used} slots in use, {} counted", this.used);
            let empty = self.store.slots().empty().contains(&(slab as u32));
            ensure!(empty == (used == 0 && !this.retired), "slab {slab} is in the wrong place");
        }
        ensure!(leases.is_empty(), "leases hold slots that do not exist");
        let gauges = self.store.slots().gauges();
        ensure!(used_bytes == gauges.used_bytes, "{used_bytes} bytes in use, {} counted", gauges.used_bytes);
        ensure!(leased_bytes == gauges.leased_bytes, "{leased_bytes} bytes leased");
        ensure!(pinned_bytes == gauges.pinned_bytes, "{pinned_bytes} bytes pinned");
        Ok(())
    }

    fn check_lists(&self) -> Result<(), String> {
        let mut listed = HashSet::new();
        let lists = (0..self.namespaces.places_len() as u16).map(ListId::Dram).chain([ListId::Nvme]);
        for list in lists {
            for index in self.store.policy().order(self.store.pages(), list) {
                ensure!(listed.insert(index), "page {index} is in two lists");
                ensure!(self.store.pages()[index].list() == Some(list), "page {index} is in the wrong list");
                let in_slots = self.store.pages().cells(index).iter().any(|cell| cell.slot != NONE);
                ensure!(list == ListId::Nvme || in_slots, "page {index} is in DRAM's list and not in DRAM");
            }
        }
        for index in (0..self.store.pages().end()).filter(|index| self.store.pages()[*index].is_used()) {
            let parked = self.store.pages()[index].is_parked();
            let deferred = self.store.pages()[index].line() == Line::Deferred;
            ensure!(
                !parked || deferred || self.store.evictable(index, Search::NONE).is_none(),
                "page {index} is parked and could go"
            );
            ensure!(
                self.store.pages()[index].list().is_some() == listed.contains(&index),
                "page {index} is lost from its list"
            );
        }
        Ok(())
    }

    fn check_protections(&self) -> Result<(), String> {
        let (mut bytes, mut pages) = (0, 0);
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for owner in self.store.protections().owners() {
            let end = self.store.protections().end_of(owner, self.store.pages());
            self.check_path(end).map_err(|error| format!("what {owner:?} protects {error}"))?;
            *counts.entry(end.page).or_default() += 1;
        }
        for tip in self.store.protections().unowned() {
            *counts.entry(self.store.pages().tip_end(tip).page).or_default() += 1;
        }
        for index in (0..self.store.pages().end()).filter(|index| self.store.pages().is_live(*index)) {
            if self.store.pages()[index].has(PROTECTED) && self.store.pages()[index].parent != NONE {
                *counts.entry(self.store.pages()[index].parent).or_default() += 1;
            }
        }
        for index in (0..self.store.pages().end()).filter(|index| self.store.pages().is_live(*index)) {
            let counted = counts.get(&index).copied().unwrap_or(0);
            let held = self.store.protections().holds(index);
            ensure!(held == counted, "page {index} is protected {counted} times, {held} counted");
            ensure!(
                self.store.pages()[index].has(PROTECTED) == (held > 0),
                "page {index} has the wrong mark"
            );
            if held > 0 {
                (bytes, pages) =
                    (bytes + self.store.pages().page_bytes(self.store.slots(), index), pages + 1);
            }
        }
        let held = self.store.protections();
        ensure!(held.recount_pins() == held.pins(), "{} pins counted", held.pins());
        ensure!(
            (bytes, pages) == (held.protected_bytes(), held.pages()),
            "{pages} pages of {bytes} bytes are protected"
        );
        let budget = self.store.protection_budget();
        ensure!(held.fullest_bytes() <= budget, "a tenant protects more than {budget} bytes");
        Ok(())
    }

    fn check_sessions(&self) -> Result<(), String> {
        let (mut tips, mut lists): (HashMap<u32, u16>, usize) = (HashMap::new(), 0);
        for (at, session) in self.sessions.iter() {
            ensure!(self.sessions.find(session.ns, &session.id) == Some(at), "session {at} is lost");
            lists += usize::from(session.tip.is_some());
            let end = self.sessions.list_end(self.store.pages(), at);
            if end.page != NONE {
                *tips.entry(end.page).or_default() += 1;
            }
            self.check_path(end).map_err(|error| format!("session {at} {error}"))?;
        }
        let others = self.store.protections().len()
            + self.store.protections().unowned().count()
            + self.store.going().left_branches as usize;
        self.store.pages().check_tips(lists + others)?;
        for index in (0..self.store.pages().end()).filter(|index| self.store.pages().is_live(*index)) {
            let expected = tips.get(&index).copied().unwrap_or(0);
            ensure!(
                self.store.pages()[index].tips == expected,
                "page {index} is the end of {expected} sessions"
            );
        }
        ensure!(self.sessions.ends_are_whose_they_say(), "a page is the end of a session that has another");
        ensure!(self.sessions.tenants_add_up(), "a session is not where its tenant looks for it");
        ensure!(self.sessions.len() <= self.store.limits().sessions_max, "more sessions than sessions_max");
        Ok(())
    }

    /// A path is of pages that are here, as many as it says.
    fn check_path(&self, end: PathEnd) -> Result<(), String> {
        let pages = self.store.pages().upward(end.page).count();
        ensure!(pages == end.pages as usize, "has {pages} pages of {}", end.pages);
        ensure!(
            self.store.pages().upward(end.page).all(|index| self.store.pages().is_live(index)),
            "has a page that is gone"
        );
        Ok(())
    }
}
