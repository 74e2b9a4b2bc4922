//! The life of the client's end of a framed rail. Owns: that it is to end, and why it did, and what it is in the middle of. Must not
//! know: bytes, memory.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::waker::Waker;
use crate::fabric::operation::Cause;

/// What the handle and its thread share.
#[derive(Debug)]
pub(super) struct TargetLife {
    pub(super) waker: Waker,
    closing: AtomicBool,
    /// The key of the memory that it is sending, or 0.
    sending: AtomicU64,
    death: Mutex<Option<Cause>>,
}

impl TargetLife {
    /// # Errors
    /// The process or the system is out of descriptors.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            waker: Waker::new()?,
            closing: AtomicBool::new(false),
            sending: AtomicU64::new(0),
            death: Mutex::default(),
        })
    }

    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The thread begins to send the memory of this key, or has sent what it was asked for (0). Said before the memory is looked at, so
    /// that whoever takes it back after that finds it here.
    pub(super) fn note_sending(&self, key: u64) {
        self.sending.store(key, Ordering::Release);
    }

    /// Whether it is in the middle of sending the memory of this key.
    pub(super) fn sends(&self, key: u64) -> bool {
        self.sending.load(Ordering::Acquire) == key
    }

    /// The first cause stays.
    pub(super) fn die(&self, cause: Cause) {
        self.death.lock().get_or_insert(cause);
    }

    pub(super) fn death(&self) -> Option<Cause> {
        self.death.lock().clone()
    }
}
