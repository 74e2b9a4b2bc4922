//! Operations under way on one pair. Owns: cutting them into parts, which part is whose, when an operation
//! is over. Must not know: threads, the pair.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::fabric::completion::Posted;
use crate::fabric::onesided::locals::Local;
use crate::fabric::onesided::pair::{LandedPart, Part};
use crate::fabric::operation::{Cause, Outcome};
use crate::limits::RAIL_BATCH_MAX;

/// The operations that a pair was given, or soon will be.
pub(super) struct Flights<M> {
    part_bytes_max: u32,
    works: Vec<Option<FlightWork<M>>>,
    works_free: Vec<u32>,
    /// By token.
    parts: Vec<Option<FlightPiece>>,
    parts_free: Vec<u32>,
    /// Tokens of parts that the pair has not taken yet, in order.
    waiting: VecDeque<u32>,
    /// The one operation that is not cut to its end.
    cutting: Option<u32>,
}

/// An operation that is over. Its registration goes before its slot does.
pub(super) struct Finished<M> {
    local: Arc<Local<M>>,
    posted: Posted,
    outcome: Outcome,
}

struct FlightWork<M> {
    local: Arc<Local<M>>,
    posted: Posted,
    /// Bytes that were cut off so far.
    cut: u32,
    /// Parts that were cut off and have not landed.
    parts: u32,
    fault: Option<Cause>,
}

#[derive(Clone, Copy)]
struct FlightPiece {
    work: u32,
    offset: u32,
    bytes: u32,
    /// The pair has taken it.
    given: bool,
}

impl<M> Flights<M> {
    pub(super) fn new(parts_max: usize, part_bytes_max: u32) -> Self {
        assert!(parts_max > 0 && part_bytes_max > 0, "a pair takes one part of one byte");
        let tokens = u32::try_from(parts_max).unwrap_or(u32::MAX);
        Self {
            part_bytes_max,
            works: Vec::new(),
            works_free: Vec::new(),
            parts: vec![None; tokens as usize],
            parts_free: (0..tokens).rev().collect(),
            waiting: VecDeque::new(),
            cutting: None,
        }
    }

    /// Whether another operation could begin now.
    pub(super) fn has_room(&self) -> bool {
        self.cutting.is_none() && !self.parts_free.is_empty()
    }

    /// Whether nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.works_free.len() == self.works.len()
    }

    /// Parts that the pair has.
    pub(super) fn given(&self) -> usize {
        self.parts.len() - self.parts_free.len() - self.waiting.len()
    }

    /// Begins an operation. There must be room.
    pub(super) fn begin(&mut self, posted: Posted, local: Arc<Local<M>>) {
        assert!(self.has_room(), "whoever begins an operation looked for room");
        let work = FlightWork { local, posted, cut: 0, parts: 0, fault: None };
        let index = match self.works_free.pop() {
            Some(index) => {
                self.works[index as usize] = Some(work);
                index
            }
            None => {
                self.works.push(Some(work));
                // As many operations as parts at most, and these are counted with 32 bits.
                u32::try_from(self.works.len() - 1).unwrap_or(u32::MAX)
            }
        };
        self.cutting = Some(index);
        self.cut();
    }

    /// Parts for the pair, those that wait longest first.
    pub(super) fn batch(&mut self) -> Vec<Part<'_, M>> {
        self.cut();
        self.waiting.iter().take(RAIL_BATCH_MAX).filter_map(|&token| self.part(token)).collect()
    }

    /// The pair took so many of the last batch.
    pub(super) fn taken(&mut self, parts: usize) {
        assert!(parts <= self.waiting.len(), "a pair takes what it was shown");
        for token in self.waiting.drain(..parts) {
            if let Some(piece) = self.parts.get_mut(token as usize).and_then(Option::as_mut) {
                piece.given = true;
            }
        }
    }

    /// The pair broke at the first part that it did not take: its operation has the cause.
    pub(super) fn blame(&mut self, cause: &Cause) {
        let piece = self.waiting.front().and_then(|&token| self.parts.get(token as usize).copied().flatten());
        let work = piece.and_then(|piece| self.works.get_mut(piece.work as usize)?.as_mut());
        if let Some(work) = work {
            work.fault.get_or_insert_with(|| cause.clone());
        }
    }

    /// A part landed; gives its operation if that is over now. A token that no part has, or one that the pair
    /// has not taken yet, is the library's mistake and changes nothing.
    pub(super) fn landed(&mut self, landed: LandedPart) -> Option<Finished<M>> {
        let piece = self.parts.get_mut(landed.token as usize)?.take_if(|piece| piece.given)?;
        self.parts_free.push(landed.token);
        let slot = self.works.get_mut(piece.work as usize)?;
        let work = slot.as_mut()?;
        work.parts -= 1;
        if let Err(cause) = landed.outcome
            && work.fault.as_ref().is_none_or(|fault| *fault == Cause::Cancelled)
        {
            work.fault = Some(cause);
        }
        if work.parts > 0 || self.cutting == Some(piece.work) {
            return None;
        }
        self.works_free.push(piece.work);
        slot.take().map(|work| work.finish(None))
    }

    /// The pair is destroyed: all that was under way failed, those that have no cause of their own by this
    /// one.
    pub(super) fn end(&mut self, cause: &Cause) -> Vec<Finished<M>> {
        self.cutting = None;
        self.waiting.clear();
        self.parts.fill(None);
        self.parts_free = (0..u32::try_from(self.parts.len()).unwrap_or(u32::MAX)).rev().collect();
        self.works_free.clear();
        self.works.drain(..).flatten().map(|work| work.finish(Some(cause))).collect()
    }

    fn cut(&mut self) {
        while let Some(index) = self.cutting {
            let Some(work) = self.works[index as usize].as_mut() else { break };
            let left = work.posted.operation().bytes() - work.cut;
            if left == 0 {
                self.cutting = None;
                break;
            }
            let Some(token) = self.parts_free.pop() else { break };
            let bytes = left.min(self.part_bytes_max);
            self.parts[token as usize] =
                Some(FlightPiece { work: index, offset: work.cut, bytes, given: false });
            self.waiting.push_back(token);
            work.cut += bytes;
            work.parts += 1;
            if work.cut == work.posted.operation().bytes() {
                self.cutting = None;
            }
        }
    }

    fn part(&self, token: u32) -> Option<Part<'_, M>> {
        let piece = self.parts.get(token as usize)?.as_ref()?;
        let work = self.works.get(piece.work as usize)?.as_ref()?;
        let operation = work.posted.operation();
        let (remote, slot) = (operation.remote(), operation.local());
        Some(Part {
            token,
            direction: operation.direction(),
            local: NonNull::new(slot.as_ptr().wrapping_add(piece.offset as usize))?,
            bytes: piece.bytes,
            remote: remote.region().base + remote.offset() + u64::from(piece.offset),
            key: remote.region().key,
            memory: work.local.memory(),
        })
    }
}

impl<M> FlightWork<M> {
    fn finish(self, ended: Option<&Cause>) -> Finished<M> {
        let outcome = match (self.fault, ended) {
            (Some(Cause::Cancelled) | None, Some(cause)) => Outcome::Failed(cause.clone()),
            (Some(cause), _) => Outcome::Failed(cause),
            (None, None) => Outcome::Done,
        };
        Finished { local: self.local, posted: self.posted, outcome }
    }
}

impl<M> Finished<M> {
    /// Bytes that it was to move.
    pub(super) fn bytes(&self) -> u32 {
        self.posted.operation().bytes()
    }

    /// Tells whoever waits for it.
    pub(super) fn complete(self) {
        drop(self.local);
        self.posted.complete(self.outcome);
    }
}

#[cfg(test)]
mod tests;
