//! The thread of the client's end. Owns: doing what the server asks, one request after another, with memory
//! that is lent. Must not know: who lent it, what it holds.
//!
//! ```text
//! Listening --READ, lent--> Sending: DATA and payload leave --> Listening
//!     |   \---READ, not lent: NACK--> Listening
//!     \--WRITE--> Receiving: payload into memory (ACK) or, where it is not lent (any more), nowhere (NACK)
//! ```
//! Memory that is taken back while its bytes leave ends the rail at once: what is missing cannot be replaced by
//! anything that the server would not take for the memory's bytes.

use std::sync::Arc;
use std::time::Duration;

use super::domain::{FramedDomain, Lent};
use super::inbox::Inbox;
use super::life::TargetLife;
use super::outbox::Outbox;
use super::pace::Pace;
use super::stream::{Awaited, FramedStream, cause_of, moved};
use super::wire::{Answered, Asked, Reply, Request};
use crate::fabric::operation::Cause;
use crate::limits::DROPPED_BYTES;

/// A data connection, seen from the client.
#[derive(Debug)]
pub(super) struct Serving {
    stream: FramedStream,
    domain: Arc<FramedDomain>,
    life: Arc<TargetLife>,
    pace: Pace,
    inbox: Inbox,
    outbox: Outbox,
    doing: Doing,
    /// Where payloads go that have no place; empty until the first.
    dropped: Vec<u8>,
}

#[derive(Debug)]
enum Doing {
    Listening,
    Sending { from: Arc<Lent>, offset: u64, left: usize },
    Receiving { into: Option<Arc<Lent>>, offset: u64, left: usize, op: u32 },
}

impl Serving {
    pub(super) fn new(
        stream: FramedStream,
        domain: Arc<FramedDomain>,
        life: Arc<TargetLife>,
        stall: Duration,
    ) -> Self {
        Self {
            stream,
            domain,
            life,
            pace: Pace::new(stall),
            inbox: Inbox::new(),
            outbox: Outbox::new(),
            doing: Doing::Listening,
            dropped: Vec::new(),
        }
    }

    /// Serves the connection until it ends.
    pub(super) fn run(mut self) {
        let cause = loop {
            if let Err(cause) = self.step() {
                break cause;
            }
        };
        self.end(cause);
    }

    fn step(&mut self) -> Result<(), Cause> {
        if self.life.is_closing() {
            return Err(Cause::Cancelled);
        }
        if self.turn()? { Ok(()) } else { self.wait() }
    }

    /// Does what can be done without waiting; false if that is nothing. Answers without payload leave
    /// together when nothing more is there to be read.
    fn turn(&mut self) -> Result<bool, Cause> {
        let received = match self.doing {
            Doing::Sending { .. } => return self.send(),
            _ if self.outbox.is_full() => false,
            Doing::Listening => self.listen()?,
            Doing::Receiving { .. } => self.receive()?,
        };
        if received || self.outbox.is_empty() {
            return Ok(received);
        }
        Ok(moved(self.outbox.send(&mut self.stream, &[]))?.is_some())
    }

    fn listen(&mut self) -> Result<bool, Cause> {
        let Some(header) = moved(self.inbox.header(&mut self.stream, false))? else { return Ok(false) };
        let Request { asked, op, range } = Request::decode(&header)?;
        let (offset, left) = (range.offset, range.bytes as usize);
        let lent = self.domain.find(range, asked == Asked::Read);
        match (asked, lent) {
            (Asked::Read, Some(from)) => {
                self.outbox.push(Reply { answered: Answered::Data { bytes: range.bytes }, op }.encode());
                self.life.note_sending(range.key);
                self.doing = Doing::Sending { from, offset, left };
            }
            (Asked::Read, None) => self.outbox.push(Reply { answered: Answered::Refused, op }.encode()),
            (Asked::Write, into) => self.doing = Doing::Receiving { into, offset, left, op },
        }
        Ok(true)
    }

    fn send(&mut self) -> Result<bool, Cause> {
        let Doing::Sending { from, offset, left } = &mut self.doing else { return Ok(false) };
        let (outbox, stream) = (&mut self.outbox, &mut self.stream);
        let sent = from.with(*offset, |address| {
            // SAFETY: `find` checked that the range lies inside the memory, which stays lent while this
            // closure runs and which its owner promised to be mapped and initialised. The slice ends with the
            // call that sends its bytes and looks at none: others may write them, and then a checksum fails.
            let rest = unsafe { std::slice::from_raw_parts(address.cast_const(), *left) };
            outbox.send(stream, rest)
        });
        let Some(sent) = sent else { return Err(Cause::Cancelled) };
        let Some(sent) = moved(sent)? else { return Ok(false) };
        (*offset, *left) = (*offset + sent as u64, *left - sent);
        if *left == 0 {
            self.life.note_sending(0);
            self.doing = Doing::Listening;
        }
        Ok(true)
    }

    fn receive(&mut self) -> Result<bool, Cause> {
        let Doing::Receiving { into, offset, left, op } = &mut self.doing else { return Ok(false) };
        let (inbox, stream) = (&mut self.inbox, &mut self.stream);
        let received = into.as_ref().and_then(|lent| {
            lent.with(*offset, |address| {
                // SAFETY: as in `send`; that no reference to the memory lives is its owner's promise.
                let rest = unsafe { std::slice::from_raw_parts_mut(address, *left) };
                inbox.payload(stream, rest, *left)
            })
        });
        let received = match received {
            Some(received) => received,
            None => {
                *into = None;
                self.dropped.resize(DROPPED_BYTES, 0);
                inbox.payload(stream, &mut self.dropped[..DROPPED_BYTES.min(*left)], *left)
            }
        };
        let Some(received) = moved(received)? else { return Ok(false) };
        (*offset, *left) = (offset.wrapping_add(received as u64), *left - received);
        if *left == 0 {
            let answered = if into.is_some() { Answered::Ack } else { Answered::Refused };
            let op = *op;
            self.doing = Doing::Listening;
            self.outbox.push(Reply { answered, op }.encode());
        }
        Ok(true)
    }

    /// Waits for the connection. A rail that was asked nothing waits for ever.
    fn wait(&mut self) -> Result<(), Cause> {
        let sending = matches!(self.doing, Doing::Sending { .. });
        let listening = matches!(self.doing, Doing::Listening);
        let due = !listening || !self.outbox.is_empty() || self.inbox.has_begun() || self.stream.has_unsent();
        let left = self.pace.left(due, self.stream.moved_bytes())?;
        let awaited =
            Awaited { bytes: !sending && !self.outbox.is_full(), room: sending || !self.outbox.is_empty() };
        let waited = self.stream.wait(awaited, &self.life.waker, left);
        waited.map_err(|error| cause_of(&error))
    }

    fn end(&mut self, cause: Cause) {
        self.stream.shutdown();
        self.life.die(cause);
    }
}

/// A thread that panicked ends its rail like any other.
impl Drop for Serving {
    fn drop(&mut self) {
        self.end(Cause::Device("the rail's thread ended".to_owned()));
    }
}
