//! How leases begin and end: what becomes of the slots they are on. Owns: these steps, for every verb that
//! leases. Must not know: what a lease is for.

use crate::Pool;
use crate::ids::LeaseId;
use crate::index::list_id::Position;
use crate::index::residency::Search;
use crate::memory::leases::{LeaseItem, LeaseKind, NewLease};
use turnkv_proto::Shards;

impl Pool {
    /// Ends a lease of any kind: its holds end, and pages it was filling are given up.
    pub(crate) fn end_lease(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.remove(id) else { return };
        if lease.kind == LeaseKind::Write {
            self.give_up_grants(&lease.items, lease.shards);
        }
        for item in &lease.items {
            self.end_hold(item);
        }
    }

    /// A lease's hold on one slot ends; a reserved slot that was not committed is free then.
    pub(crate) fn end_hold(&mut self, item: &LeaseItem) {
        self.call.step();
        self.slots.give_up_reserved(item.slot);
        self.unlease(item.slot);
    }

    /// A write lease is past its deadline: its pages are given up, its slots wait for whoever may still write
    /// them.
    pub(crate) fn quarantine(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.quarantine(id) else { return };
        let (shards, items) = (lease.shards, lease.items.clone());
        self.give_up_grants(&items, shards);
        self.leases.count_expired();
    }

    /// Puts slots under a new lease.
    pub(crate) fn insert_lease(&mut self, new: NewLease) -> LeaseId {
        let slot_bytes = self.slots.class_at(new.ns.0).slot_bytes;
        self.leases.insert(new, slot_bytes)
    }

    /// The pages of these grants lose their slots; later pages first, so that what hung on them goes with
    /// them.
    pub(crate) fn give_up_grants(&mut self, items: &[LeaseItem], shards: Shards) {
        for item in items.iter().rev() {
            self.call.step();
            if let Some(index) = self.pages.granted(item.page, item.shard(shards), item.slot) {
                self.let_go(index, item.shard(shards));
                self.refresh(index, Position::Hot);
                self.prune(index, Search::NONE);
            }
        }
    }
}
