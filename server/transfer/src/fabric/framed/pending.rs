//! What a rail has to do. Owns: operations that have not begun, in what order they begin, and what both the
//! rail's thread and its callers see. Must not know: the connection.
//!
//! A rail carries payloads one way at a time, in turns: a WRITE does not begin before all READs are answered.
//! A turn ends when nothing waits in its direction, or after [`RAIL_TURN_BYTES`] if something waits in the
//! other.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::waker::Waker;
use crate::fabric::completion::{CompletionQueue, Posted};
use crate::fabric::operation::{Cause, Direction, Operation, Outcome, Unposted, WhyUnposted};
use crate::limits::{RAIL_OPERATIONS_MAX, RAIL_TURN_BYTES};

/// What a rail's thread and its callers share.
#[derive(Debug)]
pub(super) struct Pending {
    state: Mutex<PendingState>,
    pub(super) waker: Waker,
    closing: AtomicBool,
    queued_bytes: AtomicU64,
    completions: Arc<CompletionQueue>,
}

#[derive(Debug)]
struct PendingState {
    order: Turns,
    /// Operations posted and not complete, those in `turns` included.
    held: usize,
    /// The thread waits, or is about to, and has to be woken for more.
    asleep: bool,
    death: Option<Cause>,
}

impl Pending {
    /// # Errors
    /// The process or the system is out of descriptors.
    pub(super) fn new(completions: &Arc<CompletionQueue>) -> io::Result<Self> {
        let state = PendingState { order: Turns::new(), held: 0, asleep: false, death: None };
        Ok(Self {
            state: Mutex::new(state),
            waker: Waker::new()?,
            closing: AtomicBool::new(false),
            queued_bytes: AtomicU64::new(0),
            completions: Arc::clone(completions),
        })
    }

    /// Puts an operation behind the others.
    pub(super) fn post(&self, operation: Operation) -> Result<(), Unposted> {
        let mut state = self.state.lock();
        if state.death.is_some() || self.is_closing() {
            return Err(Unposted { operation, why: WhyUnposted::Dead });
        }
        if state.held >= RAIL_OPERATIONS_MAX {
            return Err(Unposted { operation, why: WhyUnposted::Full });
        }
        let posted = self.completions.admit(operation)?;
        self.queued_bytes.fetch_add(u64::from(posted.operation().bytes()), Ordering::Relaxed);
        state.order.push(posted);
        state.held += 1;
        let wake = std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.waker.wake();
        }
        Ok(())
    }

    /// The next operation to begin, if one may.
    pub(super) fn next(&self, reads_unanswered: usize) -> Option<Posted> {
        self.state.lock().order.next(reads_unanswered)
    }

    /// Says that the thread is about to wait; false if there is something to begin first. Undone by
    /// [`Pending::awake`].
    pub(super) fn fall_asleep(&self, may_begin: bool, reads_unanswered: usize) -> bool {
        let mut state = self.state.lock();
        let idle = !may_begin || !state.order.has_next(reads_unanswered);
        state.asleep = idle && may_begin;
        idle
    }

    /// The thread waits no more.
    pub(super) fn awake(&self) {
        self.state.lock().asleep = false;
    }

    /// An operation that had begun ended.
    pub(super) fn complete(&self, posted: Posted, outcome: Outcome) {
        self.queued_bytes.fetch_sub(u64::from(posted.operation().bytes()), Ordering::Relaxed);
        self.state.lock().held -= 1;
        posted.complete(outcome);
    }

    /// The thread ended: those that never began are cancelled, and no more come.
    pub(super) fn die(&self, cause: Cause) {
        let mut state = self.state.lock();
        state.death.get_or_insert(cause);
        let left = state.order.drain();
        drop(state);
        for posted in left {
            self.complete(posted, Outcome::Failed(Cause::Cancelled));
        }
    }

    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(super) fn death(&self) -> Option<Cause> {
        let death = self.state.lock().death.clone();
        death.or_else(|| self.is_closing().then_some(Cause::Cancelled))
    }

    pub(super) fn queued_bytes(&self) -> u64 {
        self.queued_bytes.load(Ordering::Relaxed)
    }
}

/// Operations that have not begun, and whose turn it is.
#[derive(Debug)]
struct Turns {
    reads: VecDeque<Posted>,
    writes: VecDeque<Posted>,
    turn: Direction,
    turn_bytes: u64,
}

impl Turns {
    fn new() -> Self {
        Self { reads: VecDeque::new(), writes: VecDeque::new(), turn: Direction::Read, turn_bytes: 0 }
    }

    fn push(&mut self, posted: Posted) {
        match posted.operation().direction() {
            Direction::Read => self.reads.push_back(posted),
            Direction::Write => self.writes.push_back(posted),
        }
    }

    fn next(&mut self, reads_unanswered: usize) -> Option<Posted> {
        let turn = self.turn_now();
        if turn == Direction::Write && reads_unanswered > 0 {
            return None;
        }
        let posted = match turn {
            Direction::Read => self.reads.pop_front(),
            Direction::Write => self.writes.pop_front(),
        }?;
        if turn != self.turn {
            (self.turn, self.turn_bytes) = (turn, 0);
        }
        self.turn_bytes += u64::from(posted.operation().bytes());
        Some(posted)
    }

    fn has_next(&self, reads_unanswered: usize) -> bool {
        match self.turn_now() {
            Direction::Read => !self.reads.is_empty(),
            Direction::Write => !self.writes.is_empty() && reads_unanswered == 0,
        }
    }

    /// The direction in which the next operation goes.
    fn turn_now(&self) -> Direction {
        let (mine, others, other) = match self.turn {
            Direction::Read => (&self.reads, &self.writes, Direction::Write),
            Direction::Write => (&self.writes, &self.reads, Direction::Read),
        };
        let over = mine.is_empty() || self.turn_bytes >= RAIL_TURN_BYTES;
        if over && !others.is_empty() { other } else { self.turn }
    }

    fn drain(&mut self) -> Vec<Posted> {
        self.reads.drain(..).chain(self.writes.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests;
