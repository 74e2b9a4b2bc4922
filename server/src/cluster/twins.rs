//! Servers that have one name in a cluster. Owns: that it is said and counted wherever it is seen. Must not know: how it is seen.

use super::runtime::Cluster;
use std::sync::atomic::Ordering;
use turnkv_cluster::{Incarnation, Life};
use turnkv_proto::Error;

impl Cluster {
    /// Once a round: whether another living server has this member's name. It then has no part in the cluster, and says so.
    pub(super) fn look_for_twin(&self) {
        let twin = self.membership.twin();
        self.counts.twin.set(f64::from(u8::from(twin.is_some())));
        let Some(endpoint) = twin else { return };
        // Who the members are could be read, but for this server they are none of its own.
        self.reached.store(1, Ordering::Relaxed);
        if let Some(unsaid) = self.said_twin.may_say() {
            tracing::error!(
                own = self.own().name,
                endpoint,
                unsaid,
                "another living server has this one's cluster.id: this one keeps out of the cluster until that is gone; give each host its own"
            );
        }
    }

    /// Somebody spoke for a member whose later life was heard a moment ago, or for this one: what it is told.
    pub(super) fn hears_twin(&self, said: Life, latest: Incarnation) -> Error {
        self.counts.twin_messages.increment(1);
        let name = self.card(said.member).map(|card| card.name.clone()).unwrap_or_default();
        if let Some(unsaid) = self.said_twin.may_say() {
            tracing::error!(
                member = name,
                incarnation = said.incarnation.0,
                latest = latest.0,
                unsaid,
                "two living servers have one cluster.id: give each host its own"
            );
        }
        Error::invalid(format!(
            "another living server has the cluster.id `{name}` too: give each host its own"
        ))
    }
}
