//! Giving writes their place. Owns: which waits, and that what moves goes first. Must not know: who writes,
//! how bytes are packed or carried.
//!
//! ```text
//! write -> room? -> packed -> placed -> the engine
//!            |                   |
//!            +---> waits <-------+  what was packed in vain is packed again, so that no memory waits with it
//! ```

use super::core::{Core, Pending, call};
use super::engine::Driver;
use super::log::{Append, Room};
use super::operation::{Operation, Source, Work};
use super::packing::{Outcome, Packed, Packer};
use crate::tier::TierError;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Places writes in the log and gives them to the engine; the keeper and the callers share it.
pub(super) struct Placer {
    pub(super) core: Arc<Core>,
    pub(super) engine: Driver,
    pub(super) packer: Arc<Packer>,
}

impl Placer {
    /// Has a write packed and placed, unless others wait already or it must wait itself. What moves waits for other moves only:
    /// new extents wait for the room that these make.
    pub(super) fn place(&self, pending: Pending) {
        let mut books = self.core.books.lock();
        let ahead = match pending.reserve {
            true => books.waiting.partition_point(|other| other.reserve),
            false => books.waiting.len(),
        };
        let go_on = books.stop.is_none();
        if ahead > 0 && go_on {
            books.waiting.insert(ahead, pending);
            return;
        }
        match books.log.room(pending.meta.payload_bytes, pending.reserve) {
            Room::Later if go_on && self.core.poisoned().is_none() => {
                books.waiting.insert(ahead, pending);
                drop(books);
                self.core.chore.notify_one();
            }
            Room::Later => {
                drop(books);
                self.refuse(pending, Room::Later);
            }
            Room::None => {
                drop(books);
                self.refuse(pending, Room::None);
            }
            Room::Here | Room::Next => {
                drop(books);
                self.pack(pending);
            }
        }
    }

    /// The keeper did something: writes that waited may have a place now.
    pub(super) fn place_waiting(&self) {
        loop {
            let mut books = self.core.books.lock();
            let Some(first) = books.waiting.front() else { return };
            let room = books.log.room(first.meta.payload_bytes, first.reserve);
            if room == Room::Later && books.stop.is_none() && self.core.poisoned().is_none() {
                return;
            }
            let Some(pending) = books.waiting.pop_front() else { return };
            drop(books);
            match room {
                Room::Here | Room::Next => self.pack(pending),
                Room::Later | Room::None => self.refuse(pending, room),
            }
        }
    }

    fn pack(&self, pending: Pending) {
        if self.packer.is_off() {
            return self.put(pending, None);
        }
        if let Some(pending) = self.packer.push(pending) {
            self.packed(pending);
        }
    }

    /// On a packing thread: packs a write, and places it. The room that there was may be gone.
    pub(super) fn packed(&self, pending: Pending) {
        let room = {
            let books = self.core.books.lock();
            books.log.room(pending.meta.payload_bytes, pending.reserve)
        };
        if !matches!(room, Room::Here | Room::Next) {
            return self.wait_again(pending, room);
        }
        match self.packer.pack(&self.core, &pending.meta, &pending.source) {
            Outcome::AsItIs => self.put(pending, None),
            Outcome::Packed(packed) => self.put(pending, Some(packed)),
            Outcome::Changed => {
                self.core.counters.changed_writes.fetch_add(1, Ordering::Relaxed);
                self.core.retire();
                call(pending.done, Err(TierError::Changed));
            }
        }
    }

    fn put(&self, pending: Pending, packed: Option<Packed>) {
        let stored_bytes = packed.as_ref().map_or(pending.meta.payload_bytes, |packed| packed.stored_bytes);
        let mut books = self.core.books.lock();
        let append = books.log.append(&pending.meta, stored_bytes, pending.reserve);
        let wake = books.log.has_full() || books.log.wants_segment();
        drop(books);
        match append {
            Append::Placed(placed) => {
                let Pending { source, done, .. } = pending;
                let source = packed.map_or(Source::Page(source), |packed| Source::Packed(packed.bounce));
                let (at, nonce, record) = (placed.at, placed.nonce, Box::new(placed.record));
                let work = Work::Write { source, record, nonce, done };
                self.begin(Operation { file: placed.file, at, work });
            }
            Append::Wait => {
                drop(packed);
                self.wait_again(pending, Room::Later);
            }
            Append::Full => self.refuse(pending, Room::None),
        }
        if wake {
            self.core.chore.notify_one();
        }
    }

    /// Gives an operation to the engine.
    pub(super) fn begin(&self, operation: Operation) {
        self.core.began(operation.is_read());
        self.engine.submit(operation);
    }

    /// The room that there was went to others: first in line for the next, or refused.
    fn wait_again(&self, pending: Pending, room: Room) {
        let mut books = self.core.books.lock();
        let waits = room == Room::Later && books.stop.is_none() && self.core.poisoned().is_none();
        if !waits {
            drop(books);
            return self.refuse(pending, room);
        }
        let first = if pending.reserve { 0 } else { books.waiting.partition_point(|other| other.reserve) };
        books.waiting.insert(first, pending);
        drop(books);
        self.core.chore.notify_one();
    }

    fn refuse(&self, pending: Pending, room: Room) {
        let error = match self.core.poisoned() {
            _ if room == Room::None => TierError::Full,
            Some(_) => TierError::Poisoned,
            None => TierError::Closed,
        };
        self.core.retire();
        call(pending.done, Err(error));
    }
}
