//! How leases begin and end: what becomes of the slots they are on. Owns: these steps, for every verb that
//! leases. Must not know: what a lease is for.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{ClientId, LeaseId, NamespaceIndex};
use crate::memory::leases::{LeaseKind, NewLease};
use crate::memory::shares::LeaseRoom;

impl Pool {
    /// Ends a lease of any kind: its holds end, and pages it was filling are given up.
    pub(super) fn end_lease(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.remove(id) else { return };
        if lease.kind == LeaseKind::Write {
            self.store.give_up_grants(&lease.items, lease.shards);
        }
        if lease.kind.is_held() {
            self.store.map_slots(&lease.items, lease.client, false);
        }
        for item in &lease.items {
            self.store.end_hold(item);
        }
    }

    /// A write lease is past its deadline: its pages are given up, its slots wait for whoever may still write
    /// them.
    pub(super) fn quarantine(&mut self, id: LeaseId) {
        let Some(lease) = self.leases.quarantine(id) else { return };
        let (shards, items) = (lease.shards, lease.items.clone());
        self.store.give_up_grants(&items, shards);
        self.leases.count_expired();
    }

    /// Puts slots under a new lease.
    pub(super) fn insert_lease(&mut self, new: NewLease) -> LeaseId {
        let slot_bytes = self.store.slots().class_at(new.ns.0).slot_bytes;
        if new.kind.is_write() {
            self.store.note_writer(&new.items, new.client);
        }
        self.leases.insert(new, slot_bytes)
    }

    /// What the limits leave of the slots and the leases.
    pub(crate) fn room(&self) -> LeaseRoom<'_> {
        self.leases.room(self.store.limits(), self.store.slots())
    }

    /// How many more slots a lease of this client may hold, or why there can be no lease.
    pub(super) fn lease_room(&mut self, client: ClientId, ns: NamespaceIndex) -> Result<usize, PoolError> {
        self.leases.lease_room(self.store.limits(), self.store.slots(), client, ns)
    }
}
