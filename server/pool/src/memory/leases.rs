//! Leases: time-bound holds on slots. Owns: who holds which slots until when. Must not know: what the slots
//! are for.
//!
//! ```text
//! write: begun --deadline--> quarantined --abort, commit attempt, process gone--> ended
//!          \---commit, abort---> ended
//! read:  begun --end, or deadline + grace--> ended
//!          \---renew---> held --deadline--> unheard --renew--> held
//!                          \------release, process gone-------> ended
//! ```
//! A held lease is on slots that a process has mapped: it may look at them, or write them, at any moment, so
//! time alone never frees them. Its deadline only tells who was not heard of. It begins as a read lease,
//! which time does end, so that an answer that never reached its client holds nothing for long: the client
//! renews it before it maps anything. How much leases may hold is for `share` to say.

pub(crate) mod counts;
mod kind;

pub(crate) use kind::LeaseKind;

use crate::error::PoolError;
use crate::ids::{ClientId, LeaseId, NONE, NamespaceIndex, Now, PageKey, UserId};
use counts::Counts;
use turnkv_proto::Shards;

/// One slot of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseItem {
    /// Position in what the lease was asked for: which page of the list, and which of the lease's shards of
    /// it.
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
    /// Of all its slots.
    pub(crate) ns: NamespaceIndex,
    /// What its positions are of.
    pub(crate) shards: Shards,
    pub(crate) deadline: Now,
    /// Its slots were held of the server before: they count for its client, and no limit of this one was asked.
    pub(crate) found: bool,
    /// In order of their positions.
    pub(crate) items: Vec<LeaseItem>,
    /// The position of the next item, if one is added.
    pub(crate) positions: u32,
    slot_bytes: u64,
    prev: u32,
    next: u32,
}

/// A lease to make.
pub(crate) struct NewLease {
    pub(crate) kind: LeaseKind,
    pub(crate) client: ClientId,
    pub(crate) ns: NamespaceIndex,
    pub(crate) shards: Shards,
    pub(crate) deadline: Now,
    /// As in [`Lease`].
    pub(crate) found: bool,
    /// At least one.
    pub(crate) items: Vec<LeaseItem>,
}

impl Lease {
    /// Positions that were never given: of those that it had, none comes again.
    pub(crate) fn positions_left(&self) -> usize {
        (u32::MAX - self.positions) as usize
    }
}

impl LeaseItem {
    /// The shard of its page that is in the slot, under a lease of these shards.
    pub(crate) fn shard(&self, shards: Shards) -> u16 {
        shards.shard(self.position as usize)
    }
}

/// How far a look through the table came.
pub(crate) struct RowsPassed {
    pub(crate) rows: u64,
    /// To its end.
    pub(crate) all: bool,
}

/// All leases. Leases of one kind live equally long, so each kind's list is in order of deadline.
#[derive(Default)]
pub(crate) struct Leases {
    table: Vec<(u32, Option<Lease>)>,
    free: Vec<u32>,
    lists: [LeaseList; 5],
    counts: Counts,
    expired: u64,
    /// Calls that were refused a lease because a share was reached.
    refused: u64,
    /// The client whose leases are being ended, and the row to go on at.
    going: Option<(ClientId, u32)>,
}

#[derive(Clone, Copy)]
struct LeaseList {
    first: u32,
    last: u32,
}

impl Default for LeaseList {
    fn default() -> LeaseList {
        LeaseList { first: NONE, last: NONE }
    }
}

impl Leases {
    /// Adds a lease with at least one slot, of this many bytes each.
    pub(crate) fn insert(&mut self, new: NewLease, slot_bytes: u64) -> LeaseId {
        let NewLease { kind, client, ns, shards, deadline, found, items } = new;
        debug_assert!(!items.is_empty(), "an empty lease holds nothing");
        self.counts.begin(client, kind);
        self.counts.count_in(client, kind, items.len() as u32, slot_bytes);
        let at = self.free.pop().unwrap_or_else(|| {
            self.table.push((0, None));
            self.table.len() as u32 - 1
        });
        let entry = &mut self.table[at as usize];
        entry.0 = entry.0.wrapping_add(1);
        let positions = items.last().map_or(0, |item| item.position + 1);
        let (prev, next) = (NONE, NONE);
        entry.1 = Some(Lease {
            client,
            kind,
            ns,
            shards,
            deadline,
            found,
            items,
            positions,
            slot_bytes,
            prev,
            next,
        });
        let id = LeaseId(u64::from(entry.0) << 32 | u64::from(at + 1));
        self.link(at);
        id
    }

    /// The lease, if this client holds it.
    pub(crate) fn get(&self, id: LeaseId, client: ClientId) -> Option<&Lease> {
        let at = self.find(id)?;
        self.table[at as usize].1.as_ref().filter(|lease| lease.client == client)
    }

    /// The lease, if this client holds it and may have its slots mapped.
    pub(crate) fn held(&self, id: LeaseId, client: ClientId) -> Result<&Lease, PoolError> {
        self.get(id, client).filter(|held| !held.kind.is_write()).ok_or(PoolError::LeaseUnknown)
    }

    /// Whether a write lease of this client is neither over nor in quarantine.
    pub(crate) fn is_being_filled(&self, id: LeaseId, client: ClientId) -> bool {
        self.get(id, client).is_some_and(|held| held.kind == LeaseKind::Write)
    }

    /// A lease's hold on a slot that was reserved is a hold on a page from now on.
    pub(crate) fn note_page(&mut self, id: LeaseId, position: u32, page: PageKey) {
        let Some(at) = self.find(id) else { return };
        let Some(lease) = self.table[at as usize].1.as_mut() else { return };
        if let Ok(at) = lease.items.binary_search_by_key(&position, |item| item.position) {
            lease.items[at].page = page;
        }
    }

    /// Takes a lease out; the caller ends its holds.
    pub(crate) fn remove(&mut self, id: LeaseId) -> Option<Lease> {
        let at = self.find(id)?;
        self.unlink(at);
        let lease = self.table[at as usize].1.take()?;
        self.free.push(at);
        self.counts.count_out(lease.client, lease.kind, lease.items.len() as u32, lease.slot_bytes);
        self.counts.end(lease.client, lease.kind);
        Some(lease)
    }

    /// The lease of a kind whose deadline comes first, if it has passed.
    pub(crate) fn overdue(&self, kind: LeaseKind, now: Now) -> Option<LeaseId> {
        let first = self.lists[kind as usize].first;
        let lease = self.table.get(first as usize)?.1.as_ref()?;
        (lease.deadline < now).then(|| self.id(first))
    }

    /// A write lease is in quarantine from now on. Returns what it holds.
    pub(crate) fn quarantine(&mut self, id: LeaseId) -> Option<&Lease> {
        self.become_kind(id, LeaseKind::Quarantined, None)
    }

    /// A write lease has until `deadline` from now on: its slots are being filled.
    pub(crate) fn keep_filling(&mut self, id: LeaseId, deadline: Now) {
        self.become_kind(id, LeaseKind::Write, Some(deadline));
    }

    /// The lease is a held one, and need not be heard of before `deadline`.
    pub(crate) fn renew(&mut self, id: LeaseId, deadline: Now) {
        self.become_kind(id, LeaseKind::Held, Some(deadline));
    }

    /// A held lease was not renewed in time.
    pub(crate) fn mark_unheard(&mut self, id: LeaseId) {
        self.become_kind(id, LeaseKind::Unheard, None);
        self.expired += 1;
    }

    /// Moves a lease to the list, and the counts, of another kind.
    fn become_kind(&mut self, id: LeaseId, kind: LeaseKind, deadline: Option<Now>) -> Option<&Lease> {
        let at = self.find(id)?;
        self.unlink(at);
        let lease = self.table[at as usize].1.as_mut()?;
        let (client, slots, slot_bytes) = (lease.client, lease.items.len() as u32, lease.slot_bytes);
        let before = std::mem::replace(&mut lease.kind, kind);
        lease.deadline = deadline.unwrap_or(lease.deadline);
        self.counts.count_in(client, kind, slots, slot_bytes);
        self.counts.count_out(client, before, slots, slot_bytes);
        self.counts.turn(before, kind);
        self.link(at);
        self.table[at as usize].1.as_ref()
    }

    /// Adds slots to a lease; their positions follow those it ever had.
    pub(crate) fn extend(&mut self, id: LeaseId, slots: impl ExactSizeIterator<Item = u32>) {
        let Some(lease) = self.find(id).and_then(|at| self.table[at as usize].1.as_mut()) else { return };
        let (client, kind, count, slot_bytes) =
            (lease.client, lease.kind, slots.len() as u32, lease.slot_bytes);
        for slot in slots {
            lease.items.push(LeaseItem { position: lease.positions, slot, page: NO_PAGE });
            lease.positions += 1;
        }
        self.counts.count_in(client, kind, count, slot_bytes);
    }

    /// Adds grants to a write lease; their positions are after those it has.
    pub(crate) fn grow(&mut self, id: LeaseId, items: &[LeaseItem]) {
        let Some(lease) = self.find(id).and_then(|at| self.table[at as usize].1.as_mut()) else { return };
        let (client, kind, slot_bytes) = (lease.client, lease.kind, lease.slot_bytes);
        lease.items.extend_from_slice(items);
        lease.positions = lease.items.last().map_or(0, |item| item.position + 1);
        self.counts.count_in(client, kind, items.len() as u32, slot_bytes);
    }

    /// Takes some of a lease's items out, never all of them; the caller ends their holds. `positions` ascend.
    pub(crate) fn take_items(&mut self, id: LeaseId, positions: &[u32]) -> Vec<LeaseItem> {
        let Some(lease) = self.find(id).and_then(|at| self.table[at as usize].1.as_mut()) else {
            return Vec::new();
        };
        let mut wanted = positions.iter().peekable();
        let taken = |item: &mut LeaseItem| wanted.next_if_eq(&&item.position).is_some();
        let taken: Vec<LeaseItem> = lease.items.extract_if(.., taken).collect();
        debug_assert!(!lease.items.is_empty(), "a lease without items is removed");
        let (client, kind, slot_bytes) = (lease.client, lease.kind, lease.slot_bytes);
        self.counts.count_out(client, kind, taken.len() as u32, slot_bytes);
        taken
    }

    /// The next lease of a client that is gone, from where the last call for it stopped, and the rows passed.
    /// None: it has no more within so many rows; where the table ended, the next call begins anew.
    pub(crate) fn next_of_gone(
        &mut self,
        client: ClientId,
        rows_max: usize,
    ) -> (Option<LeaseId>, RowsPassed) {
        let from = self.going.filter(|(going, _)| *going == client).map_or(0, |(_, row)| row) as usize;
        let rows = self.table.iter().enumerate().skip(from).take(rows_max);
        let mut passed = 0;
        for (at, (_, lease)) in rows {
            passed += 1;
            if lease.as_ref().is_some_and(|lease| lease.client == client) {
                self.going = Some((client, at as u32 + 1));
                return (Some(self.id(at as u32)), RowsPassed { rows: passed, all: false });
            }
        }
        let all = from + passed as usize >= self.table.len();
        self.going = if all { None } else { Some((client, (from + passed as usize) as u32)) };
        (None, RowsPassed { rows: passed, all })
    }

    /// What leases add up to.
    pub(crate) fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Leases that ran past their deadline, and calls that were refused a lease because a share was reached,
    /// ever.
    pub(crate) fn expired_and_refused(&self) -> (u64, u64) {
        (self.expired, self.refused)
    }

    /// A lease ran past its deadline.
    pub(crate) fn count_expired(&mut self) {
        self.expired += 1;
    }

    /// A call was refused a lease.
    pub(crate) fn count_refused(&mut self) {
        self.refused += 1;
    }

    /// Says whose process a client is. One that holds leases keeps its user.
    pub(crate) fn introduce(&mut self, client: ClientId, user: UserId) {
        self.counts.introduce(client, user);
    }

    /// A client is gone: nothing is leased to it any more.
    pub(crate) fn depart(&mut self, client: ClientId) {
        self.counts.depart(client);
    }

    /// A client that holds no lease is nobody's any more.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.counts.forget(client);
    }

    /// Every lease.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lease> {
        self.table.iter().filter_map(|(_, lease)| lease.as_ref())
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

#[cfg(test)]
mod tests;
