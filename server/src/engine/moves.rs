//! How far the emptying of this host is. Owns: what was asked for, and what is told of it. Must not know: sessions, members, how one is
//! offered.

use crate::limits::MOVE_BYTES_PER_S_USUAL;
use parking_lot::Mutex;
use std::sync::atomic::AtomicU64;
use tokio::sync::Notify;

/// What was asked for, and how far it is.
#[derive(Default)]
pub(crate) struct Moves {
    standing: Mutex<MoveStanding>,
    /// Rung when it was asked for.
    pub(crate) bell: Notify,
    /// Sessions of others that are being taken over.
    pub(crate) taking: AtomicU64,
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
