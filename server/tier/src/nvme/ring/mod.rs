//! The ring engine: one thread per device that owns an io_uring. Owns: the hand-over to that thread, its
//! wake-up. Must not know: the books, how an operation ends.
//!
//! Callers push into a lock-free queue and write to an eventfd only if the thread may be asleep. The thread
//! says "asleep", looks at the queue once more, and only then waits; a caller pushes first and looks at
//! "asleep" after. So either the thread sees the message or the caller sees the sleeper.

mod buffers;
mod flight;
mod inbox;
mod worker;

use super::core::Core;
use super::finish::FinishQueue;
use super::fixed::Fixed;
use super::operation::Operation;
use super::ring_error::RingError;
use inbox::{Inbox, Message};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use turnkv_transfer::Region;

/// The engine's handle.
pub(crate) struct Ring {
    inbox: Arc<Inbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Ring {
    /// Starts the thread and registers the slabs. Gives what an operator should know, or why there is no
    /// ring.
    pub(crate) fn start(
        core: &Arc<Core>,
        finish: &Arc<FinishQueue>,
        inflight_bytes: u64,
        fixed: Fixed,
    ) -> Result<(Ring, Vec<String>), RingError> {
        let inbox = Arc::new(Inbox::new()?);
        let (tell, told) = sync_channel(1);
        let parts = worker::Parts {
            core: Arc::clone(core),
            finish: Arc::clone(finish),
            inbox: Arc::clone(&inbox),
            inflight_bytes,
        };
        // The ring is made on its own thread: with SINGLE_ISSUER only that one may use it.
        let run = move || match worker::Worker::new(parts, fixed) {
            Ok((worker, warnings)) => {
                if tell.send(Ok(warnings)).is_ok() {
                    worker.run();
                }
            }
            Err(why) => drop(tell.send(Err(why))),
        };
        let thread = std::thread::Builder::new().name("nvme-ring".to_owned()).spawn(run);
        let thread = thread.map_err(RingError::Thread)?;
        let warnings = told.recv().map_err(|_| RingError::ThreadEnded)??;
        Ok((Ring { inbox, thread: Mutex::new(Some(thread)) }, warnings))
    }

    pub(crate) fn submit(&self, operation: Operation) {
        self.inbox.push(Message::Start(operation));
    }

    pub(crate) fn register(&self, index: usize, region: Arc<Region>) {
        self.inbox.push(Message::Register(index, region));
    }

    pub(crate) fn unregister(&self, index: usize) {
        self.inbox.push(Message::Unregister(index));
    }

    pub(crate) fn registered_bytes(&self) -> u64 {
        self.inbox.registered_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) -> Vec<JoinHandle<()>> {
        self.inbox.push(Message::Stop);
        self.thread.lock().take().into_iter().collect()
    }
}
