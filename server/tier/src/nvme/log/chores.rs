//! What the keeper does for the books. Owns: which chore comes next, and what each leaves behind, done or
//! not. Must not know: how a chore is done.

use super::super::format::{Nonce, Record};
use super::super::segment::SegmentState;
use super::super::segment_file::SegmentFile;
use super::Log;
use crate::errno::ErrnoClass;
use crate::limits::{DISK_FULL_RETRY_MAX, DISK_FULL_RETRY_MIN, SEGMENTS_READY, SHORT_RETRY};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the keeper does next. Each is answered by the method of the same name in the past tense.
#[derive(Debug)]
pub(crate) enum Chore {
    /// Give a segment a new nonce, so that it can take extents. Without a file: create it first.
    Make { segment: u32, file: Option<Arc<SegmentFile>>, epoch: u64 },
    /// Write an empty footer under a new nonce.
    Blank { segment: u32, file: Arc<SegmentFile>, epoch: u64 },
    /// Bring what was written to stable storage: released segments wait for that.
    Sync,
    /// A surplus segment is empty: make that so on the device, and give its space back.
    GiveBack { segment: u32, file: Arc<SegmentFile>, epoch: u64 },
    /// Write the footer.
    Seal { segment: u32, file: Arc<SegmentFile>, nonce: Nonce, records: Vec<Record> },
}

impl Log {
    /// What the keeper has to do now, most urgent first.
    pub(crate) fn next_chore(&mut self, now: Instant) -> Option<Chore> {
        if self.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        self.paused_until = None;
        let chore = self.make_chore(now).or_else(|| self.seal_chore());
        let sync = |log: &mut Log| log.sync_is_due(now).then_some(Chore::Sync);
        let chore = chore.or_else(|| sync(self)).or_else(|| self.blank_chore());
        chore.or_else(|| self.give_back_chore())
    }

    /// Is a segment to be prepared that is not yet?
    pub(crate) fn wants_segment(&self) -> bool {
        let any = !self.blank.is_empty() || !self.vacant.is_empty() || self.may_grow();
        any && self.ready.len() + self.making < SEGMENTS_READY
    }

    /// What is left to do when the tier closes; nothing while the system is short of something: the next
    /// start reads what has no footer.
    pub(crate) fn closing_chore(&mut self, now: Instant) -> Option<Chore> {
        if self.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        let sync = (self.waiting_segments() > 0).then_some(Chore::Sync);
        let chore = sync.or_else(|| self.seal_chore()).or_else(|| self.blank_chore());
        chore.or_else(|| self.give_back_chore())
    }

    /// When to look for chores again although nothing happened.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let usual = [self.retry_disk_at, self.sync_due_at()].into_iter().flatten().min();
        self.paused_until.or(usual)
    }

    fn make_chore(&mut self, now: Instant) -> Option<Chore> {
        let wanted = self.wants_segment();
        let spare = if wanted { self.blank.pop_front().or_else(|| self.take_vacant()) } else { None };
        if let Some(segment) = spare {
            let file = self.begin_making(segment);
            return Some(Chore::Make { segment, file, epoch: self.take_sequence() });
        }
        // A disk that was full is asked from time to time, wanted or not: or a tier that has what it needs
        // would stay small.
        let asked = self.retry_disk_at.map_or(wanted, |at| now >= at && self.growing == 0);
        let segment = if asked { self.absent.pop_front()? } else { return None };
        self.growing += 1;
        let file = self.begin_making(segment);
        Some(Chore::Make { segment, file, epoch: self.take_sequence() })
    }

    fn begin_making(&mut self, number: u32) -> Option<Arc<SegmentFile>> {
        self.making += 1;
        let segment = &mut self.segments[number as usize];
        segment.state = SegmentState::Making;
        segment.file.clone()
    }

    /// The footer of a filled segment on which no write is in flight. It lists what was written, also what
    /// died since: so a start finds the same in a segment with its footer as without. A worn one is not
    /// written to, and has none.
    pub(crate) fn seal_chore(&mut self) -> Option<Chore> {
        loop {
            let idle = |number: &u32| self.segments[*number as usize].writes == 0;
            let position = self.full.iter().position(idle)?;
            let number = self.full.remove(position)?;
            let segment = &mut self.segments[number as usize];
            if segment.worn {
                self.close_segment(number);
                continue;
            }
            segment.state = SegmentState::Sealing;
            let records = segment.records.clone();
            let file = Arc::clone(segment.file.as_ref()?);
            return Some(Chore::Seal { segment: number, file, nonce: segment.nonce, records });
        }
    }

    /// An empty footer for a vacated segment: what was released stays gone.
    fn blank_chore(&mut self) -> Option<Chore> {
        let number = self.take_vacant()?;
        let epoch = self.take_sequence();
        let segment = &mut self.segments[number as usize];
        segment.state = SegmentState::Blanking;
        self.making += 1;
        let file = Arc::clone(segment.file.as_ref()?);
        Some(Chore::Blank { segment: number, file, epoch })
    }

    fn give_back_chore(&mut self) -> Option<Chore> {
        let segment = self.take_leaving()?;
        let epoch = self.take_sequence();
        let file = Arc::clone(self.segments[segment as usize].file.as_ref()?);
        Some(Chore::GiveBack { segment, file, epoch })
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
            self.growing -= 1;
            self.disk_rest = Duration::ZERO;
            if self.absent.is_empty() {
                self.retry_disk_at = None; // the disk had space for all of the tier
            }
        }
        segment.file = Some(file);
        segment.nonce = nonce;
        debug_assert!(
            segment.cursor == 1 && segment.records.is_empty(),
            "its books are those of an empty segment"
        );
        segment.state = SegmentState::Ready;
        self.ready.push_back(number);
    }

    /// A segment could not be prepared. Without space for its file, the tier is as large as what it has,
    /// until the disk is asked again; anything else that the system was short of is waited for.
    pub(crate) fn make_failed(&mut self, number: u32, fault: ErrnoClass, now: Instant) {
        self.making -= 1;
        let segment = &mut self.segments[number as usize];
        if segment.file.is_some() {
            segment.state = SegmentState::Vacant;
            self.vacant.push_front(number);
            return self.pause(now);
        }
        self.growing -= 1;
        segment.state = SegmentState::Absent;
        self.absent.push_front(number);
        match fault {
            ErrnoClass::Full => {
                self.disk_rest = (self.disk_rest * 2).clamp(DISK_FULL_RETRY_MIN, DISK_FULL_RETRY_MAX);
                self.retry_disk_at = Some(now + self.disk_rest);
            }
            ErrnoClass::Interrupted | ErrnoClass::Short | ErrnoClass::Device => self.pause(now),
        }
    }

    /// A segment says on the device that it is empty.
    pub(crate) fn blanked(&mut self, number: u32) {
        self.making -= 1;
        self.segments[number as usize].state = SegmentState::Blank;
        self.blank.push_back(number);
    }

    /// The system was short of something for the empty footer.
    pub(crate) fn blank_failed(&mut self, number: u32, _fault: ErrnoClass, now: Instant) {
        self.making -= 1;
        self.segments[number as usize].state = SegmentState::Vacant;
        self.vacant.push_back(number);
        self.pause(now);
    }

    /// A surplus segment has given its space back.
    pub(crate) fn given_back(&mut self, number: u32) {
        let segment = &mut self.segments[number as usize];
        (segment.file, segment.state) = (None, SegmentState::Absent);
    }

    /// The system was short of something for that.
    pub(crate) fn give_back_failed(&mut self, number: u32, _fault: ErrnoClass, now: Instant) {
        self.leaving.push_back(number);
        self.pause(now);
    }

    /// The system was short of something for the footer.
    pub(crate) fn seal_failed(&mut self, number: u32, _fault: ErrnoClass, now: Instant) {
        self.segments[number as usize].state = SegmentState::Full;
        self.full.push_back(number);
        self.pause(now);
    }

    fn pause(&mut self, now: Instant) {
        self.paused_until = Some(now + SHORT_RETRY);
    }

    /// A segment has its footer.
    pub(crate) fn sealed(&mut self, number: u32) {
        self.changes += 1;
        self.segments[number as usize].changed_at = self.changes;
        self.close_segment(number);
    }

    fn close_segment(&mut self, number: u32) {
        let segment = &mut self.segments[number as usize];
        segment.state = SegmentState::Sealed;
        segment.records = Vec::new();
        if segment.live_extents == 0 {
            self.leave(number);
        }
    }
}
