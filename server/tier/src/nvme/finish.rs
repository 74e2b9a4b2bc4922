//! Threads that end operations: verify what was read, settle the books, call back. Owns: those threads and
//! their queue. Must not know: how the bytes came.
//!
//! They exist so that a checksum over megabytes, or a slow call-back, never keeps the ring from submitting.

use super::core::{Core, PoisonOnPanic};
use super::operation::{Failure, Operation};
use super::threads::finishers;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// An operation that is over, and how it went.
pub(crate) type Finished = (Operation, Result<(), Failure>);

/// Where engines put what is over. Bounded by admission.
#[derive(Default)]
pub(crate) struct FinishQueue {
    state: Mutex<FinishState>,
    wake: Condvar,
}

#[derive(Default)]
struct FinishState {
    finished: VecDeque<Finished>,
    stop: bool,
}

impl FinishQueue {
    /// Hands over everything in `batch`.
    pub(crate) fn push_all(&self, batch: &mut Vec<Finished>) {
        if batch.is_empty() {
            return;
        }
        let several = batch.len() > 1;
        self.state.lock().finished.extend(batch.drain(..));
        if several {
            self.wake.notify_all();
        } else {
            self.wake.notify_one();
        }
    }

    /// Lets the threads end when the queue is empty.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_all();
    }

    /// Ends one operation without waiting for it; `false` if none is over.
    #[cfg(feature = "simulation")]
    pub(crate) fn step(&self, core: &Core) -> bool {
        let finished = self.state.lock().finished.pop_front();
        let found = finished.is_some();
        if let Some((operation, result)) = finished {
            core.finish(operation, result);
        }
        found
    }

    fn pop(&self) -> Option<Finished> {
        let mut state = self.state.lock();
        loop {
            if let Some(finished) = state.finished.pop_front() {
                return Some(finished);
            }
            if state.stop {
                return None;
            }
            self.wake.wait(&mut state);
        }
    }
}

/// Starts the threads, as many as [`finishers`] says.
pub(crate) fn start(core: &Arc<Core>, queue: &Arc<FinishQueue>) -> io::Result<Vec<JoinHandle<()>>> {
    let spawn = |index| {
        let (core, queue) = (Arc::clone(core), Arc::clone(queue));
        let run = move || {
            let _guard = PoisonOnPanic::new(&core, "a finishing thread");
            while let Some((operation, result)) = queue.pop() {
                core.finish(operation, result);
            }
        };
        std::thread::Builder::new().name(format!("nvme-finish-{index}")).spawn(run)
    };
    (0..finishers()).map(spawn).collect()
}
