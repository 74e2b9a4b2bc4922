//! Emptying this host: which of its sessions go to other members, and how far that is. Owns: the order in which they leave, what is told
//! of it. Must not know: members, how a session is offered.

use super::Engine;
use super::session::SessionKey;
use crate::cluster::Cluster;
use crate::limits::{MOVE_BYTES_PER_S_USUAL, MOVE_SESSIONS_MAX, MOVE_WORTH_PER_LOCK};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::Notify;
use turnkv_cluster::Tip;
use turnkv_pool::SessionWorth;
use turnkv_proto::{CheckedSpec, NamespaceId, SessionId};

/// What was asked for, and how far it is.
#[derive(Default)]
pub(crate) struct Moves {
    standing: Mutex<MoveStanding>,
    /// Rung when it was asked for.
    pub(crate) bell: Notify,
}

/// How far the emptying of this host is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MoveStanding {
    /// It goes on.
    pub(crate) is_running: bool,
    /// Bytes of pages that may leave in a second.
    pub(crate) bytes_per_s: u64,
    /// Sessions that other members have taken over.
    pub(crate) moved_sessions: u64,
    /// Bytes of their pages.
    pub(crate) moved_bytes: u64,
    /// Sessions that are still at home here.
    pub(crate) left_sessions: u64,
    /// Of those offered last: that nobody had room for.
    pub(crate) no_room: u64,
    /// For which there was no member.
    pub(crate) no_peer: u64,
    /// That members failed to take over.
    pub(crate) failed: u64,
    /// Why the last one of these failed.
    pub(crate) note: String,
}

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

/// What came of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MovedOne {
    /// A member has it, and is its home.
    Taken {
        /// Bytes of its pages.
        bytes: u64,
    },
    /// It is not at home here any more.
    Gone,
    /// Nobody has room for it.
    NoRoom,
    /// There is no member that could take it.
    NoPeer,
    /// Those that could, failed; why the last one did.
    Failed(String),
}

impl Moves {
    /// This host is to be emptied, or the emptying goes on. 0 bytes a second: the usual pace.
    pub(crate) fn begin(&self, bytes_per_s: u64) {
        let mut standing = self.standing.lock();
        standing.bytes_per_s = if bytes_per_s > 0 { bytes_per_s } else { MOVE_BYTES_PER_S_USUAL };
        standing.is_running = true;
        drop(standing);
        self.bell.notify_one();
    }

    /// How far it is.
    pub(crate) fn standing(&self) -> MoveStanding {
        self.standing.lock().clone()
    }

    /// So many sessions are offered from now on.
    pub(crate) fn pass_began(&self, left: u64) {
        let mut standing = self.standing.lock();
        (standing.no_room, standing.no_peer, standing.failed) = (0, 0, 0);
        standing.left_sessions = left;
        standing.note.clear();
    }

    /// A session was offered.
    pub(crate) fn note(&self, outcome: &MovedOne) {
        let mut standing = self.standing.lock();
        match outcome {
            MovedOne::Taken { bytes } => {
                standing.moved_sessions += 1;
                standing.moved_bytes += bytes;
                standing.left_sessions = standing.left_sessions.saturating_sub(1);
            }
            MovedOne::Gone => standing.left_sessions = standing.left_sessions.saturating_sub(1),
            MovedOne::NoRoom => standing.no_room += 1,
            MovedOne::NoPeer => standing.no_peer += 1,
            MovedOne::Failed(why) => {
                standing.failed += 1;
                standing.note.clone_from(why);
            }
        }
    }

    /// No more can be done until it is asked for again.
    pub(crate) fn ended(&self, left: u64) {
        let mut standing = self.standing.lock();
        (standing.is_running, standing.left_sessions) = (false, left);
    }
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
