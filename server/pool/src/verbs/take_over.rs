//! A process says what it has mapped since before the server's start: these slots are under leases of its own again. Owns: the
//! verb. Must not know: how a process is known again, what it does with the slots.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{ClientId, LeaseId, NamespaceIndex, Now, PageKey};
use crate::limits::LEASE_PAGES_MAX;
use crate::memory::leases::{LeaseItem, LeaseKind, NO_PAGE, NewLease};
use crate::memory::shares::LeftHolding;
use crate::memory::slots::SlotState;
use turnkv_proto::Shards;

/// What a process has mapped of one lease of a server before this one.
#[derive(Clone, Copy, Debug)]
pub struct TakeOverAsk<'a> {
    /// Who asks.
    pub client: ClientId,
    /// As what it was known of the server before.
    pub left: &'a [ClientId],
    /// Of all slots.
    pub ns: NamespaceIndex,
    /// Which shard is in them.
    pub shard: u16,
    /// The slots, by ascending positions: at most as many as a lease has.
    pub slots: &'a [MappedSlot],
}

/// A slot that a process has mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedSlot {
    /// In its lease, as that was and will be.
    pub position: u32,
    /// In which slab.
    pub slab: u32,
    /// In which memory of it.
    pub generation: u32,
    /// Bytes from the start of the slab.
    pub offset: u64,
    /// It was reserved; a page may have been committed there since.
    pub reserved: bool,
}

/// What of it is the process's again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TakenOver {
    /// The lease; none: of nothing.
    pub lease: Option<LeaseId>,
    /// The positions under it now. Others stay as they were: mapped, and nobody's.
    pub positions: Vec<u32>,
    /// Leases that were granted since leave no room for as many slots: all of them are as they were, to be said again.
    pub no_room: bool,
}

impl Pool {
    /// Puts slots that a client had mapped under the server before under a held lease of its own. Of each it takes what is still
    /// kept for that client, in the same memory. A page may be mapped at several places, so it may be said again: within
    /// the shares of what leases may hold. All of it or, where these have no room now, nothing.
    pub fn take_over(&mut self, ask: TakeOverAsk<'_>, now: Now) -> Result<TakenOver, PoolError> {
        let shards = Shards::one(ask.shard);
        if ask.shard >= self.namespaces.desc(ask.ns)?.shards {
            return Err(PoolError::Invalid("the namespace has fewer shards"));
        }
        let ascends = ask.slots.is_sorted_by(|one, next| one.position < next.position);
        // A lease counts one further than its last position.
        let is_last = ask.slots.last().is_some_and(|slot| slot.position == u32::MAX);
        if ask.slots.len() > LEASE_PAGES_MAX as usize || !ascends || is_last {
            return Err(PoolError::Invalid(
                "mapped slots are said by ascending positions, a lease's pages at a time",
            ));
        }
        let now = self.store.tick(now);
        let slot_bytes = self.store.slots().class_at(ask.ns.0).slot_bytes;
        let room = self.room().take_over_room(ask.client, slot_bytes, &self.left_holding(ask.client));
        if ask.slots.len() > room {
            return Ok(TakenOver { no_room: true, ..TakenOver::default() });
        }
        let mut items = Vec::new();
        for slot in ask.slots {
            self.store.call.step();
            items.extend(self.take_left(&ask, slot));
        }
        if items.is_empty() {
            return Ok(TakenOver::default());
        }
        self.store.map_slots(&items, ask.client, true);
        let positions = items.iter().map(|item| item.position).collect();
        let (kind, client, ns, deadline) = (LeaseKind::Held, ask.client, ask.ns, self.deadline(now));
        let lease = NewLease { kind, client, ns, shards, deadline, found: true, items };
        let lease = Some(self.insert_lease(lease));
        Ok(TakenOver { lease, positions, no_room: false })
    }

    /// A slot from under the lease that the last server's end left it under. That lease stays, until its process has said all that it
    /// has: it may have the slot mapped at another place too. Only a reserved slot, which has one place, goes over.
    fn take_left(&mut self, ask: &TakeOverAsk<'_>, mapped: &MappedSlot) -> Option<LeaseItem> {
        let slots = self.store.slots();
        let slab = slots.slabs().get(mapped.slab as usize)?;
        let slot_bytes = slots.class_at(ask.ns.0).slot_bytes;
        let at = mapped.offset / slot_bytes;
        let is_known = slab.generation == mapped.generation && slab.class_number() == u32::from(ask.ns.0);
        if !is_known || at >= slab.metas.len() as u64 || !mapped.offset.is_multiple_of(slot_bytes) {
            return None;
        }
        let slot = slots.number(mapped.slab, at as u32);
        let (left, item) = ask.left.iter().find_map(|left| {
            let lease = self.leases.get(self.left.find(*left, slot)?, *left)?;
            let at = lease.items.binary_search_by_key(&slot, |item| item.slot).ok()?;
            Some((*left, lease.items[at]))
        })?;
        if self.store.slots().meta(slot).state() == SlotState::Used || !mapped.reserved {
            if !self.store.slots().may_lease(slot) {
                return None;
            }
            self.store.lease(slot);
        } else {
            let lease = self.left.find(left, slot)?;
            if self.leases.get(lease, left)?.items.len() == 1 {
                self.leases.remove(lease)?;
            } else {
                self.leases.take_items(lease, &[item.position]);
            }
            self.store.map_slots(&[item], left, false);
            self.store.reserve_again(slot);
        }
        Some(LeaseItem { position: mapped.position, slot, page: self.page_in(slot) })
    }

    /// What clients of this one's user, and all, have not said yet of what they had mapped.
    fn left_holding(&self, client: ClientId) -> LeftHolding {
        let (counts, mut left) = (self.leases.counts(), LeftHolding::default());
        let user = counts.user_of(client);
        for of in self.left.clients() {
            let holding = counts.of(of);
            left.all_bytes += holding.lasting_bytes;
            if counts.user_of(of) == user {
                left.user.leases += holding.leases;
                left.user.lasting_bytes += holding.lasting_bytes;
            }
        }
        left
    }

    /// The page whose bytes are in a slot.
    fn page_in(&self, slot: u32) -> PageKey {
        let meta = self.store.slots().meta(slot);
        if meta.state() == SlotState::Used { self.store.pages().key(meta.owner) } else { NO_PAGE }
    }
}
