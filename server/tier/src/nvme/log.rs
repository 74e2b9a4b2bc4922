//! The books of the segment log: where the next extent goes, and what is alive.
//!
//! Owns: every decision about segments. Pure: it is handed `now`, and returns what to do. Must not know:
//! threads, rings, the bytes of anything.
//!
//! A segment is written once from front to back and becomes free as a whole. It is reused only when no read
//! is in flight on it, when everything written before its release is on stable storage, and always under a
//! new nonce and a new generation.
//!
//! The last segment that has its space on the disk is kept for what reclaim moves: a file that is not made
//! yet may never be. Segments above the tier's number of them (its capacity was lowered) are surplus: they
//! are read and emptied, take nothing new, and are given back when they are empty.
//!
//! - `chores`: what the keeper has to do
//! - `damage`: what cannot be read, and segments that are worn
//! - `durable`: what a sync covers, and which segments wait for one
//! - `notes`: what is known of extents that their bytes do not tell
//! - `restore`: what recovery puts in

use super::config::SealedSegment;
use super::format::{Nonce, Record, entry_blocks, extent_blocks};
use super::segment::{Segment, SegmentState};
use super::segment_file::SegmentFile;
use crate::limits::{BLOCK, RECLAIM_FREE_MIN, RECLAIM_FREE_SHARE, SEGMENTS_RESERVED};
use crate::tier::{ExtentMeta, Location};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

mod chores;
mod damage;
mod durable;
mod notes;
mod restore;

pub(crate) use chores::Chore;
pub use notes::SegmentNote;
pub(crate) use restore::Found;

/// Where an extent was placed.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) file: Arc<SegmentFile>,
    pub(crate) at: Location,
    pub(crate) record: Record,
    pub(crate) nonce: Nonce,
}

/// Answer to an append.
#[derive(Debug)]
pub(crate) enum Append {
    /// Write it there, then call [`Log::written`].
    Placed(Placed),
    /// A segment is being prepared: ask again when the keeper is done.
    Wait,
    /// No segment is free.
    Full,
}

/// Where there is room for an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// In the open segment.
    Here,
    /// In a segment that is prepared.
    Next,
    /// In one that is being prepared, or may be.
    Later,
    /// Nowhere.
    None,
}

/// The books.
#[derive(Debug)]
pub(crate) struct Log {
    segment_blocks: u32,
    segments: Vec<Segment>,
    /// Segments from this number on are surplus.
    limit: u32,
    open: Option<u32>,
    ready: VecDeque<u32>,
    blank: VecDeque<u32>,
    vacant: VecDeque<u32>,
    absent: VecDeque<u32>,
    /// Empty surplus segments that wait for the keeper.
    leaving: VecDeque<u32>,
    full: VecDeque<u32>,
    /// Segments that the keeper is preparing.
    making: usize,
    /// Of these, those that have no space on the disk yet.
    growing: usize,
    next_sequence: u64,
    live_bytes: u64,
    live_extents: u64,
    /// The disk had no space for a segment: when it is asked again.
    retry_disk_at: Option<Instant>,
    /// How long it was left alone for before it is asked then.
    disk_rest: Duration,
    /// The system was short of something: no chore before this moment.
    paused_until: Option<Instant>,
    /// Extents and footers written, since start. What recovery found counts as the first: it may not be
    /// synced.
    changes: u64,
    /// So many of these are on stable storage.
    synced: u64,
    /// Since when a released segment waits for a sync.
    waiting_since: Option<Instant>,
    /// Segments of which something is known that was not taken note of elsewhere.
    unsaved: BTreeSet<u32>,
    /// The segment whose notes were taken last.
    noted: u32,
}

impl Log {
    /// An empty log over so many segments, all without files.
    pub(crate) fn new(segments: u32, segment_blocks: u32) -> Log {
        Log {
            segment_blocks,
            segments: (0..segments).map(|_| Segment::absent()).collect(),
            limit: segments,
            open: None,
            ready: VecDeque::new(),
            blank: VecDeque::new(),
            vacant: VecDeque::new(),
            absent: (0..segments).collect(),
            leaving: VecDeque::new(),
            full: VecDeque::new(),
            making: 0,
            growing: 0,
            next_sequence: 1,
            live_bytes: 0,
            live_extents: 0,
            retry_disk_at: None,
            disk_rest: Duration::ZERO,
            paused_until: None,
            changes: 1,
            synced: 0,
            waiting_since: None,
            unsaved: BTreeSet::new(),
            noted: 0,
        }
    }

    /// Blocks of a segment.
    pub(crate) fn segment_blocks(&self) -> u32 {
        self.segment_blocks
    }

    /// Does a payload fit an empty segment?
    pub(crate) fn fits(&self, payload_bytes: u32) -> bool {
        self.room_after(1, 0, payload_bytes)
    }

    fn room_after(&self, cursor: u32, records: usize, payload_bytes: u32) -> bool {
        let footer = entry_blocks(records + 1) + 1;
        u64::from(cursor) + u64::from(extent_blocks(payload_bytes)) + u64::from(footer)
            <= u64::from(self.segment_blocks)
    }

    /// Takes space for an extent of which so many bytes are stored. `reserve`: may take the last segment that has space on the disk, and what
    /// is left of it.
    pub(crate) fn append(&mut self, meta: &ExtentMeta, stored_bytes: u32, reserve: bool) -> Append {
        match self.room(stored_bytes, reserve) {
            Room::Here => {}
            Room::Next => self.open_next(),
            Room::Later => return Append::Wait,
            Room::None => return Append::Full,
        }
        match self.place(meta, stored_bytes) {
            Some(placed) => Append::Placed(placed),
            None => Append::Full,
        }
    }

    /// Where an extent would go.
    pub(crate) fn room(&self, stored_bytes: u32, reserve: bool) -> Room {
        if self.has_room(stored_bytes) && (reserve || !self.is_for_moves()) {
            return Room::Here;
        }
        let kept = if reserve { 0 } else { SEGMENTS_RESERVED };
        match self.allocated() > kept {
            true if self.ready.is_empty() => Room::Later,
            true => Room::Next,
            false if self.may_grow() => Room::Later,
            false => Room::None,
        }
    }

    /// The next prepared segment becomes the open one.
    fn open_next(&mut self) {
        if let Some(next) = self.ready.pop_front() {
            self.fill_open();
            let segment = &mut self.segments[next as usize];
            assert_eq!(segment.state, SegmentState::Ready, "only a prepared segment is opened");
            segment.state = SegmentState::Open;
            self.open = Some(next);
        }
    }

    /// Is the rest of the open segment for what moves out of another one? It is the last there is, and if new
    /// extents filled it, those that are to stay would have nowhere to go.
    fn is_for_moves(&self) -> bool {
        let empties = |segment: &Segment| {
            matches!(segment.state, SegmentState::Full | SegmentState::Sealed | SegmentState::Claimed)
        };
        self.free_segments() < SEGMENTS_RESERVED && self.segments.iter().any(empties)
    }

    fn place(&mut self, meta: &ExtentMeta, stored_bytes: u32) -> Option<Placed> {
        let number = self.open?;
        let segment = &mut self.segments[number as usize];
        let file = Arc::clone(segment.file.as_ref()?);
        let (block, sequence) = (segment.cursor, self.next_sequence);
        let record = Record { meta: meta.clone(), block, sequence, stored_bytes };
        self.next_sequence += 1;
        segment.cursor += record.blocks();
        segment.writes += 1;
        segment.records.push(record.clone());
        segment.add(&record);
        let at = segment.at(number, record.block);
        Some(Placed { file, at, record, nonce: segment.nonce })
    }

    /// Closes the open segment to further extents.
    pub(crate) fn fill_open(&mut self) {
        if let Some(open) = self.open.take() {
            let segment = &mut self.segments[open as usize];
            segment.state = SegmentState::Full;
            segment.filled_at = self.next_sequence;
            self.full.push_back(open);
        }
    }

    /// A write ended. Only a good one is alive, and counted.
    pub(crate) fn written(&mut self, at: Location, payload_bytes: u32, good: bool) {
        let segment = &mut self.segments[usize::from(at.segment)];
        assert!(segment.writes > 0 && segment.is_current(at), "a write ends once");
        segment.writes -= 1;
        if good {
            self.changes += 1;
            segment.changed_at = self.changes;
            self.live_bytes += segment.revive(at.block, payload_bytes);
            self.live_extents += 1;
        } else {
            segment.records.retain(|record| record.block != at.block);
        }
    }

    /// Is any extent packed?
    pub(crate) fn has_packed(&self) -> bool {
        self.segments.iter().any(Segment::has_packed)
    }

    /// The file to read a live extent from, and the bytes that are stored of it; the segment is not reused before
    /// [`Log::read_ended`].
    pub(crate) fn begin_read(&mut self, at: Location, payload_bytes: u32) -> Option<(Arc<SegmentFile>, u32)> {
        let segment = self.segments.get_mut(usize::from(at.segment))?;
        let stored_bytes = segment.stored_bytes(at.block, payload_bytes);
        let end = u64::from(at.block) + u64::from(extent_blocks(stored_bytes));
        let inside = end < u64::from(self.segment_blocks);
        if !inside || !segment.is_readable() || !segment.is_current(at) || !segment.is_live(at.block) {
            return None;
        }
        let file = segment.file.clone()?;
        segment.reads += 1;
        Some((file, stored_bytes))
    }

    /// A read ended.
    pub(crate) fn read_ended(&mut self, at: Location) {
        let segment = &mut self.segments[usize::from(at.segment)];
        assert!(segment.reads > 0 && segment.is_current(at), "a read ends once");
        segment.reads -= 1;
        self.leave_if_idle(at.segment.into());
    }

    /// Nobody needs an extent any more: it is dead, also after a restart.
    pub(crate) fn forget(&mut self, at: Location, payload_bytes: u32) {
        if self.kill(at, payload_bytes) {
            self.note_dead(at);
        }
    }

    /// An extent is dead. True: it was alive. A sealed segment with nothing alive is free as soon as a sync
    /// covers what was written so far. A place of an earlier use of the segment is ignored.
    pub(crate) fn kill(&mut self, at: Location, payload_bytes: u32) -> bool {
        let Some(segment) = self.segments.get_mut(usize::from(at.segment)) else { return false };
        if !segment.is_current(at) {
            return false;
        }
        let freed = segment.kill(at.block, payload_bytes);
        if freed == 0 {
            return false;
        }
        self.live_bytes -= freed.min(self.live_bytes);
        self.live_extents -= 1;
        if segment.state == SegmentState::Sealed && segment.live_extents == 0 {
            self.leave(at.segment.into());
        }
        true
    }

    /// Everything in a claimed segment is dead; in a worn one, whatever is still alive stays readable.
    /// `false` if it is not claimed.
    pub(crate) fn release(&mut self, number: u32) -> bool {
        let claimed = |segment: &&mut Segment| segment.state == SegmentState::Claimed;
        let Some(segment) = self.segments.get_mut(number as usize).filter(claimed) else { return false };
        if segment.worn && segment.live_extents > 0 {
            segment.state = SegmentState::Retired;
        } else {
            self.leave(number);
        }
        true
    }

    /// Nothing in a segment counts any more.
    fn leave(&mut self, number: u32) {
        let segment = &mut self.segments[number as usize];
        debug_assert!(
            matches!(segment.state, SegmentState::Sealed | SegmentState::Claimed),
            "only what has its footer leaves"
        );
        self.live_bytes -= segment.live_bytes.min(self.live_bytes);
        self.live_extents -= u64::from(segment.live_extents).min(self.live_extents);
        (segment.live_bytes, segment.plain_bytes) = (0, 0);
        segment.live_extents = 0;
        segment.released_at = self.changes;
        segment.state = SegmentState::Leaving;
        self.leave_if_idle(number);
    }

    fn leave_if_idle(&mut self, number: u32) {
        let segment = &mut self.segments[number as usize];
        if segment.state != SegmentState::Leaving || segment.reads > 0 {
            return;
        }
        segment.clear();
        self.unsaved.remove(&number);
        if segment.worn {
            segment.state = SegmentState::Retired;
            return;
        }
        segment.state = SegmentState::Vacant;
        if number < self.limit { self.vacant.push_back(number) } else { self.leaving.push_back(number) }
    }

    /// A claimed segment is not reclaimed after all.
    pub(crate) fn keep(&mut self, number: u32) {
        if let Some(segment) = self.segments.get_mut(number as usize)
            && segment.state == SegmentState::Claimed
        {
            segment.state = SegmentState::Sealed;
        }
    }

    /// Claims the sealed segment of which the most is gained. Surplus segments first, unless what they hold
    /// has no room.
    pub(crate) fn claim(&mut self, gain: impl Fn(&SealedSegment) -> f64) -> Option<u32> {
        let now = self.next_sequence;
        let gain = |number: usize, segment: &Segment| {
            gain(&SealedSegment {
                segment: number as u16,
                bytes: u64::from(self.segment_blocks) * BLOCK as u64,
                live_bytes: segment.live_bytes,
                age: now.saturating_sub(segment.filled_at) + 1,
            })
        };
        let shrink = self.has_surplus() && !self.is_low();
        let first = |number: usize| self.is_surplus(number as u32) == shrink;
        let sealed =
            self.segments.iter().enumerate().filter(|(_, segment)| segment.state == SegmentState::Sealed);
        let pays = sealed.map(|(number, segment)| (number, (first(number), gain(number, segment))));
        let best = pays.max_by(|(_, one), (_, other)| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)))?.0;
        self.segments[best].state = SegmentState::Claimed;
        Some(best as u32)
    }

    /// A segment's books.
    pub(crate) fn segment(&self, number: u32) -> &Segment {
        &self.segments[number as usize]
    }

    /// Is it time to reclaim?
    pub(crate) fn needs_reclaim(&self) -> bool {
        self.is_low() || self.has_surplus()
    }

    fn is_low(&self) -> bool {
        self.free_segments() <= spare_segments(self.capacity_segments())
    }

    /// Is a segment beyond the capacity?
    pub(crate) fn is_surplus(&self, number: u32) -> bool {
        number >= self.limit
    }

    fn surplus(&self) -> &[Segment] {
        &self.segments[self.limit as usize..]
    }

    /// Does a surplus segment wait to be emptied?
    fn has_surplus(&self) -> bool {
        self.surplus().iter().any(|segment| segment.state == SegmentState::Sealed)
    }

    /// Segments beyond the capacity that still take space.
    pub(crate) fn surplus_segments(&self) -> u64 {
        self.surplus().iter().filter(|segment| segment.file.is_some()).count() as u64
    }

    /// Free segments that have their space on the disk.
    fn allocated(&self) -> u64 {
        (self.ready.len() + self.making - self.growing + self.blank.len() + self.vacant.len()) as u64
    }

    /// May the disk have space for further segments?
    fn may_grow(&self) -> bool {
        self.retry_disk_at.is_none() && (self.growing > 0 || !self.absent.is_empty())
    }

    /// Segments that could become the open one.
    pub(crate) fn free_segments(&self) -> u64 {
        let grow = if self.may_grow() { self.growing + self.absent.len() } else { 0 };
        self.allocated() + grow as u64
    }

    /// Bytes of the largest payload that could be moved, now or soon.
    pub(crate) fn movable_bytes(&self) -> u32 {
        if self.free_segments() > 0 {
            return u32::MAX;
        }
        let left = |segment: &Segment| {
            let footer = entry_blocks(segment.records.len() + 1) + 1;
            self.segment_blocks.saturating_sub(segment.cursor + footer)
        };
        let blocks = self.open.map_or(0, |open| left(&self.segments[open as usize]));
        blocks.saturating_sub(1).saturating_mul(BLOCK as u32) // one is the extent's own
    }

    /// Has the open segment room for an extent?
    fn has_room(&self, payload_bytes: u32) -> bool {
        self.open.is_some_and(|open| {
            let segment = &self.segments[open as usize];
            self.room_after(segment.cursor, segment.records.len(), payload_bytes)
        })
    }

    /// Segments there can be: fewer than configured while the disk is full, and without those that are
    /// retired.
    pub(crate) fn capacity_segments(&self) -> u64 {
        let missing = if self.retry_disk_at.is_some() { self.absent.len() + self.growing } else { 0 };
        u64::from(self.limit).saturating_sub(missing as u64 + self.retired_segments())
    }

    /// Segments in use.
    pub(crate) fn used_segments(&self) -> u64 {
        self.segments.iter().filter(|segment| segment.is_used()).count() as u64
    }

    /// Bytes and number of live extents.
    pub(crate) fn live(&self) -> (u64, u64) {
        (self.live_bytes, self.live_extents)
    }

    /// What live extents would take if none were packed, for each hundred bytes that they take.
    pub(crate) fn packing_percent(&self) -> u64 {
        let plain: u64 = self.segments.iter().map(|segment| segment.plain_bytes).sum();
        (plain * 100).checked_div(self.live_bytes).unwrap_or(100).max(100)
    }

    /// Does a vacated segment wait for the keeper?
    pub(crate) fn has_vacant(&self) -> bool {
        !self.vacant.is_empty() || !self.leaving.is_empty()
    }

    /// Does a filled segment wait for its footer?
    pub(crate) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// Has the disk refused a segment?
    pub(crate) fn disk_full(&self) -> bool {
        self.retry_disk_at.is_some()
    }
}

/// Segments of so many that are kept free.
pub(crate) fn spare_segments(segments: u64) -> u64 {
    RECLAIM_FREE_MIN.max(segments / RECLAIM_FREE_SHARE)
}

#[cfg(test)]
mod tests;
