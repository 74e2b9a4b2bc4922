//! Leases: time-bound holds on slots. Owns: who holds which slots until when. Must not know: what the slots are for.
//!
//! ```text
//! write: begun --deadline--> quarantined --abort, commit attempt, process gone--> ended
//!          \---commit, abort---> ended
//! read:  begun --end, or deadline + grace--> ended
//!          \---renew---> held --deadline--> unheard --renew--> held
//!                          \------release, process gone-------> ended
//! ```
//! A held lease is on slots that a process has mapped: it may look at them, or write them, at any moment, so time alone
//! never frees them. Its deadline only tells who was not heard of. It begins as a read lease, which time does end, so that
//! an answer that never reached its client holds nothing for long: the client renews it before it maps anything. Held
//! leases may take only a part of what leases may take: else nothing could be copied beside them.

use crate::Pool;
use crate::entry::NONE;
use crate::error::PoolError;
use crate::ids::{ClientId, LeaseId, NamespaceIndex, Now, PageKey};
use crate::limits::HELD_PERCENT_MAX;
use hashbrown::HashMap;

/// What a lease allows, and how far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseKind {
    Read,
    Write,
    /// A write lease past its deadline: its slots may still be written by whoever held it.
    Quarantined,
    /// Slots that a process has mapped: pages to read in place, and reserved slots to write.
    Held,
    /// A held lease that was not renewed in time. It is still mapped; a renewal makes it `Held` again.
    Unheard,
}

impl LeaseKind {
    /// Past its deadline, and its slots are not free.
    pub(crate) fn is_quarantined(self) -> bool {
        matches!(self, LeaseKind::Quarantined | LeaseKind::Unheard)
    }

    /// A process has its slots mapped.
    pub(crate) fn is_held(self) -> bool {
        matches!(self, LeaseKind::Held | LeaseKind::Unheard)
    }

    /// On slots to fill for pages that are in the index already.
    pub(crate) fn is_write(self) -> bool {
        matches!(self, LeaseKind::Write | LeaseKind::Quarantined)
    }
}

/// One slot of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseItem {
    /// Position in the list that the lease was asked for.
    pub(crate) position: u32,
    pub(crate) slot: u32,
    /// The page in the slot; of a reserved slot [`NO_PAGE`].
    pub(crate) page: PageKey,
}

/// What a reserved slot holds before it is committed.
pub(crate) const NO_PAGE: PageKey = PageKey { index: NONE, generation: 0 };

/// One lease.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) client: ClientId,
    pub(crate) kind: LeaseKind,
    pub(crate) shard: u16,
    pub(crate) deadline: Now,
    /// In order of their positions.
    pub(crate) items: Vec<LeaseItem>,
    /// The position of the next item, if one is added.
    pub(crate) positions: u32,
    prev: u32,
    next: u32,
}

/// Slots of one client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ClientSlots {
    /// Under leases of any kind.
    pub(crate) leased: u32,
    /// Of these, under held leases.
    pub(crate) held: u32,
}

/// All leases. Leases of one kind live equally long, so each kind's list is in order of deadline.
#[derive(Default)]
pub(crate) struct Leases {
    table: Vec<(u32, Option<Lease>)>,
    free: Vec<u32>,
    lists: [Ends; 5],
    clients: HashMap<ClientId, ClientSlots>,
    count: u32,
    /// Bytes of slots under held leases.
    pub(crate) held_bytes: u64,
    pub(crate) quarantined_bytes: u64,
    pub(crate) expired: u64,
}

#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

impl Default for Ends {
    fn default() -> Ends {
        Ends { first: NONE, last: NONE }
    }
}

impl Leases {
    pub(crate) fn len(&self) -> u32 {
        self.count
    }

    /// Leases in quarantine.
    pub(crate) fn quarantined(&self) -> usize {
        self.iter().filter(|lease| lease.kind.is_quarantined()).count()
    }

    /// Slots of this client.
    pub(crate) fn slots_of(&self, client: ClientId) -> ClientSlots {
        self.clients.get(&client).copied().unwrap_or_default()
    }

    /// Adds a lease with at least one slot.
    pub(crate) fn insert(
        &mut self,
        kind: LeaseKind,
        client: ClientId,
        shard: u16,
        deadline: Now,
        items: Vec<LeaseItem>,
    ) -> LeaseId {
        debug_assert!(!items.is_empty(), "an empty lease holds nothing");
        self.clients.entry(client).or_default().leased += items.len() as u32;
        let at = self.free.pop().unwrap_or_else(|| {
            self.table.push((0, None));
            self.table.len() as u32 - 1
        });
        let entry = &mut self.table[at as usize];
        entry.0 = entry.0.wrapping_add(1);
        let positions = items.last().map_or(0, |item| item.position + 1);
        let (prev, next) = (NONE, NONE);
        entry.1 = Some(Lease { client, kind, shard, deadline, items, positions, prev, next });
        self.count += 1;
        let id = LeaseId(u64::from(entry.0) << 32 | u64::from(at + 1));
        self.link(at);
        id
    }

    /// The lease, if this client holds it.
    pub(crate) fn get(&self, id: LeaseId, client: ClientId) -> Option<&Lease> {
        let at = self.find(id)?;
        self.table[at as usize].1.as_ref().filter(|lease| lease.client == client)
    }

    /// Takes a lease out; the caller ends its holds.
    pub(crate) fn remove(&mut self, id: LeaseId) -> Option<Lease> {
        let at = self.find(id)?;
        self.unlink(at);
        let lease = self.table[at as usize].1.take()?;
        self.free.push(at);
        self.count -= 1;
        self.count_out(lease.client, lease.kind, lease.items.len());
        Some(lease)
    }

    /// The lease of a kind whose deadline comes first, if it has passed.
    pub(crate) fn overdue(&self, kind: LeaseKind, now: Now) -> Option<LeaseId> {
        let first = self.lists[kind as usize].first;
        let lease = self.table.get(first as usize)?.1.as_ref()?;
        (lease.deadline < now).then(|| self.id(first))
    }

    /// Moves a write lease to quarantine. Returns what it holds.
    pub(crate) fn quarantine(&mut self, id: LeaseId) -> Option<&Lease> {
        let at = self.find(id)?;
        self.unlink(at);
        let lease = self.table[at as usize].1.as_mut()?;
        lease.kind = LeaseKind::Quarantined;
        self.link(at);
        self.table[at as usize].1.as_ref()
    }

    /// The lease is a held one, and need not be heard of before `deadline`.
    pub(crate) fn renew(&mut self, id: LeaseId, deadline: Now) {
        let Some(at) = self.find(id) else { return };
        self.unlink(at);
        if let Some(lease) = self.table[at as usize].1.as_mut() {
            if !lease.kind.is_held() {
                self.clients.entry(lease.client).or_default().held += lease.items.len() as u32;
            }
            (lease.kind, lease.deadline) = (LeaseKind::Held, deadline);
        }
        self.link(at);
    }

    /// A held lease was not renewed in time. Returns what it holds.
    pub(crate) fn mark_unheard(&mut self, id: LeaseId) -> Option<&Lease> {
        let at = self.find(id)?;
        self.unlink(at);
        let lease = self.table[at as usize].1.as_mut()?;
        lease.kind = LeaseKind::Unheard;
        self.link(at);
        self.table[at as usize].1.as_ref()
    }

    /// Adds slots to a held lease; their positions follow those it ever had.
    pub(crate) fn extend(&mut self, id: LeaseId, slots: impl ExactSizeIterator<Item = u32>) {
        let Some(lease) = self.find(id).and_then(|at| self.table[at as usize].1.as_mut()) else { return };
        debug_assert!(lease.kind.is_held(), "only held leases grow");
        let counts = self.clients.entry(lease.client).or_default();
        counts.leased += slots.len() as u32;
        counts.held += slots.len() as u32;
        for slot in slots {
            lease.items.push(LeaseItem { position: lease.positions, slot, page: NO_PAGE });
            lease.positions += 1;
        }
    }

    /// What a lease holds, to change.
    pub(crate) fn items_mut(&mut self, id: LeaseId) -> Option<&mut [LeaseItem]> {
        let at = self.find(id)?;
        self.table[at as usize].1.as_mut().map(|lease| lease.items.as_mut_slice())
    }

    /// Takes some of a lease's items out, never all of them; the caller ends their holds. `positions` ascend.
    pub(crate) fn take_items(&mut self, id: LeaseId, positions: &[u32]) -> Vec<LeaseItem> {
        let Some(lease) = self.find(id).and_then(|at| self.table[at as usize].1.as_mut()) else {
            return Vec::new();
        };
        let taken = |item: &mut LeaseItem| positions.binary_search(&item.position).is_ok();
        let taken: Vec<LeaseItem> = lease.items.extract_if(.., taken).collect();
        debug_assert!(!lease.items.is_empty(), "a lease without items is removed");
        let (client, kind) = (lease.client, lease.kind);
        self.count_out(client, kind, taken.len());
        taken
    }

    fn count_out(&mut self, client: ClientId, kind: LeaseKind, slots: usize) {
        let Some(counts) = self.clients.get_mut(&client) else { return };
        counts.leased -= slots as u32;
        counts.held -= if kind.is_held() { slots as u32 } else { 0 };
        if counts.leased == 0 {
            self.clients.remove(&client);
        }
    }

    /// All leases of a client, in the order of the table.
    pub(crate) fn of_client(&self, client: ClientId) -> Vec<LeaseId> {
        let held =
            |(_, lease): &(u32, Option<Lease>)| lease.as_ref().is_some_and(|lease| lease.client == client);
        let leases = self.table.iter().enumerate().filter(|(_, entry)| held(entry));
        leases.map(|(at, _)| self.id(at as u32)).collect()
    }

    /// Every lease.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.table.iter().filter_map(|(_, lease)| lease.as_ref())
    }

    /// Slots by client, as accounted.
    pub(crate) fn clients(&self) -> &HashMap<ClientId, ClientSlots> {
        &self.clients
    }

    fn id(&self, at: u32) -> LeaseId {
        LeaseId(u64::from(self.table[at as usize].0) << 32 | u64::from(at + 1))
    }

    fn find(&self, id: LeaseId) -> Option<u32> {
        let at = (id.0 as u32).checked_sub(1)?;
        let (uses, lease) = self.table.get(at as usize)?;
        (*uses == (id.0 >> 32) as u32 && lease.is_some()).then_some(at)
    }

    fn link(&mut self, at: u32) {
        let Some(lease) = self.table[at as usize].1.as_mut() else { return };
        let ends = &mut self.lists[lease.kind as usize];
        (lease.prev, lease.next) = (ends.last, NONE);
        let prev = std::mem::replace(&mut ends.last, at);
        if prev == NONE {
            ends.first = at;
        } else if let Some(lease) = self.table[prev as usize].1.as_mut() {
            lease.next = at;
        }
    }

    fn unlink(&mut self, at: u32) {
        let Some(lease) = self.table[at as usize].1.as_ref() else { return };
        let (kind, prev, next) = (lease.kind as usize, lease.prev, lease.next);
        match self.table.get_mut(prev as usize).and_then(|entry| entry.1.as_mut()) {
            Some(lease) => lease.next = next,
            None => self.lists[kind].first = next,
        }
        match self.table.get_mut(next as usize).and_then(|entry| entry.1.as_mut()) {
            Some(lease) => lease.prev = prev,
            None => self.lists[kind].last = prev,
        }
    }
}

impl Pool {
    /// How many more slots a lease of this client may hold, or why there can be no lease.
    pub(crate) fn lease_room(&self, client: ClientId, ns: NamespaceIndex) -> Result<usize, PoolError> {
        if self.leases.len() >= self.config.limits.leases_max {
            return Err(PoolError::Limit("leases_max"));
        }
        Ok(self.slot_room(client, ns))
    }

    /// How many more slots this client may hold, in a lease of this namespace.
    pub(crate) fn slot_room(&self, client: ClientId, ns: NamespaceIndex) -> usize {
        let room = self.client_share(ns).saturating_sub(u64::from(self.leases.slots_of(client).leased));
        room.min(u64::from(self.config.limits.lease_pages_max)) as usize
    }

    /// How many more slots this client may map, in a lease of this namespace. Mapped slots stay for as long as their holder
    /// likes, so some of its share, and of DRAM, is kept for copies.
    pub(crate) fn held_room(&self, client: ClientId, ns: NamespaceIndex) -> usize {
        let share = self.client_share(ns);
        let own = share - (share * (100 - HELD_PERCENT_MAX)).div_ceil(100);
        let own = own.saturating_sub(u64::from(self.leases.slots_of(client).held));
        let dram_bytes = self.config.slab_bytes * u64::from(self.config.slab_count);
        let all_bytes = (dram_bytes / 100 * HELD_PERCENT_MAX).saturating_sub(self.leases.held_bytes);
        own.min(all_bytes / self.slots.classes[usize::from(ns.0)].slot_bytes) as usize
    }

    /// How many slots leases of one client may be on.
    fn client_share(&self, ns: NamespaceIndex) -> u64 {
        let limits = &self.config.limits;
        let class = &self.slots.classes[usize::from(ns.0)];
        let slots = u64::from(class.per_slab) * self.slots.slabs.len() as u64;
        let percent = (slots * u64::from(limits.client_slots_percent) / 100).max(1);
        u64::from(limits.client_slots_max).min(percent)
    }

    /// Ends a lease of any kind: its holds end, and pages it was filling are given up.
    pub(crate) fn end_lease(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.remove(id) else { return };
        if lease.kind == LeaseKind::Write {
            self.give_up_grants(&lease.items, lease.shard);
        }
        for item in &lease.items {
            self.end_hold(item, lease.kind);
        }
    }

    /// A lease's hold on one slot ends; a reserved slot that was not committed is free then.
    pub(crate) fn end_hold(&mut self, item: &LeaseItem, kind: LeaseKind) {
        let bytes = self.slots.slot_bytes(item.slot);
        self.leases.quarantined_bytes -= if kind.is_quarantined() { bytes } else { 0 };
        self.leases.held_bytes -= if kind.is_held() { bytes } else { 0 };
        self.slots.give_up_reserved(item.slot);
        self.unlease(item.slot);
    }

    /// A write lease is past its deadline: its pages are given up, its slots wait for whoever may still write them.
    pub(crate) fn quarantine(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.quarantine(id) else { return };
        let (shard, items) = (lease.shard, lease.items.clone());
        self.give_up_grants(&items, shard);
        let bytes: u64 = items.iter().map(|item| self.slots.slot_bytes(item.slot)).sum();
        self.leases.quarantined_bytes += bytes;
        self.leases.expired += 1;
    }

    /// The pages of these grants lose their slots; later pages first, so that what hung on them goes with them.
    pub(crate) fn give_up_grants(&mut self, items: &[LeaseItem], shard: u16) {
        for item in items.iter().rev() {
            if let Some(index) = self.granted(item, shard) {
                self.let_go(index, shard);
                self.refresh(index, crate::policy::Position::Hot);
                self.prune(index);
            }
        }
    }

    /// The entry of a grant, if the page is still there and still waits for this slot to be filled.
    pub(crate) fn granted(&self, item: &LeaseItem, shard: u16) -> Option<u32> {
        let index = self.pages.resolve(item.page)?;
        let cell = self.pages.cell(index, shard);
        (cell.slot == item.slot && cell.granted()).then_some(index)
    }
}
