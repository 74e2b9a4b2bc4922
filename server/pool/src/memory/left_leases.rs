//! Leases of slots that processes had mapped when their server ended, until each process has said what it holds. Owns: which
//! lease a slot of such a process is under. Must not know: how a process is known again.

use crate::ids::{ClientId, LeaseId};
use std::collections::BTreeMap;

/// By whose it is and the first of its slots: those of one client lie one after the other.
#[derive(Default)]
pub(crate) struct LeftLeases {
    of: BTreeMap<(ClientId, u32), LeaseId>,
}

impl LeftLeases {
    /// A lease of slots from this one on.
    pub(crate) fn keep(&mut self, client: ClientId, first: u32, lease: LeaseId) {
        self.of.insert((client, first), lease);
    }

    /// The lease that a slot of a client is under, if it is under any.
    pub(crate) fn find(&self, client: ClientId, slot: u32) -> Option<LeaseId> {
        let (of, lease) = self.of.range(..=(client, slot)).next_back()?;
        (of.0 == client).then_some(*lease)
    }

    /// Clients that such leases are of, each once.
    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientId> {
        let after = |client: &ClientId| {
            self.of.range((*client, u32::MAX)..).map(|((of, _), _)| *of).find(|of| of != client)
        };
        std::iter::successors(self.of.keys().next().map(|(of, _)| *of), after)
    }

    /// A client is gone, or has said what it holds.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.of.retain(|(of, _), _| *of != client);
    }
}

#[cfg(test)]
mod tests;
