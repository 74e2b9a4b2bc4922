//! What the keeper has to do. Owns: the order of chores, and what each changes in the books.
//! Must not know: files' contents, threads.

use super::Log;
use crate::limits::{DISK_FULL_RETRY, SEGMENTS_READY};
use crate::nvme::device::SegmentFile;
use crate::nvme::format::{Nonce, Record};
use crate::nvme::segment::State;
use std::sync::Arc;
use std::time::Instant;

/// What the keeper does next. Each is answered by the method of the same name in the past tense.
#[derive(Debug)]
pub(crate) enum Chore {
    /// Give a segment a new nonce, so that it can take extents. Without a file: create it first.
    Make { segment: u32, file: Option<Arc<SegmentFile>>, epoch: u64 },
    /// Write an empty footer under a new nonce.
    Blank { segment: u32, file: Arc<SegmentFile>, epoch: u64 },
    /// Bring what was written to stable storage: released segments wait for that.
    Sync,
    /// Write the footer.
    Seal { segment: u32, file: Arc<SegmentFile>, nonce: Nonce, records: Vec<Record> },
}

impl Log {
    /// What the keeper has to do now, most urgent first.
    pub(crate) fn next_chore(&mut self, now: Instant) -> Option<Chore> {
        let chore = self.make_chore(now).or_else(|| self.seal_chore());
        let sync = |log: &mut Log| log.sync_is_due(now).then_some(Chore::Sync);
        chore.or_else(|| sync(self)).or_else(|| self.blank_chore())
    }

    /// What is left to do before the tier closes, most urgent first.
    pub(crate) fn closing_chore(&mut self) -> Option<Chore> {
        self.fill_open();
        let sync = self.closing_needs_sync().then_some(Chore::Sync);
        sync.or_else(|| self.seal_chore()).or_else(|| self.blank_chore())
    }

    /// When to look for chores again although nothing happened.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let wanted = self.ready.len() + self.making < SEGMENTS_READY;
        let disk = self.retry_disk_at.filter(|_| wanted);
        [disk, self.sync_due_at()].into_iter().flatten().min()
    }

    fn make_chore(&mut self, now: Instant) -> Option<Chore> {
        if self.ready.len() + self.making >= SEGMENTS_READY {
            return None;
        }
        let epoch = self.take_sequence();
        if let Some(segment) = self.blank.pop_front().or_else(|| self.take_vacant()) {
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

    /// The footer of a filled segment on which no write is in flight. A worn one is not written to, and has none.
    pub(crate) fn seal_chore(&mut self) -> Option<Chore> {
        loop {
            let idle = |number: &u32| self.segments[*number as usize].writes == 0;
            let position = self.full.iter().position(idle)?;
            let number = self.full.remove(position)?;
            let all = !self.deaths_are_synced(number);
            let segment = &mut self.segments[number as usize];
            if segment.worn {
                self.close_segment(number);
                continue;
            }
            segment.state = State::Sealing;
            let listed = |record: &&Record| all || segment.is_live(record.block);
            let records = segment.records.iter().filter(listed).cloned().collect();
            let file = Arc::clone(segment.file.as_ref()?);
            return Some(Chore::Seal { segment: number, file, nonce: segment.nonce, records });
        }
    }

    /// An empty footer for a vacated segment: what was released stays gone.
    fn blank_chore(&mut self) -> Option<Chore> {
        let number = self.take_vacant()?;
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
        debug_assert!(segment.cursor == 1 && segment.records.is_empty(), "its books are those of an empty segment");
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
        self.changes += 1;
        self.segments[number as usize].changed_at = self.changes;
        self.close_segment(number);
    }

    fn close_segment(&mut self, number: u32) {
        let segment = &mut self.segments[number as usize];
        segment.state = State::Sealed;
        segment.records = Vec::new();
        if segment.live_extents == 0 {
            self.leave(number);
        }
    }
}
