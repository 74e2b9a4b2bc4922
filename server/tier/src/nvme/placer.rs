//! Giving writes their place. Owns: which waits, and that what moves goes first. Must not know: who writes,
//! how bytes are carried.

use super::core::{Core, Pending, call};
use super::engine::Driver;
use super::log::Append;
use super::operation::{Operation, Work};
use crate::tier::TierError;
use std::sync::Arc;

/// Places writes in the log and gives them to the engine; the keeper and the callers share it.
pub(super) struct Placer {
    pub(super) core: Arc<Core>,
    pub(super) engine: Driver,
}

impl Placer {
    /// Places a write and gives it to the engine, unless others wait already or it must wait itself. What
    /// moves waits for other moves only: new extents wait for the room that these make.
    pub(super) fn place(&self, pending: Pending) {
        let mut books = self.core.books.lock();
        let ahead = match pending.reserve {
            true => books.waiting.partition_point(|other| other.reserve),
            false => books.waiting.len(),
        };
        if ahead > 0 && books.stop.is_none() {
            books.waiting.insert(ahead, pending);
            return;
        }
        let append = books.log.append(&pending.meta, pending.reserve);
        let wake = books.log.has_full() || books.log.wants_segment();
        match append {
            Append::Wait if books.stop.is_none() && self.core.poisoned().is_none() => {
                books.waiting.insert(ahead, pending);
            }
            append => {
                drop(books);
                self.settle(pending, append);
            }
        }
        if wake {
            self.core.chore.notify_one();
        }
    }

    /// The keeper did something: writes that waited may have a place now.
    pub(super) fn place_waiting(&self) {
        loop {
            let mut books = self.core.books.lock();
            let Some(pending) = books.waiting.pop_front() else { return };
            let append = books.log.append(&pending.meta, pending.reserve);
            let go_on = books.stop.is_none() && self.core.poisoned().is_none();
            if matches!(append, Append::Wait) && go_on {
                books.waiting.push_front(pending);
                return;
            }
            drop(books);
            self.settle(pending, append);
        }
    }

    fn settle(&self, pending: Pending, append: Append) {
        let Pending { source, done, .. } = pending;
        let error = match append {
            Append::Placed(placed) => {
                let (at, nonce) = (placed.at, placed.nonce);
                let work = Work::Write { source, record: Box::new(placed.record), nonce, done };
                return self.engine.submit(Operation { file: placed.file, at, work });
            }
            Append::Full => TierError::Full,
            Append::Wait if self.core.poisoned().is_some() => TierError::Poisoned,
            Append::Wait => TierError::Closed,
        };
        self.core.retire();
        call(done, Err(error));
    }
}
