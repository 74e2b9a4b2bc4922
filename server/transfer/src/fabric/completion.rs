//! Where posted operations end. Owns: that each ends exactly once, and how many may be under way. Must not
//! know: which engine moves the bytes.
//!
//! One queue serves any number of rails, of one engine or of several. A place in it is taken before an
//! operation is posted and given back when its completion is taken out, so a completion never finds it full.
//! Engines put completions in from threads of their own: one for a framed connection, one for all rails of a
//! NIC that has to be polled.
//!
//! ```text
//! Operation --admit--> Posted --complete--> in the queue --poll--> Completed
//!     ^         |        \------- drop ------> (Failed: Cancelled)
//!     \- Unposted (Full)
//! ```

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::fabric::operation::{Cause, Completed, Op, Operation, Outcome, Unposted, WhyUnposted};

/// A bounded queue of completions.
#[derive(Debug)]
pub struct CompletionQueue {
    operations_max: usize,
    state: Mutex<Places>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Places {
    /// Operations that were admitted and whose completions nobody took yet, those in `ready` included.
    admitted: usize,
    ready: VecDeque<Completed>,
}

impl CompletionQueue {
    /// A queue for at most so many operations at a time, from their posting until their completions are
    /// taken.
    ///
    /// # Panics
    /// If that is none.
    #[must_use]
    pub fn new(operations_max: usize) -> Arc<Self> {
        assert!(operations_max > 0, "a queue has room for one operation");
        Arc::new(Self { operations_max, state: Mutex::default(), arrived: Condvar::new() })
    }

    /// Moves the completions that are there to the end of `into`, after waiting for the first one for at most
    /// `wait`; gives their number, 0 only if none came. Several threads may wait, each completion goes to one
    /// of them.
    pub fn poll(&self, into: &mut Vec<Completed>, wait: Duration) -> usize {
        let deadline = Instant::now().checked_add(wait);
        let mut state = self.state.lock();
        while state.ready.is_empty() {
            let timed_out = match deadline {
                Some(deadline) => self.arrived.wait_until(&mut state, deadline).timed_out(),
                None => {
                    self.arrived.wait(&mut state);
                    false
                }
            };
            if timed_out {
                break;
            }
        }
        let taken = state.ready.len();
        assert!(taken <= state.admitted, "what completes was admitted");
        state.admitted -= taken;
        into.extend(state.ready.drain(..));
        taken
    }

    /// Operations that have a place: under way, or complete and not taken yet.
    #[must_use]
    pub fn admitted(&self) -> usize {
        self.state.lock().admitted
    }

    /// As many as there may be.
    #[must_use]
    pub fn operations_max(&self) -> usize {
        self.operations_max
    }

    /// For engines: takes a place for an operation's completion.
    ///
    /// # Errors
    /// None is free: [`WhyUnposted::Full`].
    pub fn admit(self: &Arc<Self>, operation: Operation) -> Result<Posted, Unposted> {
        let mut state = self.state.lock();
        if state.admitted >= self.operations_max {
            return Err(Unposted { operation, why: WhyUnposted::Full });
        }
        state.admitted += 1;
        drop(state);
        let outcome = Some(Outcome::Failed(Cause::Cancelled));
        let place = Place { queue: Arc::clone(self), op: operation.op(), outcome };
        Ok(Posted { operation, place })
    }

    fn end(&self, completed: Completed) {
        let mut state = self.state.lock();
        assert!(state.ready.len() < state.admitted, "a completion has a place");
        state.ready.push_back(completed);
        drop(state);
        self.arrived.notify_one();
    }
}

/// An operation that an engine took: it ends exactly once, by [`Posted::complete`] or when it is dropped
/// (then as [`Cause::Cancelled`]).
///
/// Whoever takes a completion uses the slot again. So an engine lets go of this value, either way, only when
/// nothing can touch the slot's bytes any more: after the completion of its work request, or when its queue
/// pair is destroyed, or when the thread that reads and writes its connection is past them. An engine that
/// can be sure of neither keeps it for ever.
#[derive(Debug)]
pub struct Posted {
    // Goes before the place: who is told of the end finds the slot's share of its region gone.
    operation: Operation,
    place: Place,
}

impl Posted {
    /// What is to be done.
    #[must_use]
    pub fn operation(&self) -> &Operation {
        &self.operation
    }

    /// It ended; nothing touches its memory any more.
    pub fn complete(mut self, outcome: Outcome) {
        self.place.outcome = Some(outcome);
    }

    /// It was not begun after all: its place is free, and it is its caller's again.
    #[must_use]
    pub fn hand_back(mut self, why: WhyUnposted) -> Unposted {
        self.place.outcome = None;
        Unposted { operation: self.operation, why }
    }
}

/// A place in a queue. Dropped, it becomes the completion.
#[derive(Debug)]
struct Place {
    queue: Arc<CompletionQueue>,
    op: Op,
    /// What the completion will say; with none there will be no completion.
    outcome: Option<Outcome>,
}

impl Drop for Place {
    fn drop(&mut self) {
        match self.outcome.take() {
            Some(outcome) => self.queue.end(Completed { op: self.op, outcome }),
            None => self.queue.state.lock().admitted -= 1,
        }
    }
}

#[cfg(test)]
mod tests;
