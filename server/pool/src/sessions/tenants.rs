//! Sessions by tenant: how many each has, and in which order they make way. Owns: these orders. Must not
//! know: why one makes way.

use crate::ids::Now;
use hashbrown::HashMap;
use std::collections::BTreeSet;

/// Where a session stands in its tenant's orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// Not in a turn: the least important, then the longest idle first.
    Idle(u32, Now),
    /// In a turn: the one not heard of for longest first.
    InTurn(Now),
}

/// The sessions of one tenant.
#[derive(Default)]
struct TenantSessions {
    /// Idle ones before those in a turn.
    order: BTreeSet<(Standing, u32)>,
}

/// All tenants that have sessions.
#[derive(Default)]
pub(super) struct Tenants {
    shares: HashMap<u32, TenantSessions>,
    /// By how many sessions they have.
    sizes: BTreeSet<(usize, u32)>,
    in_turn: usize,
}

impl Tenants {
    /// Tenants that have sessions.
    pub(super) fn len(&self) -> usize {
        self.shares.len()
    }

    /// Sessions in a turn.
    pub(super) fn in_turn(&self) -> usize {
        self.in_turn
    }

    /// Sessions of a tenant.
    pub(super) fn len_of(&self, tenant: u32) -> usize {
        self.shares.get(&tenant).map_or(0, |share| share.order.len())
    }

    /// The tenant with most sessions.
    pub(super) fn fullest(&self) -> Option<(usize, u32)> {
        self.sizes.last().copied()
    }

    /// The session of a tenant that is first to make way, and where it stands.
    pub(super) fn first_of(&self, tenant: u32) -> Option<(Standing, u32)> {
        self.shares.get(&tenant)?.order.first().copied()
    }

    /// A session stands in its tenant's order from now on.
    pub(super) fn add(&mut self, tenant: u32, standing: Standing, at: u32) {
        let share = self.shares.entry(tenant).or_default();
        let before = share.order.len();
        share.order.insert((standing, at));
        self.resize(tenant, before);
        self.in_turn += usize::from(matches!(standing, Standing::InTurn(_)));
    }

    /// It does not any more.
    pub(super) fn remove(&mut self, tenant: u32, standing: Standing, at: u32) {
        let Some(share) = self.shares.get_mut(&tenant) else { return };
        let before = share.order.len();
        if share.order.remove(&(standing, at)) {
            self.resize(tenant, before);
            self.in_turn -= usize::from(matches!(standing, Standing::InTurn(_)));
        }
    }

    /// A session stands elsewhere than before in its tenant's order.
    pub(super) fn shift(&mut self, tenant: u32, before: Standing, standing: Standing, at: u32) {
        let Some(share) = self.shares.get_mut(&tenant).filter(|_| before != standing) else { return };
        if share.order.remove(&(before, at)) {
            share.order.insert((standing, at));
            self.in_turn += usize::from(matches!(standing, Standing::InTurn(_)));
            self.in_turn -= usize::from(matches!(before, Standing::InTurn(_)));
        }
    }

    /// Whether a session stands so in its tenant's order.
    pub(super) fn has(&self, tenant: u32, standing: Standing, at: u32) -> bool {
        self.shares.get(&tenant).is_some_and(|share| share.order.contains(&(standing, at)))
    }

    /// Whether the tenants have so many sessions together, as each is said to.
    pub(super) fn adds_up(&self, sessions: usize) -> bool {
        let sizes =
            self.shares.iter().all(|(tenant, share)| self.sizes.contains(&(share.order.len(), *tenant)));
        let count: usize = self.sizes.iter().map(|(size, _)| size).sum();
        sizes && self.sizes.len() == self.shares.len() && count == sessions
    }

    /// Bytes beside those of the sessions' places in the orders.
    pub(super) fn bytes(&self) -> usize {
        let sizes = self.sizes.len() * crate::limits::ORDER_BYTES;
        self.shares.allocation_size() + sizes
    }

    /// A tenant had so many sessions before.
    fn resize(&mut self, tenant: u32, before: usize) {
        let now = self.len_of(tenant);
        self.sizes.remove(&(before, tenant));
        if now > 0 {
            self.sizes.insert((now, tenant));
        } else {
            self.shares.remove(&tenant);
        }
    }
}

#[cfg(test)]
mod tests;
