//! Shares of the slots, and of the leases themselves: how much one client, one user and all may hold.
//! Owns: the arithmetic of what is left for whom. Must not know: what a lease is for; how a client proves who
//! it is.
//!
//! What a lease holds that time alone does not end (a write lease, its quarantine, mapped slots) may stay for
//! as long as its holder is stopped; and a lease that time does end can be taken anew in the same moment. So
//! a share is not a wall that the first ones to be stuck use up: each client may hold its percentage of what
//! the others of its user have left of the user's, and each user its percentage of what other users have left
//! of all. Whoever comes next finds some room, however many are stuck. Leases are few, so of these the rest
//! beyond all shares is for users who have none: they get their first one there.

use crate::config::Limits;
use crate::error::{LeaseShare, PoolError};
use crate::ids::{ClientId, NamespaceIndex};
use crate::limits::HELD_PERCENT_MAX;
use crate::memory::leases::Leases;
use crate::memory::leases::counts::{Counts, UserHolding};
use crate::memory::slots::Slots;

impl Leases {
    /// What the limits leave.
    pub(crate) fn room<'a>(&'a self, limits: &'a Limits, slots: &'a Slots) -> LeaseRoom<'a> {
        LeaseRoom { limits, counts: self.counts(), slots }
    }

    /// How many more slots a lease of this client may hold, or why there can be no lease.
    pub(crate) fn lease_room(
        &mut self,
        limits: &Limits,
        slots: &Slots,
        client: ClientId,
        ns: NamespaceIndex,
    ) -> Result<usize, PoolError> {
        if let Some(share) = self.room(limits, slots).lease_share_reached(client) {
            self.count_refused();
            return Err(PoolError::LeaseShare(share));
        }
        Ok(self.room(limits, slots).slot_room(client, ns))
    }
}

/// What processes had mapped when their server ended, as far as they have not said it yet.
#[derive(Default)]
pub(crate) struct LeftHolding {
    /// Clients of one user.
    pub(crate) user: UserHolding,
    /// All.
    pub(crate) all_bytes: u64,
}

/// What the limits leave of the slots and the leases.
pub(crate) struct LeaseRoom<'a> {
    limits: &'a Limits,
    counts: &'a Counts,
    slots: &'a Slots,
}

impl LeaseRoom<'_> {
    /// The share of the leases that leaves this client no further one.
    fn lease_share_reached(&self, client: ClientId) -> Option<LeaseShare> {
        let counts = self.counts;
        let leases_max = u64::from(self.limits.leases_max);
        let shares = LeaseShares::of(self.limits, leases_max);
        let (own, user) = (counts.of(client).leases.into(), counts.of_user(client).leases.into());
        let held = LeaseHeld { own, user, all: counts.leases.into() };
        match () {
            () if held.all >= leases_max => Some(LeaseShare::All),
            () if held.user == 0 => None,
            () if held.user >= shares.left_to_user(&held) => Some(LeaseShare::User),
            () if held.own > 0 && held.own >= shares.left_to_client(&held) => Some(LeaseShare::Client),
            () => None,
        }
    }

    /// How many more slots this client may hold, in a lease of this namespace.
    pub(crate) fn slot_room(&self, client: ClientId, ns: NamespaceIndex) -> usize {
        let own = self.counts.of(client);
        let room = self.client_share(ns).saturating_sub(u64::from(own.leased));
        let slot_bytes = self.slots.class_at(ns.0).slot_bytes;
        let left = self.client_bytes_max(client, slot_bytes).saturating_sub(own.leased_bytes) / slot_bytes;
        room.min(left).min(u64::from(self.limits.lease_pages_max)) as usize
    }

    /// How many more slots this client may map, in a lease of this namespace. Mapped slots stay for as long
    /// as their holder likes, so some of its share, and of DRAM, is kept for copies.
    pub(crate) fn held_room(&self, client: ClientId, ns: NamespaceIndex) -> usize {
        let own = self.counts.of(client);
        let copied = |share: u64| share - (share * (100 - HELD_PERCENT_MAX)).div_ceil(100);
        let slots = copied(self.client_share(ns)).saturating_sub(u64::from(own.held));
        let slot_bytes = self.slots.class_at(ns.0).slot_bytes;
        // Mapping what is leased already makes it lasting: only what lasts of its own is counted against it
        // here.
        let share = copied(self.client_bytes_max(client, slot_bytes));
        let left = share.saturating_sub(own.lasting_bytes) / slot_bytes;
        let all_bytes =
            (self.slots.dram_bytes() / 100 * HELD_PERCENT_MAX).saturating_sub(self.counts.held_bytes);
        slots.min(left).min(all_bytes / slot_bytes) as usize
    }

    /// How many more slots, of so many bytes, this client may take over in one more lease: as far as its share,
    /// its user's and that of all reach where nobody else holds anything. What it had mapped was granted within
    /// these, whoever says first what he had. `left` does not count: it may be the same slots.
    pub(crate) fn take_over_room(&self, client: ClientId, slot_bytes: u64, left: &LeftHolding) -> usize {
        let counts = self.counts;
        let (own, user) = (counts.of(client), counts.of_user(client));
        let shares = LeaseShares::of(self.limits, u64::from(self.limits.leases_max));
        let is_full = counts.leases >= self.limits.leases_max;
        if is_full
            || u64::from(own.leases) >= shares.client.max(1)
            || u64::from(user.leases.saturating_sub(left.user.leases)) >= shares.user.max(1)
        {
            return 0;
        }
        let shares = LeaseShares::of(self.limits, self.slots.largest_dram_bytes());
        let held = [
            (shares.client, own.lasting_bytes),
            (shares.user, user.lasting_bytes.saturating_sub(left.user.lasting_bytes)),
            (shares.all, counts.lasting_bytes.saturating_sub(left.all_bytes)),
        ];
        let left = held.map(|(share, held)| share.max(slot_bytes).saturating_sub(held));
        let bytes = left.into_iter().min().unwrap_or(0);
        (bytes / slot_bytes) as usize
    }

    /// Bytes that leases which time does not end may hold, all together.
    pub(crate) fn all_bytes_max(&self) -> u64 {
        LeaseShares::of(self.limits, self.slots.dram_bytes()).all
    }

    /// The same when DRAM was largest: what was leased then may still be.
    pub(crate) fn all_bytes_ever(&self) -> u64 {
        LeaseShares::of(self.limits, self.slots.largest_dram_bytes()).all
    }

    /// Bytes that leases of this client may hold now: one slot at least, where nobody holds anything.
    fn client_bytes_max(&self, client: ClientId, slot_bytes: u64) -> u64 {
        let counts = self.counts;
        let (own, all) = (counts.of(client).lasting_bytes, counts.lasting_bytes);
        let held = LeaseHeld { own, user: counts.of_user(client).lasting_bytes, all };
        let left = LeaseShares::of(self.limits, self.slots.dram_bytes()).left_to_client(&held);
        left.max(if all == own { slot_bytes } else { 0 })
    }

    /// How many slots leases of one client may be on.
    fn client_share(&self, ns: NamespaceIndex) -> u64 {
        let limits = self.limits;
        let class = self.slots.class_at(ns.0);
        let slots = u64::from(class.per_slab) * (self.slots.dram_bytes() / self.slots.slab_bytes());
        let percent = (slots * u64::from(limits.client_slots_percent) / 100).max(1);
        u64::from(limits.client_slots_max).min(percent)
    }
}

/// What all, one user and one client may hold of something, when nobody else holds any.
struct LeaseShares {
    all: u64,
    user: u64,
    client: u64,
}

/// What is held of it.
struct LeaseHeld {
    own: u64,
    /// By all clients of the user.
    user: u64,
    all: u64,
}

impl LeaseShares {
    fn of(limits: &Limits, whole: u64) -> LeaseShares {
        let all = limits.all_slots_percent.max(limits.client_slots_percent);
        let user = limits.user_slots_percent.min(limits.all_slots_percent).max(limits.client_slots_percent);
        let part = |percent: u8| part_of(whole, u64::from(percent), 100);
        LeaseShares { all: part(all), user: part(user), client: part(limits.client_slots_percent) }
    }

    /// What a user's clients may hold together, beside what others do.
    fn left_to_user(&self, held: &LeaseHeld) -> u64 {
        part_of(self.user, self.all.saturating_sub(held.all - held.user), self.all)
    }

    /// What a client may hold beside what others do.
    fn left_to_client(&self, held: &LeaseHeld) -> u64 {
        let left = self.left_to_user(held).saturating_sub(held.user - held.own);
        part_of(self.client, left, self.user)
    }
}

/// `whole * part / parts`.
fn part_of(whole: u64, part: u64, parts: u64) -> u64 {
    (u128::from(whole) * u128::from(part) / u128::from(parts.max(1))) as u64
}
