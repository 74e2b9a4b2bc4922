//! One connection as its door tells of it: when it was heard of, whether it is asking. Owns: these few atomics. Must not
//! know: the table, what is asked.

use super::cause::Cause;
use super::door::{Door, Peer};
use super::peers::PeerUse;
use super::unread::Unread;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// An open connection. Its clock is milliseconds since the server began to take connections.
pub(crate) struct Watch {
    pub(super) id: u64,
    pub(super) door: Door,
    pub(super) peer: Peer,
    /// What its peer has, over all its connections.
    pub(crate) of_peer: Arc<PeerUse>,
    /// It has asked something since it began.
    asked: AtomicBool,
    /// Requests in service.
    asking: AtomicU32,
    /// When it was accepted, or its last request ended.
    quiet_since: AtomicU64,
    /// When a frame began that is not whole yet, plus one; 0: none.
    stalled_since: AtomicU64,
    /// It was told to end, and is not counted any more.
    leaving: AtomicBool,
    /// Bytes of unfinished messages on it.
    pub(crate) unfinished_bytes: AtomicU64,
    /// Answers that its peer has not taken.
    pub(crate) unread: Unread,
    end: Box<dyn Fn(Cause) + Send + Sync>,
}

impl Watch {
    pub(super) fn new(
        id: u64,
        door: Door,
        peer: Peer,
        of_peer: Arc<PeerUse>,
        now: u64,
        end: Box<dyn Fn(Cause) + Send + Sync>,
    ) -> Watch {
        Watch {
            id,
            door,
            peer,
            of_peer,
            asked: AtomicBool::new(false),
            asking: AtomicU32::new(0),
            quiet_since: AtomicU64::new(now),
            stalled_since: AtomicU64::new(0),
            leaving: AtomicBool::new(false),
            unfinished_bytes: AtomicU64::new(0),
            unread: Unread::default(),
            end,
        }
    }

    /// Tells its door to end it.
    pub(super) fn end(&self, cause: Cause) {
        (self.end)(cause);
    }

    /// One request more is in service.
    pub(super) fn begin_request(&self) {
        self.asking.fetch_add(1, Ordering::Relaxed);
        self.asked.store(true, Ordering::Relaxed);
    }

    /// One request less.
    pub(super) fn end_request(&self, now: u64) {
        self.quiet_since.store(now, Ordering::Relaxed);
        self.asking.fetch_sub(1, Ordering::Relaxed);
    }

    /// Bytes arrived: whether they end within a frame, and whether another one ended in them.
    pub(crate) fn received(&self, within_frame: bool, another_ended: bool, now: impl FnOnce() -> u64) {
        if !within_frame {
            self.stalled_since.store(0, Ordering::Relaxed);
        } else if another_ended || self.stalled_since.load(Ordering::Relaxed) == 0 {
            self.stalled_since.store(now() + 1, Ordering::Relaxed);
        }
    }

    pub(super) fn stalled_since(&self) -> Option<u64> {
        self.stalled_since.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(super) fn has_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asking.load(Ordering::Relaxed) > 0
    }

    pub(super) fn quiet_since(&self) -> u64 {
        self.quiet_since.load(Ordering::Relaxed)
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// False: it was set already. Called under the table's lock.
    pub(super) fn set_leaving(&self) -> bool {
        !self.leaving.swap(true, Ordering::Relaxed)
    }
}
