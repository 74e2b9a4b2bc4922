//! The books of the segment log: where the next extent goes, what is alive, what the keeper has to do.
//!
//! Owns: every decision about segments. Pure: it is handed `now`, and returns what to do. Must not know: threads, rings,
//! the bytes of anything.
//!
//! A segment is written once from front to back and becomes free as a whole. It is reused only when no read is in flight
//! on it, and always under a new nonce.

use super::device::SegmentFile;
use super::format::{Nonce, Record, entry_blocks, extent_blocks};
use super::segment::{Segment, State};
use crate::limits::{
    DISK_FULL_RETRY, RECLAIM_FREE_MIN, RECLAIM_FREE_SHARE, SEGMENTS_READY, SEGMENTS_RESERVED,
};
use crate::tier::{ExtentMeta, Location};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

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

/// What the keeper does next. Each is answered by the method of the same name in the past tense.
#[derive(Debug)]
pub(crate) enum Chore {
    /// Give a segment a new nonce, so that it can take extents. Without a file: create it first.
    Make { segment: u32, file: Option<Arc<SegmentFile>>, epoch: u64 },
    /// Write an empty footer under a new nonce.
    Blank { segment: u32, file: Arc<SegmentFile>, epoch: u64 },
    /// Write the footer.
    Seal { segment: u32, file: Arc<SegmentFile>, nonce: Nonce, records: Vec<Record> },
}

/// The books.
#[derive(Debug)]
pub(crate) struct Log {
    segment_blocks: u32,
    segments: Vec<Segment>,
    open: Option<u32>,
    ready: VecDeque<u32>,
    blank: VecDeque<u32>,
    vacant: VecDeque<u32>,
    absent: VecDeque<u32>,
    full: VecDeque<u32>,
    making: usize,
    next_sequence: u64,
    live_bytes: u64,
    live_extents: u64,
    retry_disk_at: Option<Instant>,
}

impl Log {
    /// An empty log over so many segments, all without files.
    pub(crate) fn new(segments: u32, segment_blocks: u32) -> Log {
        Log {
            segment_blocks,
            segments: (0..segments).map(|_| Segment::absent()).collect(),
            open: None,
            ready: VecDeque::new(),
            blank: VecDeque::new(),
            vacant: VecDeque::new(),
            absent: (0..segments).collect(),
            full: VecDeque::new(),
            making: 0,
            next_sequence: 1,
            live_bytes: 0,
            live_extents: 0,
            retry_disk_at: None,
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

    /// Takes space for an extent. `reserve`: may take the last free segments.
    pub(crate) fn append(&mut self, meta: &ExtentMeta, reserve: bool) -> Append {
        let fits = self.open.is_some_and(|open| {
            let segment = &self.segments[open as usize];
            self.room_after(segment.cursor, segment.records.len(), meta.payload_bytes)
        });
        if !fits {
            let kept = if reserve { 0 } else { SEGMENTS_RESERVED };
            if self.free_segments() <= kept {
                return Append::Full;
            }
            let Some(next) = self.ready.pop_front() else { return Append::Wait };
            self.fill_open();
            let segment = &mut self.segments[next as usize];
            assert_eq!(segment.state, State::Ready, "only a prepared segment is opened");
            segment.state = State::Open;
            self.open = Some(next);
        }
        match self.place(meta) {
            Some(placed) => Append::Placed(placed),
            None => Append::Full,
        }
    }

    fn place(&mut self, meta: &ExtentMeta) -> Option<Placed> {
        let number = self.open?;
        let segment = &mut self.segments[number as usize];
        let file = Arc::clone(segment.file.as_ref()?);
        let record = Record { meta: meta.clone(), block: segment.cursor, sequence: self.next_sequence };
        self.next_sequence += 1;
        segment.cursor += record.blocks();
        segment.writes += 1;
        segment.records.push(record.clone());
        let at = Location { segment: number, block: record.block };
        Some(Placed { file, at, record, nonce: segment.nonce })
    }

    /// Closes the open segment to further extents.
    pub(crate) fn fill_open(&mut self) {
        if let Some(open) = self.open.take() {
            let segment = &mut self.segments[open as usize];
            segment.state = State::Full;
            segment.filled_at = self.next_sequence;
            self.full.push_back(open);
        }
    }

    /// A write ended. Only a good one is alive, and counted.
    pub(crate) fn written(&mut self, at: Location, payload_bytes: u32, good: bool) {
        let segment = &mut self.segments[at.segment as usize];
        assert!(segment.writes > 0, "a write ends once");
        segment.writes -= 1;
        if good {
            segment.dirty = true;
            self.live_bytes += segment.revive(at.block, payload_bytes);
            self.live_extents += 1;
        }
    }

    /// The file to read a live extent from; the segment is not reused before [`Log::read_ended`].
    pub(crate) fn begin_read(&mut self, at: Location, payload_bytes: u32) -> Option<Arc<SegmentFile>> {
        let end = u64::from(at.block) + u64::from(extent_blocks(payload_bytes));
        let segment = self.segments.get_mut(at.segment as usize)?;
        let inside = end < u64::from(self.segment_blocks);
        if !inside || !segment.is_readable() || !segment.is_live(at.block) {
            return None;
        }
        segment.reads += 1;
        segment.file.clone()
    }

    /// A read ended.
    pub(crate) fn read_ended(&mut self, number: u32) {
        let segment = &mut self.segments[number as usize];
        assert!(segment.reads > 0, "a read ends once");
        segment.reads -= 1;
        self.leave_if_idle(number);
    }

    /// An extent is dead. A sealed segment with nothing alive is free at once.
    pub(crate) fn forget(&mut self, at: Location, payload_bytes: u32) {
        let Some(segment) = self.segments.get_mut(at.segment as usize) else { return };
        let freed = segment.kill(at.block, payload_bytes);
        if freed == 0 {
            return;
        }
        self.live_bytes -= freed.min(self.live_bytes);
        self.live_extents -= 1;
        if segment.state == State::Sealed && segment.live_extents == 0 {
            self.release(at.segment);
        }
    }

    /// Everything in a sealed or claimed segment is dead. `false` if it is neither.
    pub(crate) fn release(&mut self, number: u32) -> bool {
        let Some(segment) = self.segments.get_mut(number as usize) else { return false };
        if !matches!(segment.state, State::Sealed | State::Claimed) {
            return false;
        }
        self.live_bytes -= segment.live_bytes.min(self.live_bytes);
        self.live_extents -= u64::from(segment.live_extents).min(self.live_extents);
        segment.live_bytes = 0;
        segment.live_extents = 0;
        segment.state = State::Leaving;
        self.leave_if_idle(number);
        true
    }

    fn leave_if_idle(&mut self, number: u32) {
        let segment = &mut self.segments[number as usize];
        if segment.state == State::Leaving && segment.reads == 0 {
            segment.clear();
            segment.dirty = false;
            segment.state = State::Vacant;
            self.vacant.push_back(number);
        }
    }

    /// A claimed segment is not reclaimed after all.
    pub(crate) fn keep(&mut self, number: u32) {
        if let Some(segment) = self.segments.get_mut(number as usize)
            && segment.state == State::Claimed
        {
            segment.state = State::Sealed;
        }
    }

    /// Claims the sealed segment whose reclaim pays best: little is alive in it that is to be kept (`kept`: bytes of a
    /// segment), and it is old. Among full ones, the oldest.
    pub(crate) fn claim(&mut self, kept: impl Fn(u32) -> u64) -> Option<u32> {
        let bytes = f64::from(self.segment_blocks) * 4096.0;
        let now = self.next_sequence;
        let gain = |number: usize, segment: &Segment| {
            let kept = segment.live_bytes.min(kept(number as u32)) as f64 / bytes;
            let age = now.saturating_sub(segment.filled_at) as f64 + 1.0;
            (1.0 - kept).max(0.001) * age / (1.0 + kept)
        };
        let sealed = self.segments.iter().enumerate().filter(|(_, segment)| segment.state == State::Sealed);
        let pays = sealed.map(|(number, segment)| (number, gain(number, segment)));
        let best = pays.max_by(|(_, one), (_, other)| one.total_cmp(other))?.0;
        self.segments[best].state = State::Claimed;
        Some(best as u32)
    }

    /// A segment's books.
    pub(crate) fn segment(&self, number: u32) -> &Segment {
        &self.segments[number as usize]
    }

    /// Is it time to reclaim?
    pub(crate) fn needs_reclaim(&self) -> bool {
        self.free_segments() <= spare_segments(self.capacity_segments())
    }

    /// Segments that could become the open one.
    pub(crate) fn free_segments(&self) -> u64 {
        let absent = if self.retry_disk_at.is_some() { 0 } else { self.absent.len() };
        (self.ready.len() + self.making + self.blank.len() + self.vacant.len() + absent) as u64
    }

    /// Segments there can be: fewer than configured while the disk is full.
    pub(crate) fn capacity_segments(&self) -> u64 {
        let missing = if self.retry_disk_at.is_some() { self.absent.len() } else { 0 };
        (self.segments.len() - missing) as u64
    }

    /// Segments in use.
    pub(crate) fn used_segments(&self) -> u64 {
        self.segments.iter().filter(|segment| segment.is_used()).count() as u64
    }

    /// Bytes and number of live extents.
    pub(crate) fn live(&self) -> (u64, u64) {
        (self.live_bytes, self.live_extents)
    }

    /// Does a vacated segment wait for the keeper?
    pub(crate) fn has_vacant(&self) -> bool {
        !self.vacant.is_empty()
    }

    /// Does a filled segment wait for its footer?
    pub(crate) fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// Has the disk refused a segment?
    pub(crate) fn disk_full(&self) -> bool {
        self.retry_disk_at.is_some()
    }

    /// What changed since the last call: sync these, and everything written before is safe.
    pub(crate) fn take_dirty(&mut self) -> Vec<Arc<SegmentFile>> {
        let mut files: Vec<Arc<SegmentFile>> = Vec::new();
        for segment in self.segments.iter_mut().filter(|segment| segment.dirty) {
            segment.dirty = false;
            if let Some(file) = &segment.file
                && !files.iter().any(|other| other.same_file(file))
            {
                files.push(Arc::clone(file));
            }
        }
        files
    }

    /// What the keeper has to do now, most urgent first.
    pub(crate) fn next_chore(&mut self, now: Instant) -> Option<Chore> {
        self.make_chore(now).or_else(|| self.seal_chore()).or_else(|| self.blank_chore())
    }

    /// When to look for chores again although nothing happened.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let wanted = self.ready.len() + self.making < SEGMENTS_READY;
        self.retry_disk_at.filter(|_| wanted)
    }

    fn make_chore(&mut self, now: Instant) -> Option<Chore> {
        if self.ready.len() + self.making >= SEGMENTS_READY {
            return None;
        }
        let epoch = self.take_sequence();
        if let Some(segment) = self.blank.pop_front().or_else(|| self.vacant.pop_front()) {
            let file = self.begin_making(segment);
            return Some(Chore::Make { segment, file, epoch });
        }
        if self.retry_disk_at.is_some_and(|at| now < at) {
            return None;
        }
        let segment = self.absent.pop_front()?;
        self.begin_making(segment);
        Some(Chore::Make { segment, file: None, epoch })
    }

    fn begin_making(&mut self, number: u32) -> Option<Arc<SegmentFile>> {
        self.making += 1;
        let segment = &mut self.segments[number as usize];
        segment.state = State::Making;
        segment.file.clone()
    }

    /// The footer of a filled segment on which no write is in flight.
    pub(crate) fn seal_chore(&mut self) -> Option<Chore> {
        let idle = |number: &u32| self.segments[*number as usize].writes == 0;
        let position = self.full.iter().position(idle)?;
        let number = self.full.remove(position)?;
        let segment = &mut self.segments[number as usize];
        segment.state = State::Sealing;
        let alive = |record: &&Record| segment.is_live(record.block);
        let records = segment.records.iter().filter(alive).cloned().collect();
        let file = Arc::clone(segment.file.as_ref()?);
        Some(Chore::Seal { segment: number, file, nonce: segment.nonce, records })
    }

    /// An empty footer for a vacated segment: what was released stays gone.
    pub(crate) fn blank_chore(&mut self) -> Option<Chore> {
        let number = self.vacant.pop_front()?;
        let epoch = self.take_sequence();
        let segment = &mut self.segments[number as usize];
        segment.state = State::Blanking;
        self.making += 1;
        let file = Arc::clone(segment.file.as_ref()?);
        Some(Chore::Blank { segment: number, file, epoch })
    }

    fn take_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence - 1
    }

    /// A segment is prepared for extents.
    pub(crate) fn made(&mut self, number: u32, file: Arc<SegmentFile>, nonce: Nonce) {
        self.making -= 1;
        let segment = &mut self.segments[number as usize];
        if segment.file.is_none() {
            self.retry_disk_at = None; // the disk has space again
        }
        segment.file = Some(file);
        segment.nonce = nonce;
        segment.clear();
        segment.state = State::Ready;
        self.ready.push_back(number);
    }

    /// The disk has no space for another segment: the tier is as large as what it has, until the disk is asked again.
    pub(crate) fn make_failed(&mut self, number: u32, now: Instant) {
        self.making -= 1;
        self.segments[number as usize].state = State::Absent;
        self.absent.push_front(number);
        self.retry_disk_at = Some(now + DISK_FULL_RETRY);
    }

    /// A segment says on the device that it is empty.
    pub(crate) fn blanked(&mut self, number: u32) {
        self.making -= 1;
        self.segments[number as usize].state = State::Blank;
        self.blank.push_back(number);
    }

    /// A segment has its footer.
    pub(crate) fn sealed(&mut self, number: u32) {
        let segment = &mut self.segments[number as usize];
        segment.state = State::Sealed;
        segment.records = Vec::new();
        segment.dirty = true;
        if segment.live_extents == 0 {
            self.release(number);
        }
    }
}

/// Segments of so many that are kept free.
pub(crate) fn spare_segments(segments: u64) -> u64 {
    RECLAIM_FREE_MIN.max(segments / RECLAIM_FREE_SHARE)
}

/// What recovery puts into the books of a new log, before anything else happens.
impl Log {
    /// A segment found on the device. `sealed`: it has a footer.
    pub(crate) fn restore(&mut self, number: u32, file: SegmentFile, found: Found) {
        self.absent.retain(|absent| *absent != number);
        let segment = &mut self.segments[number as usize];
        segment.file = Some(Arc::new(file));
        match found {
            Found::Vacant => {
                segment.state = State::Vacant;
                self.vacant.push_back(number);
            }
            Found::Blank => {
                segment.state = State::Blank;
                self.blank.push_back(number);
            }
            Found::Extents { nonce, records, sealed } => {
                segment.nonce = nonce;
                segment.cursor = records.last().map_or(1, |last| last.block + last.blocks());
                segment.filled_at = records.iter().map(|record| record.sequence).max().unwrap_or(0);
                if sealed {
                    segment.state = State::Sealed;
                } else {
                    segment.state = State::Full;
                    segment.records = records;
                    self.full.push_back(number);
                }
            }
        }
    }

    /// An extent of a restored segment is the newest of its shard.
    pub(crate) fn restore_live(&mut self, at: Location, payload_bytes: u32) {
        self.live_bytes += self.segments[at.segment as usize].revive(at.block, payload_bytes);
        self.live_extents += 1;
    }

    /// The tier's sequence goes on above `highest`.
    pub(crate) fn restore_sequence(&mut self, highest: u64) {
        self.next_sequence = self.next_sequence.max(highest.saturating_add(1));
    }

    /// Goes on filling a restored segment that has no footer.
    pub(crate) fn resume(&mut self, number: u32) {
        assert!(self.open.is_none(), "one segment is open at a time");
        self.full.retain(|full| *full != number);
        self.segments[number as usize].state = State::Open;
        self.open = Some(number);
    }

    /// Is there enough room behind these records to go on?
    pub(crate) fn worth_resuming(&self, records: &[Record]) -> bool {
        let cursor = records.last().map_or(1, |last| last.block + last.blocks());
        let footer = entry_blocks(records.len()) + 1;
        cursor.saturating_add(footer) <= self.segment_blocks - self.segment_blocks / 8
    }

    /// Restored segments without a live extent are free.
    pub(crate) fn release_empty(&mut self) {
        for number in 0..self.segments.len() as u32 {
            let segment = &self.segments[number as usize];
            if segment.state == State::Sealed && segment.live_extents == 0 {
                self.release(number);
            }
        }
    }
}

/// What recovery found in one segment.
#[derive(Debug)]
pub(crate) enum Found {
    /// Nothing that counts.
    Vacant,
    /// An empty footer.
    Blank,
    /// Extents, in order of their blocks.
    Extents { nonce: Nonce, records: Vec<Record>, sealed: bool },
}

#[cfg(test)]
mod tests;
