//! Which sessions go to other members when this host is emptied. Owns: the order in which they leave. Must not know: members, how a
//! session is offered.

use super::Engine;
use super::session::SessionKey;
use crate::cluster::Cluster;
use crate::limits::{MOVE_SESSIONS_MAX, MOVE_WORTH_PER_LOCK};
use std::sync::Arc;
use turnkv_cluster::Tip;
use turnkv_pool::SessionWorth;
use turnkv_proto::{CheckedSpec, NamespaceId, SessionId};

/// A session that is to leave.
#[derive(Clone, Debug)]
pub(crate) struct LeavingSession {
    /// Which.
    pub(crate) of: SessionKey,
    /// What its home, this member, says of it.
    pub(crate) tip: Tip,
    /// What its namespace is: who takes it may not have that open.
    pub(crate) spec: Arc<CheckedSpec>,
    /// Bytes of its pages.
    pub(crate) bytes: u64,
    worth: SessionWorth,
}

impl Engine {
    /// The sessions at home here, those first that are worth most: the highest priority, then the soonest return, then the last used.
    pub(crate) fn sessions_to_move(&self, cluster: &Cluster) -> Vec<LeavingSession> {
        let named = cluster.homes_named(MOVE_SESSIONS_MAX);
        let mut leaving: Vec<LeavingSession> = Vec::with_capacity(named.len());
        for some in named.chunks(MOVE_WORTH_PER_LOCK) {
            let worth = self.worth_of(some);
            for ((namespace, session, tip), worth) in some.iter().zip(worth) {
                let (Some(worth), Some(spec)) = (worth, self.specs.find(namespace)) else { continue };
                let bytes = u64::from(worth.pages) * spec.shard_bytes() * u64::from(spec.shards());
                let of = SessionKey { namespace: *namespace, session: session.clone() };
                leaving.push(LeavingSession { of, tip: *tip, spec: Arc::new(spec), bytes, worth });
            }
        }
        leaving.sort_by_key(|session| session.worth);
        leaving
    }

    fn worth_of(&self, sessions: &[(NamespaceId, SessionId, Tip)]) -> Vec<Option<SessionWorth>> {
        let (now, core) = (self.now(), self.decide());
        let worth = |(namespace, session, _): &(NamespaceId, SessionId, Tip)| {
            core.pool.worth_of_session(core.pool.namespace(namespace)?, session, now)
        };
        sessions.iter().map(worth).collect()
    }
}
