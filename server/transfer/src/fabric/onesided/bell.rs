//! Waking the driver's thread. Owns: which thread that is. Must not know: why it is woken.

use std::sync::OnceLock;
use std::thread::Thread;

/// Wakes a thread that sleeps by parking, or is about to.
#[derive(Debug, Default)]
pub(super) struct Bell {
    thread: OnceLock<Thread>,
}

impl Bell {
    /// Who is to be woken: told once, by that thread itself before it looks for work.
    pub(super) fn answered_by(&self, thread: Thread) {
        let told = self.thread.set(thread);
        debug_assert!(told.is_ok(), "a bell has one thread");
    }

    /// Ends the thread's sleep, or its next one. Before it said who it is, it does not sleep.
    pub(super) fn ring(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}
