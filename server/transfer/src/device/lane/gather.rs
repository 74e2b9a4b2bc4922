//! Pages in many small pieces: put together on the device, so that they cross the link as large copies. Owns: what is gathered,
//! and the order between the streams. Must not know: when it is done, how calls are made (`enqueue`).
//!
//! ```text
//!   offload:   pieces --kernel, within--> gathered --copy engine, stream--> slot
//!   reload:    slot --copy engine, stream--> gathered --kernel, within--> pieces
//! ```
//! The link takes far longer for a page than the device's own memory does, so a kernel is at work for a small part of the time
//! only, where one that copied over the link would hold its processors for all of it; and one part is copied while the next is put
//! together. Copy engines alone reach a fraction of the link where pieces are small.

use std::ops::Range;

use super::enqueue::{Route, push_run, request};
use super::{Act, Job, JobPage, Lane, Other};
use crate::device::choose::{Way, by_engine, launches, push_merged};
use crate::device::driver::{CopyRequest, DeviceAddress, DeviceError};
use crate::device::flight::OwnedEvent;
use crate::limits::{GATHER_PART_BYTES, GATHER_PIECE_BYTES_MAX, KERNEL_PIECES_MIN, RING_ALIGN};
use crate::plan::Run;

/// A part of a slot, and of which page of the job it is.
type SlotPart = (usize, Range<usize>);

impl Lane {
    /// Whether a job's pages are in pieces that are better gathered. What comes layer by layer is not: all of it is enqueued before an
    /// engine begins, and the ring has room for a small part.
    pub(super) fn is_gathered(&self, job: &Job) -> bool {
        if self.gather.is_none() || !self.means.gathers() || job.layers > 1 || job.way() == Way::Within {
            return false;
        }
        let pieces: usize = job.pages.iter().map(|page| page.plan.joined_pieces()).sum();
        pieces >= KERNEL_PIECES_MIN && job.bytes / pieces <= GATHER_PIECE_BYTES_MAX
    }

    /// Enqueues the pages of a group that are gathered, as many at a time as come to a part of the ring.
    pub(super) fn enqueue_gathered(
        &mut self,
        job: &Job,
        routes: &[Route],
        group: Range<usize>,
    ) -> Result<(), DeviceError> {
        let (mut parts, mut room) = (Vec::<SlotPart>::new(), GATHER_PART_BYTES);
        for number in group.filter(|&number| routes[number] == Route::Gathered) {
            let page = &job.pages[number];
            if let Other::Filling(slot) = &page.other {
                page.plan.gaps().for_each(|gap| slot.blank(gap));
            }
            let (mut start, end) = (0, page.plan.slot_bytes());
            self.core.stats.direct_bytes.add(end as u64);
            while start < end {
                let bytes = room.min(end - start);
                parts.push((number, start..start + bytes));
                start += bytes;
                room -= bytes.next_multiple_of(RING_ALIGN).min(room);
                if room == 0 {
                    self.gather_parts(job, &std::mem::take(&mut parts))?;
                    room = GATHER_PART_BYTES;
                }
            }
        }
        if parts.is_empty() { Ok(()) } else { self.gather_parts(job, &parts) }
    }

    /// An event behind all that was copied so far, of pages some of which are `gathered`, or none.
    pub(super) fn record_copies(&self, gathered: bool) -> Result<OwnedEvent, DeviceError> {
        if !gathered {
            return self.record(self.stream);
        }
        self.record(self.stream)?.hold_up(self.within_stream)?;
        self.record(self.within_stream)
    }

    fn gather_parts(&mut self, job: &Job, parts: &[SlotPart]) -> Result<(), DeviceError> {
        let bytes = parts.iter().map(|(_, part)| part.len().next_multiple_of(RING_ALIGN)).sum();
        let place = self.take_gather(job, bytes)?;
        let (within, over) = pieces(job, parts, place);
        if job.to_slots() {
            self.within(job, within)?;
            self.record(self.within_stream)?.hold_up(self.stream)?;
            self.over(job, over)?;
            self.used.gather = self.taken().gather;
            self.step(Act::Nothing);
        } else {
            self.over(job, over)?;
            self.record(self.stream)?.hold_up(self.within_stream)?;
            self.within(job, within)?;
            self.used.gather = self.taken().gather;
            self.step_in(self.within_stream, Act::Nothing);
        }
        Ok(())
    }

    /// Enqueues what is copied within the device. A step follows each launch at once: what it uses must not become free with one of
    /// the other stream.
    fn within(&mut self, job: &Job, pieces: Vec<CopyRequest>) -> Result<(), DeviceError> {
        let mut work = Vec::new();
        launches(pieces, self.means.chunk_bytes, &mut work);
        for work in work {
            let enqueued = self.work(job, work, self.within_stream);
            self.step_in(self.within_stream, Act::Nothing);
            enqueued?;
        }
        Ok(())
    }

    /// Enqueues what is copied over the link.
    fn over(&mut self, job: &Job, pieces: Vec<CopyRequest>) -> Result<(), DeviceError> {
        let mut work = Vec::new();
        by_engine(pieces, self.means, &mut work);
        work.into_iter().try_for_each(|work| self.work(job, work, self.stream))
    }

    fn take_gather(&mut self, job: &Job, bytes: usize) -> Result<DeviceAddress, DeviceError> {
        loop {
            if let Some(place) = self.gather.as_mut().and_then(|gather| gather.take(bytes)) {
                return Ok(place);
            }
            self.wait_room(job)?;
        }
    }
}

/// The pieces within the device, and those over the link, of parts that are gathered one after another from a place on.
fn pieces(job: &Job, parts: &[SlotPart], place: DeviceAddress) -> (Vec<CopyRequest>, Vec<CopyRequest>) {
    let (to_slots, mut place) = (job.to_slots(), place);
    let runs = parts.iter().map(|(number, _)| job.pages[*number].plan.pieces().len()).sum();
    let (mut within, mut over) = (Vec::with_capacity(runs), Vec::with_capacity(parts.len()));
    for (number, part) in parts {
        let JobPage { plan, other } = &job.pages[*number];
        let Some(slot) = other.slot() else { continue };
        for run in plan.within(part.clone()) {
            let memory = place + (run.slot_offset - part.start) as u64;
            push_merged(&mut within, request(to_slots, run.memory, memory, run.bytes));
            if plan.has_gaps() {
                push_run(job, slot, Run { memory, ..run }, &mut over);
            }
        }
        if !plan.has_gaps() {
            push_run(job, slot, Run { memory: place, slot_offset: part.start, bytes: part.len() }, &mut over);
        }
        place += part.len().next_multiple_of(RING_ALIGN) as u64;
    }
    (within, over)
}
