//! The ring engine: one thread per device that owns an io_uring. Owns: the hand-over to that thread, its wake-up.
//! Must not know: the books, how an operation ends.
//!
//! Callers push into a lock-free queue and write to an eventfd only if the thread may be asleep. The thread says "asleep",
//! looks at the queue once more, and only then waits; a caller pushes first and looks at "asleep" after. So either the
//! thread sees the message or the caller sees the sleeper.

mod buffers;
mod flight;
mod worker;

use super::core::Core;
use super::finish::FinishQueue;
use super::operation::Operation;
use crossbeam_queue::SegQueue;
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use turnkv_transfer::Region;

/// What callers tell the thread.
enum Message {
    Start(Operation),
    Register(usize, Arc<Region>),
    Stop,
}

/// Between callers and the thread. Operations in it are bounded by admission, slabs by their number.
struct Inbox {
    messages: SegQueue<Message>,
    asleep: AtomicBool,
    wake: OwnedFd,
    registered_bytes: AtomicU64,
}

impl Inbox {
    /// The thread saw a wake-up: the next one counts anew.
    fn awake(&self) -> Result<(), String> {
        let mut count = [0; 8];
        match rustix::io::read(&self.wake, &mut count) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(format!("eventfd: {errno}")),
        }
    }

    fn push(&self, message: Message) {
        self.messages.push(message);
        if self.asleep.swap(false, Ordering::SeqCst) {
            // The counter cannot be full: the thread resets it between two wake-ups.
            if let Err(errno) = rustix::io::write(&self.wake, &1u64.to_ne_bytes()) {
                tracing::error!(%errno, "the ring thread cannot be woken");
            }
        }
    }
}

/// The engine's handle.
pub(crate) struct Ring {
    inbox: Arc<Inbox>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Ring {
    /// Starts the thread and registers the slabs. Gives what an operator should know, or why there is no ring.
    pub(crate) fn start(
        core: &Arc<Core>,
        finish: &Arc<FinishQueue>,
        inflight_bytes: u64,
        fixed: Vec<Arc<Region>>,
    ) -> Result<(Ring, Vec<String>), String> {
        let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| format!("eventfd: {errno}"))?;
        let inbox = Arc::new(Inbox {
            messages: SegQueue::new(),
            asleep: AtomicBool::new(false),
            wake,
            registered_bytes: AtomicU64::new(0),
        });
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
        let thread = thread.map_err(|error| format!("its thread: {error}"))?;
        let warnings = told.recv().map_err(|_| "its thread ended".to_owned())??;
        Ok((Ring { inbox, thread: Mutex::new(Some(thread)) }, warnings))
    }

    pub(crate) fn submit(&self, operation: Operation) {
        self.inbox.push(Message::Start(operation));
    }

    pub(crate) fn register(&self, index: usize, region: Arc<Region>) {
        self.inbox.push(Message::Register(index, region));
    }

    pub(crate) fn registered_bytes(&self) -> u64 {
        self.inbox.registered_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) -> Vec<JoinHandle<()>> {
        self.inbox.push(Message::Stop);
        self.thread.lock().take().into_iter().collect()
    }
}
