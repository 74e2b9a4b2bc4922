//! Shares of the slots: how much the leases of one client, of one user and of all may hold. Owns: the arithmetic of what is left
//! for whom. Must not know: what a lease is for; how a client proves who it is.
//!
//! What a lease holds that time alone does not end (a write lease, its quarantine, mapped slots) may stay for as long as its
//! holder is stopped. So a share is not a wall that the first ones to be stuck use up: each client may hold its percentage
//! of what the others of its user have left of the user's, and each user its percentage of what other users have left of
//! all. Whoever comes next finds some room, however many are stuck.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{ClientId, NamespaceIndex, UserId};
use crate::limits::HELD_PERCENT_MAX;

impl Pool {
    /// Whose process a client is: what all of a user's clients hold counts against the user's share as well. A client of whom
    /// nothing was said is nobody's in particular, like all those.
    pub fn introduce_client(&mut self, client: ClientId, user: UserId) {
        self.leases.introduce(client, user);
    }

    /// Whether a client was introduced, and is not gone since. Whoever leases slots to a process asks first: a call of it may
    /// still be in flight when it is found to be gone, and what is leased to it then nobody would end.
    pub fn is_present(&self, client: ClientId) -> bool {
        self.leases.is_present(client)
    }

    /// A client that holds no lease any more need not be known.
    pub fn forget_client(&mut self, client: ClientId) {
        self.leases.forget(client);
    }

    /// How many more slots a lease of this client may hold, or why there can be no lease.
    pub(crate) fn lease_room(&self, client: ClientId, ns: NamespaceIndex) -> Result<usize, PoolError> {
        if self.leases.len() >= self.config.limits.leases_max {
            return Err(PoolError::Limit("leases_max"));
        }
        Ok(self.slot_room(client, ns))
    }

    /// How many more slots this client may hold, in a lease of this namespace.
    pub(crate) fn slot_room(&self, client: ClientId, ns: NamespaceIndex) -> usize {
        let own = self.leases.slots_of(client);
        let room = self.client_share(ns).saturating_sub(u64::from(own.leased));
        let slot_bytes = self.slots.classes[usize::from(ns.0)].slot_bytes;
        let left = self.client_bytes_max(client, slot_bytes).saturating_sub(own.leased_bytes) / slot_bytes;
        room.min(left).min(u64::from(self.config.limits.lease_pages_max)) as usize
    }

    /// How many more slots this client may map, in a lease of this namespace. Mapped slots stay for as long as their holder
    /// likes, so some of its share, and of DRAM, is kept for copies.
    pub(crate) fn held_room(&self, client: ClientId, ns: NamespaceIndex) -> usize {
        let own = self.leases.slots_of(client);
        let copied = |share: u64| share - (share * (100 - HELD_PERCENT_MAX)).div_ceil(100);
        let slots = copied(self.client_share(ns)).saturating_sub(u64::from(own.held));
        let slot_bytes = self.slots.classes[usize::from(ns.0)].slot_bytes;
        // Mapping what is leased already makes it lasting: only what lasts of its own is counted against it here.
        let share = copied(self.client_bytes_max(client, slot_bytes));
        let left = share.saturating_sub(own.lasting_bytes) / slot_bytes;
        let all_bytes = (self.dram_bytes() / 100 * HELD_PERCENT_MAX).saturating_sub(self.leases.held_bytes);
        slots.min(left).min(all_bytes / slot_bytes) as usize
    }

    /// Bytes that leases which time does not end may hold, all together.
    pub(crate) fn all_bytes_max(&self) -> u64 {
        let limits = &self.config.limits;
        percent_of(self.dram_bytes(), limits.all_slots_percent.max(limits.client_slots_percent))
    }

    /// Bytes that one user's may, when nobody else's hold any.
    pub(crate) fn user_bytes_max(&self) -> u64 {
        let limits = &self.config.limits;
        let percent = limits.user_slots_percent.min(limits.all_slots_percent);
        percent_of(self.dram_bytes(), percent.max(limits.client_slots_percent))
    }

    /// Bytes that leases of this client may hold now: one slot at least, where nobody holds anything.
    fn client_bytes_max(&self, client: ClientId, slot_bytes: u64) -> u64 {
        let own = self.leases.slots_of(client).lasting_bytes;
        let user = self.leases.user_bytes(self.leases.user_of(client));
        let (all_max, user_max) = (self.all_bytes_max(), self.user_bytes_max());
        let client_max = percent_of(self.dram_bytes(), self.config.limits.client_slots_percent);
        let left = all_max.saturating_sub(self.leases.lasting_bytes - user);
        let of_user = part_of(user_max, left, all_max);
        let left = of_user.saturating_sub(user - own);
        let alone = self.leases.lasting_bytes == own;
        part_of(client_max, left, user_max).max(if alone { slot_bytes } else { 0 })
    }

    /// How many slots leases of one client may be on.
    fn client_share(&self, ns: NamespaceIndex) -> u64 {
        let limits = &self.config.limits;
        let class = &self.slots.classes[usize::from(ns.0)];
        let slots = u64::from(class.per_slab) * self.slots.slabs.len() as u64;
        let percent = (slots * u64::from(limits.client_slots_percent) / 100).max(1);
        u64::from(limits.client_slots_max).min(percent)
    }

    pub(crate) fn dram_bytes(&self) -> u64 {
        u64::from(self.config.slab_count) * self.config.slab_bytes
    }
}

fn percent_of(bytes: u64, percent: u8) -> u64 {
    part_of(bytes, u64::from(percent), 100)
}

/// `bytes * part / whole`.
fn part_of(bytes: u64, part: u64, whole: u64) -> u64 {
    (u128::from(bytes) * u128::from(part) / u128::from(whole.max(1))) as u64
}
