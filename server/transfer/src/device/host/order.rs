//! What must come before what on a host device. Owns: the logical clocks of its streams, finding work on the
//! same bytes that nothing orders. Must not know: what the work does.
//!
//! Every call of a stream has a number. A stream's clock says which numbers of all streams are certainly done
//! before its next call begins: its own, those before an event that it waited for, and those that the host
//! saw done.

use std::collections::HashMap;

use super::memory::Extent;
use crate::device::driver::CopyRequest;

/// The last call of each stream that is certainly done.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(HashMap<u64, u64>);

impl Clock {
    fn join(&mut self, other: &Clock) {
        for (stream, number) in &other.0 {
            let known = self.0.entry(*stream).or_default();
            *known = (*known).max(*number);
        }
    }

    fn has(&self, stream: u64, number: u64) -> bool {
        self.0.get(&stream).is_some_and(|known| *known >= number)
    }
}

/// What a call reads and writes.
#[derive(Clone, Debug, Default)]
pub(super) struct Touched {
    /// In order of address.
    reads: Vec<Extent>,
    writes: Vec<Extent>,
}

impl Touched {
    pub(super) fn new(mut reads: Vec<Extent>, mut writes: Vec<Extent>) -> Self {
        reads.sort_unstable();
        writes.sort_unstable();
        Self { reads, writes }
    }

    pub(super) fn of_copies(requests: &[CopyRequest]) -> Self {
        let span = |start, bytes| Extent::new(start, bytes as u64);
        let reads = requests.iter().map(|request| span(request.source, request.bytes)).collect();
        Self::new(reads, requests.iter().map(|request| span(request.target, request.bytes)).collect())
    }

    pub(super) fn ranges(&self) -> impl Iterator<Item = Extent> {
        self.reads.iter().chain(&self.writes).copied()
    }

    /// Where this and another call must not run at once.
    fn conflict(&self, other: &Touched) -> Option<Extent> {
        overlap(&self.writes, &other.writes)
            .or_else(|| overlap(&self.writes, &other.reads))
            .or_else(|| overlap(&self.reads, &other.writes))
    }
}

/// A piece of both lists, which are in order of address; pieces of one list do not overlap much.
fn overlap(some: &[Extent], others: &[Extent]) -> Option<Extent> {
    let (mut at, mut other_at) = (0, 0);
    while let (Some(one), Some(other)) = (some.get(at), others.get(other_at)) {
        if one.start < other.end && other.start < one.end {
            return Some(Extent { start: one.start.max(other.start), end: one.end.min(other.end) });
        }
        if one.end <= other.end { at += 1 } else { other_at += 1 }
    }
    None
}

#[derive(Debug)]
struct Live {
    stream: u64,
    number: u64,
    touched: Touched,
}

#[derive(Debug, Default)]
pub(super) struct Order {
    clocks: HashMap<u64, Clock>,
    numbers: HashMap<u64, u64>,
    /// What the host saw done.
    host: Clock,
    live: Vec<Live>,
}

impl Order {
    /// Takes note of a call. Says what it must not run beside, but may.
    pub(super) fn begin(&mut self, stream: u64, touched: Touched) -> Option<String> {
        let mut clock = self.clocks.remove(&stream).unwrap_or_default();
        clock.join(&self.host);
        let beside =
            self.live.iter().filter(|live| live.stream != stream && !clock.has(live.stream, live.number));
        let conflict = beside.into_iter().find_map(|live| {
            let span = touched.conflict(&live.touched)?;
            Some(format!("streams {stream} and {} both use {span:?}, and nothing orders them", live.stream))
        });
        let number = self.numbers.entry(stream).or_default();
        *number += 1;
        clock.0.insert(stream, *number);
        self.live.push(Live { stream, number: *number, touched });
        self.clocks.insert(stream, clock);
        conflict
    }

    /// What is done when all that the stream was given so far is done.
    pub(super) fn clock(&mut self, stream: u64) -> Clock {
        self.clocks.entry(stream).or_default().clone()
    }

    /// The stream waits for all of this.
    pub(super) fn join(&mut self, stream: u64, clock: &Clock) {
        self.clocks.entry(stream).or_default().join(clock);
    }

    /// The host saw that all of this is done: whatever it enqueues from here on comes after.
    pub(super) fn seen(&mut self, clock: &Clock) {
        self.host.join(clock);
        let host = &self.host;
        self.live.retain(|live| !host.has(live.stream, live.number));
    }

    /// Another stream that has work which the host has not seen done.
    pub(super) fn busy_beside(&self, stream: u64) -> Option<u64> {
        self.live.iter().map(|live| live.stream).find(|other| *other != stream)
    }

    /// Whether work that the host has not seen done touches any of it.
    pub(super) fn uses(&self, span: &Extent) -> bool {
        let span = std::slice::from_ref(span);
        self.live.iter().any(|live| {
            overlap(&live.touched.reads, span).or_else(|| overlap(&live.touched.writes, span)).is_some()
        })
    }
}
