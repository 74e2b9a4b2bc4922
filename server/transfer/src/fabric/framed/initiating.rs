//! The thread of the server's end. Owns: which operations have begun, matching answers to them, moving bytes
//! between slots and the connection. Must not know: who posted them.
//!
//! ```text
//!             READ: header leaves ............ DATA: payload into the slot -> Done
//! posted -> begun                              NACK -> Failed(Refused)
//!             WRITE: header and payload leave  ACK -> Done
//! ```
//! Answers come in the order in which operations began. Whatever else comes ends the rail.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::inbox::Inbox;
use super::outbox::Outbox;
use super::pace::Pace;
use super::pending::Pending;
use super::stream::{Awaited, FramedStream, cause_of, moved};
use super::wire::{Answered, Asked, Range, Reply, Request};
use crate::fabric::completion::Posted;
use crate::fabric::operation::{Cause, Direction, Operation, Outcome};
use crate::limits::{RAIL_BEGUN_FEW, RAIL_BEGUN_MAX};

/// A data connection, seen from the server.
#[derive(Debug)]
pub(super) struct Initiating {
    stream: FramedStream,
    pending: Arc<Pending>,
    pace: Pace,
    inbox: Inbox,
    outbox: Outbox,
    /// In the order in which they began and are answered.
    begun: VecDeque<Posted>,
    /// The number on the wire of the first of them.
    first: u32,
    /// How many of them are READs.
    reads: usize,
    /// Bytes that left of the last one's payload, while it is leaving.
    sent: Option<usize>,
    /// Bytes that came of the first one's payload, while it is coming.
    received: Option<usize>,
    /// Bytes of WRITEs that were answered.
    answered_bytes: u64,
}

impl Initiating {
    pub(super) fn new(stream: FramedStream, pending: Arc<Pending>, stall: Duration) -> Self {
        Self {
            stream,
            pending,
            pace: Pace::new(stall),
            inbox: Inbox::new(),
            outbox: Outbox::new(),
            begun: VecDeque::with_capacity(RAIL_BEGUN_MAX),
            first: 0,
            reads: 0,
            sent: None,
            received: None,
            answered_bytes: 0,
        }
    }

    /// Says something before the first header.
    pub(super) fn say(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        self.stream.write_all_by(bytes, deadline)
    }

    /// Serves the connection until it ends; then everything that was posted is complete.
    pub(super) fn run(mut self) {
        let cause = loop {
            if let Err(cause) = self.step() {
                break cause;
            }
        };
        self.end(cause);
    }

    fn step(&mut self) -> Result<(), Cause> {
        if self.pending.is_closing() {
            return Err(Cause::Cancelled);
        }
        if self.turn()? { Ok(()) } else { self.wait() }
    }

    /// Begins, sends and receives what can be without waiting; false if that is nothing. While enough is under way,
    /// operations begin only in a pause, so that several requests leave together.
    fn turn(&mut self) -> Result<bool, Cause> {
        let began = self.wants_more() && self.begin();
        let sent = self.send()?;
        let received = self.receive()?;
        Ok(began || sent || received || self.begin())
    }

    /// Whether the peer could soon have nothing to do.
    fn wants_more(&self) -> bool {
        self.begun.len() < RAIL_BEGUN_FEW
    }

    fn may_begin(&self) -> bool {
        self.sent.is_none() && self.begun.len() < RAIL_BEGUN_MAX && !self.outbox.is_full()
    }

    fn begin(&mut self) -> bool {
        let mut began = false;
        while self.may_begin()
            && let Some(posted) = self.pending.next(self.reads)
        {
            began = true;
            let operation = posted.operation();
            self.outbox.push(request(operation, self.first.wrapping_add(self.begun.len() as u32)).encode());
            match operation.direction() {
                Direction::Read => self.reads += 1,
                Direction::Write => self.sent = Some(0),
            }
            self.begun.push_back(posted);
        }
        began
    }

    fn send(&mut self) -> Result<bool, Cause> {
        let (payload, sent): (&[u8], _) = match (self.sent, self.begun.back()) {
            (Some(sent), Some(posted)) => {
                let slot = posted.operation().local();
                // SAFETY: the rest of the slot is mapped for as long as `posted`, which stays in `begun` until
                // it is answered. The slice ends with the call that sends its bytes and looks at none; that
                // nobody writes the slot meanwhile is its lease, and a broken lease fails the checksum.
                let rest = unsafe {
                    std::slice::from_raw_parts(slot.as_ptr().add(sent).cast_const(), slot.len() - sent)
                };
                (rest, sent)
            }
            _ if self.outbox.is_empty() => return Ok(false),
            _ => (&[], 0),
        };
        let left = payload.len();
        let Some(now) = moved(self.outbox.send(&mut self.stream, payload))? else { return Ok(false) };
        if self.sent.is_some() {
            self.sent = (now < left).then_some(sent + now);
            if self.sent.is_none() {
                // Where there is always room nobody waits, and answers would lie unread.
                self.stream.look_again();
            }
        }
        Ok(true)
    }

    fn receive(&mut self) -> Result<bool, Cause> {
        let Some(received) = self.received else {
            let alone = self.reads == 0;
            let Some(header) = moved(self.inbox.header(&mut self.stream, alone))? else { return Ok(false) };
            self.answer(Reply::decode(&header)?)?;
            return Ok(true);
        };
        let Some(posted) = self.begun.front() else { return Err(UNASKED) };
        let slot = posted.operation().local();
        // SAFETY: as in `send`; nobody else uses the slot while it is being filled, which is its lease.
        let rest =
            unsafe { std::slice::from_raw_parts_mut(slot.as_ptr().add(received), slot.len() - received) };
        let left = rest.len();
        let Some(now) = moved(self.inbox.payload(&mut self.stream, rest, left))? else { return Ok(false) };
        if now < left {
            self.received = Some(received + now);
        } else {
            self.received = None;
            self.complete_first(Outcome::Done);
        }
        Ok(true)
    }

    /// Does what an answer says, if it fits the first operation that has begun.
    fn answer(&mut self, reply: Reply) -> Result<(), Cause> {
        let Some(posted) = self.begun.front() else { return Err(UNASKED) };
        if reply.op != self.first {
            return Err(UNASKED);
        }
        if self.begun.len() == 1 && (self.sent.is_some() || !self.outbox.is_empty()) {
            return Err(Cause::Protocol("an answer came before its question had left"));
        }
        let operation = posted.operation();
        match (reply.answered, operation.direction()) {
            (Answered::Data { bytes }, Direction::Read) if bytes == operation.bytes() => {
                // Headers are read several at once only while no READ is under way.
                if self.inbox.has_begun() {
                    return Err(Cause::Protocol("a payload came before it was asked for"));
                }
                self.received = Some(0);
            }
            (Answered::Ack, Direction::Write) => self.complete_first(Outcome::Done),
            (Answered::Refused, _) => self.complete_first(Outcome::Failed(Cause::Refused)),
            _ => return Err(Cause::Protocol("an answer does not fit its question")),
        }
        Ok(())
    }

    fn complete_first(&mut self, outcome: Outcome) {
        if let Some(posted) = self.begun.pop_front() {
            self.first = self.first.wrapping_add(1);
            match posted.operation().direction() {
                Direction::Read => self.reads -= 1,
                Direction::Write => self.answered_bytes += u64::from(posted.operation().bytes()),
            }
            self.pending.complete(posted, outcome);
        }
    }

    /// Bytes by which what is due has come nearer: those that came, and those that left for the first that has begun. What leaves
    /// for others meanwhile only finds room in sockets.
    fn nearer_bytes(&self) -> u64 {
        let of_first = match self.begun.front().map(Posted::operation) {
            Some(first) if first.direction() == Direction::Write => {
                let leaving = self.sent.filter(|_| self.begun.len() == 1);
                leaving.map_or(u64::from(first.bytes()), |sent| sent as u64)
            }
            _ => 0,
        };
        self.stream.read_bytes() + self.answered_bytes + of_first
    }

    /// Waits for the connection or for more to do. A rail that has nothing under way waits for ever.
    fn wait(&mut self) -> Result<(), Cause> {
        // With enough under way its answers wake this thread, and new operations need not.
        if !self.pending.fall_asleep(self.may_begin() && self.wants_more(), self.reads) {
            return Ok(());
        }
        let due = !self.begun.is_empty()
            || !self.outbox.is_empty()
            || self.inbox.has_begun()
            || self.stream.has_unsent();
        let left = self.pace.left(due, self.nearer_bytes())?;
        let awaited = Awaited { bytes: true, room: self.sent.is_some() || !self.outbox.is_empty() };
        let waited = self.stream.wait(awaited, &self.pending.waker, left);
        self.pending.awake();
        waited.map_err(|error| cause_of(&error))
    }

    /// The connection ends before anybody is told: from then on nothing touches a slot.
    fn end(&mut self, cause: Cause) {
        self.stream.shutdown();
        self.pending.die(cause.clone());
        for posted in std::mem::take(&mut self.begun) {
            self.pending.complete(posted, Outcome::Failed(cause.clone()));
        }
    }
}

/// A thread that panicked ends its rail like any other.
impl Drop for Initiating {
    fn drop(&mut self) {
        self.end(Cause::Device("the rail's thread ended".to_owned()));
    }
}

const UNASKED: Cause = Cause::Protocol("an answer came to what was not asked");

fn request(operation: &Operation, op: u32) -> Request {
    let (asked, remote) = match operation.direction() {
        Direction::Read => (Asked::Read, operation.remote()),
        Direction::Write => (Asked::Write, operation.remote()),
    };
    let range = Range { key: remote.region().key, offset: remote.offset(), bytes: remote.bytes() };
    Request { asked, op, range }
}
