//! The books of leases of pages that this process has mapped. Must not know: connections, what is mapped
//! where.

use super::connection::Server;
use std::collections::{BTreeSet, HashSet};
use turnkv_proto::wire;

/// Leases of one server process; another one knows none of them.
#[derive(Debug, Default)]
pub(super) struct HeldLeases {
    pub(super) leases: BTreeSet<u64>,
    pub(super) lost: HashSet<u64>,
    /// Releases that found no connection: at most what is held.
    pub(super) unsent: Vec<(Server, wire::ReleaseRequest)>,
    /// A task renews them.
    pub(super) kept: bool,
}

impl HeldLeases {
    /// The server went away, and the leases with it. The memory stays: nobody gives its slots to anyone any
    /// more.
    pub(super) fn forget(&mut self) {
        *self = HeldLeases { kept: self.kept, ..HeldLeases::default() };
    }
}
