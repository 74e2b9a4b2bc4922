//! The books of leases of pages that this process has mapped: under which server and lease each slot is now, and was when it was
//! mapped. Must not know: connections, what is mapped where.
//!
//! ```text
//!            another server of the same memory                TakeOver
//!   held --------------------------------------> left behind ----------> held
//!     \-- of other memory ----> orphan <------------/ not there any more
//! ```
//! What is left behind stays so while the server has no room for it. An orphan stays mapped; nobody gives its slot to anyone as long as
//! this process lives.

use super::connection::Server;
use super::writes::Mapping;
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use tokio::runtime::Handle;
use turnkv_proto::wire;

/// The server process that a lease was first held of, and the lease's number there: what is mapped under it goes by this name for
/// good.
pub(super) type HeldName = (u64, u64);

/// All leases held, and what became of others.
#[derive(Debug, Default)]
pub(super) struct HeldLeases {
    /// The server process that answered last.
    pub(super) instance: u64,
    pub(super) leases: BTreeMap<HeldName, HeldLease>,
    pub(super) lost: HashSet<HeldName>,
    /// Releases that found no connection: at most what is held.
    pub(super) unsent: Vec<(Server, wire::ReleaseRequest)>,
    /// The server had no room for some of what is left: it is told again after so long.
    pub(super) say_again: Option<Duration>,
    pub(super) given_up: GivenUp,
    /// A task renews them.
    pub(super) kept: bool,
}

/// Whether the server is being told of what was given up, and whether there is more since that began.
#[derive(Debug, Default)]
pub(super) struct GivenUp {
    /// Where it is done; none before anything was held.
    pub(super) runtime: Option<Handle>,
    pub(super) is_being_told: bool,
    pub(super) more: bool,
}

/// Slots that a lease is on, for the server after this one.
#[derive(Debug, Clone)]
pub(crate) struct HeldSlots {
    /// Of which namespace.
    pub(crate) namespace: [u8; 32],
    /// Which shard.
    pub(crate) shard: u32,
    /// They were reserved.
    pub(crate) reserved: bool,
    /// By position.
    pub(crate) slots: BTreeMap<u32, wire::SlotRef>,
}

/// One lease.
#[derive(Debug)]
pub(super) struct HeldLease {
    pub(super) of: HeldSlots,
    /// The lease that its slots are under now, at the server that answered last; none: left behind, or orphans.
    pub(super) now: Option<u64>,
    /// Slots of it that are nobody's: the server does not know them any more.
    pub(super) orphans: BTreeMap<u32, wire::SlotRef>,
    /// The server that answered last is still to be asked for it.
    pub(super) is_left: bool,
    /// Counts as mapped at the servers that it is under: the one now, or those that left its orphans.
    pub(super) mapping: Vec<Mapping>,
}

impl HeldLeases {
    /// Another server process answers from now on. Its memory is this one: leases of the same memory are left behind, others
    /// orphans.
    pub(super) fn move_to(&mut self, instance: u64, memory: u64) {
        self.instance = instance;
        self.unsent.clear();
        self.say_again = None;
        for lease in self.leases.values_mut() {
            lease.now = None;
            lease.mapping.retain(|mapping| mapping.memory() == memory);
            lease.is_left = !lease.mapping.is_empty();
            if !lease.is_left {
                lease.orphans.append(&mut lease.of.slots);
            }
        }
    }

    /// Whether somebody has to ask the server from time to time.
    pub(super) fn is_active(&self) -> bool {
        let is_active = |lease: &HeldLease| lease.now.is_some() || lease.is_left;
        !self.unsent.is_empty() || self.leases.values().any(is_active)
    }

    /// Those of which the server is still to be told, with what they are on.
    pub(super) fn left(&self) -> Vec<(HeldName, HeldSlots)> {
        let left = self.leases.iter().filter(|(_, lease)| lease.is_left);
        left.map(|(name, lease)| (*name, lease.of.clone())).collect()
    }

    /// The server has taken over these positions of a lease, under one of its own (0: of nothing). Those among them that were given
    /// up meanwhile are to be released there.
    pub(super) fn taken(
        &mut self,
        name: HeldName,
        reply: &wire::TakeOverReply,
        mapping: Mapping,
    ) -> Vec<u32> {
        let Some(lease) = self.leases.get_mut(&name) else { return reply.positions.clone() };
        let is_taken = |position: &u32| reply.positions.binary_search(position).is_ok();
        lease.orphans.extend(lease.of.slots.extract_if(.., |position, _| !is_taken(position)));
        lease.is_left = false;
        if lease.orphans.is_empty() {
            lease.mapping.clear();
        }
        let of = &lease.of.slots;
        let released = reply.positions.iter().copied().filter(|position| !of.contains_key(position));
        let released: Vec<u32> = released.collect();
        // Of which all is released is under no lease: renewed, it would count as lost.
        if released.len() < reply.positions.len() {
            lease.now = Some(reply.lease);
            lease.mapping.push(mapping);
        }
        released
    }

    /// Slots are not mapped any more (no positions: all of the lease). What the server is to be told of it: the lease there, and
    /// which positions, none for all.
    pub(super) fn give_up(&mut self, name: HeldName, positions: &[u32]) -> Option<(u64, Vec<u32>)> {
        let lease = self.leases.get_mut(&name)?;
        let is_gone = |position: &u32| positions.is_empty() || positions.binary_search(position).is_ok();
        lease.orphans.retain(|position, _| !is_gone(position));
        let gone: Vec<u32> = lease
            .of
            .slots
            .extract_if(.., |position, _| is_gone(position))
            .map(|(position, _)| position)
            .collect();
        let (now, is_empty) = (lease.now, lease.of.slots.is_empty());
        if is_empty && lease.orphans.is_empty() {
            self.leases.remove(&name);
        } else if is_empty {
            lease.now = None;
        } else if now.is_some() && lease.orphans.is_empty() {
            // Servers before the one that it is under had leased no more than its orphans.
            lease.mapping.drain(..lease.mapping.len().saturating_sub(1));
        }
        let told = if is_empty { Vec::new() } else { gone.clone() };
        now.filter(|_| is_empty || !gone.is_empty()).map(|now| (now, told))
    }

    /// The name of the lease of this number at the server that answered last.
    pub(super) fn name_of(&self, now: u64) -> Option<HeldName> {
        self.leases.iter().find(|(_, lease)| lease.now == Some(now)).map(|(name, _)| *name)
    }
}

#[cfg(test)]
pub(super) mod tests;
