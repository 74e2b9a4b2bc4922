//! One connection as its door tells of it: when it was heard of, whether it is asking. Owns: these few atomics. Must not
//! know: the table, what is asked.

use super::peers::PeerUse;
use super::unread::Unread;
use super::{Cause, Connections, Door, Peer, Refusal};
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

/// Tells of the requests on one connection.
#[derive(Clone)]
pub(crate) struct Asking {
    connections: Arc<Connections>,
    watch: Arc<Watch>,
    /// The process at its other end, where the kernel says; else 0.
    process: i32,
}

/// One request in service; it ends when this is dropped.
pub(crate) struct Request {
    asking: Asking,
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

impl Asking {
    pub(super) fn new(connections: Arc<Connections>, watch: Arc<Watch>) -> Asking {
        Asking { connections, watch, process: 0 }
    }

    /// The same, of a process that is known.
    pub(super) fn of_process(self, process: i32) -> Asking {
        Asking { process, ..self }
    }

    /// Whose connection it is, and which process is at its other end (0: not known).
    pub(crate) fn peer(&self) -> (Peer, i32) {
        (self.watch.peer, self.process)
    }

    /// A request begins.
    pub(crate) fn begin(&self) -> Request {
        self.watch.asking.fetch_add(1, Ordering::Relaxed);
        self.watch.asked.store(true, Ordering::Relaxed);
        Request { asking: self.clone() }
    }

    /// The watches' clock.
    pub(crate) fn now(&self) -> u64 {
        self.connections.now()
    }

    /// Its door ends it.
    pub(crate) fn ended(&self, cause: Cause) {
        self.connections.ended(&self.watch, cause);
    }

    /// It is connected, and not served.
    pub(crate) fn refused(&self, why: Refusal) {
        self.connections.refused(self.watch.door, why);
    }

    /// Its connection.
    pub(crate) fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let watch = &self.asking.watch;
        watch.quiet_since.store(self.asking.connections.now(), Ordering::Relaxed);
        watch.asking.fetch_sub(1, Ordering::Relaxed);
    }
}
