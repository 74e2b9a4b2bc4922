//! Which operation starts next. Owns: the order of queued operations and the bound on bytes in flight. Pure.
//! Must not know: rings, threads, what operations do.
//!
//! Reads go first, because somebody waits for them; a waiting write starts after so many reads all the same. Writes have
//! at most half of the bytes in flight, so that a read never queues behind a whole window of them. Within a kind, order
//! is kept.

use crate::limits::{INFLIGHT_OPS_MAX, READS_PER_WRITE};
use std::collections::VecDeque;

/// What the schedule needs to know of an operation.
pub(crate) trait Job {
    /// Reads go before writes.
    fn is_read(&self) -> bool;
    /// Its part of the bytes in flight.
    fn bytes(&self) -> u64;
}

impl Job for super::operation::Operation {
    fn is_read(&self) -> bool {
        super::operation::Operation::is_read(self)
    }
    fn bytes(&self) -> u64 {
        self.device_bytes()
    }
}

/// Queued operations, and how much is in flight.
#[derive(Debug)]
pub(crate) struct Schedule<J> {
    reads: VecDeque<J>,
    writes: VecDeque<J>,
    bytes_max: u64,
    inflight_bytes: u64,
    inflight_write_bytes: u64,
    inflight_ops: usize,
    reads_since_write: u32,
}

impl<J: Job> Schedule<J> {
    /// Nothing queued, nothing in flight.
    pub(crate) fn new(bytes_max: u64) -> Schedule<J> {
        Schedule {
            reads: VecDeque::new(),
            writes: VecDeque::new(),
            bytes_max,
            inflight_bytes: 0,
            inflight_write_bytes: 0,
            inflight_ops: 0,
            reads_since_write: 0,
        }
    }

    /// Queues an operation. How many there are is bounded where they are accepted.
    pub(crate) fn push(&mut self, job: J) {
        if job.is_read() { self.reads.push_back(job) } else { self.writes.push_back(job) }
    }

    /// The next operation to start, if there is room in flight for one.
    pub(crate) fn next(&mut self) -> Option<J> {
        if self.inflight_ops >= INFLIGHT_OPS_MAX {
            return None;
        }
        let write_fits = self.writes.front().is_some_and(|job| self.write_fits(job.bytes()));
        let write_due = self.reads_since_write >= READS_PER_WRITE;
        let write_waits = self.writes.front().is_some_and(|job| self.is_within_half(job.bytes()));
        let job = match self.reads.front() {
            Some(_) if write_fits && write_due => self.writes.pop_front()?,
            // Smaller reads would take all that comes free before it is enough for the write.
            Some(_) if write_waits && write_due => return None,
            Some(read) if self.fits(read.bytes()) => self.reads.pop_front()?,
            Some(_) => return None,
            None if write_fits => self.writes.pop_front()?,
            None => return None,
        };
        self.inflight_ops += 1;
        self.inflight_bytes += job.bytes();
        if job.is_read() {
            self.reads_since_write = self.reads_since_write.saturating_add(1);
        } else {
            self.reads_since_write = 0;
            self.inflight_write_bytes += job.bytes();
        }
        Some(job)
    }

    fn fits(&self, bytes: u64) -> bool {
        self.inflight_bytes == 0 || self.inflight_bytes + bytes <= self.bytes_max
    }

    fn write_fits(&self, bytes: u64) -> bool {
        self.is_within_half(bytes) && self.fits(bytes)
    }

    /// Whether a write waits for no other write.
    fn is_within_half(&self, bytes: u64) -> bool {
        self.inflight_write_bytes == 0 || self.inflight_write_bytes + bytes <= self.bytes_max / 2
    }

    /// An operation that was started has ended.
    pub(crate) fn ended(&mut self, job: &J) {
        assert!(self.inflight_ops > 0, "an operation ends once");
        self.inflight_ops -= 1;
        self.inflight_bytes -= job.bytes();
        if !job.is_read() {
            self.inflight_write_bytes -= job.bytes();
        }
    }

    /// Bytes in flight.
    pub(crate) fn inflight_bytes(&self) -> u64 {
        self.inflight_bytes
    }

    /// Is nothing queued?
    pub(crate) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty()
    }

    /// Takes everything queued, whatever is in flight.
    pub(crate) fn drain(&mut self) -> Vec<J> {
        self.reads.drain(..).chain(self.writes.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests;
