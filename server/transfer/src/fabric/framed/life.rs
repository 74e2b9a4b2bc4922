//! The life of the client's end of a framed rail. Owns: that it is to end, and why it did. Must not know: bytes,
//! memory.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::waker::Waker;
use crate::fabric::operation::Cause;

/// What the handle and its thread share.
#[derive(Debug)]
pub(super) struct TargetLife {
    pub(super) waker: Waker,
    closing: AtomicBool,
    death: Mutex<Option<Cause>>,
}

impl TargetLife {
    /// # Errors
    /// The process or the system is out of descriptors.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { waker: Waker::new()?, closing: AtomicBool::new(false), death: Mutex::default() })
    }

    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The first cause stays.
    pub(super) fn die(&self, cause: Cause) {
        self.death.lock().get_or_insert(cause);
    }

    pub(super) fn death(&self) -> Option<Cause> {
        self.death.lock().clone()
    }
}
