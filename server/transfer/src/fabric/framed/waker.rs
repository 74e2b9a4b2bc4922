//! Waking a thread that waits for its connection. Owns: an eventfd. Must not know: what the thread is woken
//! for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;

/// Something to poll beside a socket.
#[derive(Debug)]
pub(super) struct Waker(OwnedFd);

impl Waker {
    /// # Errors
    /// The process or the system is out of descriptors.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// The thread's poll returns, the next one if it is not in one.
    pub(super) fn wake(&self) {
        match rustix::io::write(&self.0, &1_u64.to_ne_bytes()) {
            // AGAIN: the counter is full, the thread wakes anyway. Nothing else fails on an eventfd of ours.
            Ok(_) | Err(_) => {}
        }
    }

    /// The thread is awake.
    pub(super) fn clear(&self) {
        match rustix::io::read(&self.0, &mut [0; 8]) {
            // AGAIN: nobody woke it.
            Ok(_) | Err(_) => {}
        }
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
