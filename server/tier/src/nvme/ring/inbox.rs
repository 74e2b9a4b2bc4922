//! What callers of the ring engine and its thread hand one another. Owns: the queue, waking the thread. Must
//! not know: the ring.

use super::super::operation::Operation;
use super::super::ring_error::RingError;
use crossbeam_queue::SegQueue;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use turnkv_transfer::Region;

/// What callers tell the thread.
pub(super) enum Message {
    Start(Operation),
    Register(usize, Arc<Region>),
    Unregister(usize),
    Stop,
}

/// Between callers and the thread. Operations in it are bounded by admission, slabs by their number.
pub(super) struct Inbox {
    pub(super) messages: SegQueue<Message>,
    pub(super) asleep: AtomicBool,
    pub(super) wake: OwnedFd,
    pub(super) registered_bytes: AtomicU64,
}

impl Inbox {
    /// Empty; nobody sleeps on it.
    pub(super) fn new() -> Result<Inbox, RingError> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Inbox {
            messages: SegQueue::new(),
            asleep: AtomicBool::new(false),
            wake: wake.map_err(RingError::Eventfd)?,
            registered_bytes: AtomicU64::new(0),
        })
    }

    /// The thread saw a wake-up: the next one counts anew.
    pub(super) fn awake(&self) -> Result<(), RingError> {
        let mut count = [0; 8];
        match rustix::io::read(&self.wake, &mut count) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(RingError::Eventfd(errno)),
        }
    }

    pub(super) fn push(&self, message: Message) {
        self.messages.push(message);
        if self.asleep.swap(false, Ordering::SeqCst) {
            // The counter cannot be full: the thread resets it between two wake-ups.
            if let Err(errno) = rustix::io::write(&self.wake, &1u64.to_ne_bytes()) {
                tracing::error!(%errno, "the ring thread cannot be woken");
            }
        }
    }
}
