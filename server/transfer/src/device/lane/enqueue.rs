//! From a job to calls of a driver. Owns: which bytes go where, directly or through staging memory, and in
//! what order. Must not know: when they are done.

use std::ops::Range;
use std::sync::Arc;

use super::{Act, Job, JobPage, Lane, Other};
use crate::device::choose::{Work, choose, push_merged};
use crate::device::driver::{
    CopyRequest, DeviceAddress, DeviceError, DeviceErrorKind, Kernel, Piece, Stream,
};
use crate::device::flight::cancelled;
use crate::device::register::cut_after;
use crate::device::staging::Taken;
use crate::limits::{
    BATCH_COPIES_A_CALL, COPY_LAUNCH_CALLS, REGISTER_PIECE_BYTES, STAGED_PIECE_BYTES_MAX, STEP_CALLS_MAX,
    STREAM_CALLS_MAX,
};
use crate::slot::Slot;

/// Of one batch.
const BATCH_COPIES_MAX: usize = STEP_CALLS_MAX * BATCH_COPIES_A_CALL;

impl Lane {
    /// Enqueues all of a job. `on_cpu`: the pages whose checksums the device does not take.
    pub(super) fn enqueue(&mut self, job: &Job, on_cpu: &mut Vec<usize>) -> Result<(), DeviceError> {
        if let Some(after) = &job.after {
            after.0.hold_up(self.stream)?;
        }
        if job.checksums && job.to_slots() {
            // From where the bytes come, beside the copies: what is damaged on the way does not verify later.
            if let Some(after) = &job.after {
                after.0.hold_up(self.sums_stream)?;
            }
            self.enqueue_checksums(job, 0..job.pages.len(), on_cpu)?;
        }
        let direct: Vec<bool> = job.pages.iter().map(|page| self.is_direct(page)).collect();
        let parts = parts(job)?;
        let mut layers = Vec::with_capacity(job.layers);
        for group in groups(job, self.means.chunk_bytes) {
            for part in 0..job.layers.max(1) {
                self.enqueue_part(job, &direct, &parts, group.clone(), part)?;
                if job.layers > 0 && group.end == job.pages.len() {
                    self.take_calls(job, 1)?;
                    layers.push(self.record(self.stream)?);
                }
            }
            if job.checksums && !job.to_slots() {
                // Where the bytes have come to, so that the way here is checked too; the next group comes
                // meanwhile.
                self.record(self.stream)?.hold_up(self.sums_stream)?;
                self.enqueue_checksums(job, group, on_cpu)?;
            }
        }
        job.flight.set_enqueued(Ok(()), layers);
        Ok(())
    }

    /// Enqueues one of the parts of a group of pages.
    fn enqueue_part(
        &mut self,
        job: &Job,
        direct: &[bool],
        parts: &[Vec<Range<usize>>],
        group: Range<usize>,
        part: usize,
    ) -> Result<(), DeviceError> {
        let mut pieces = Vec::new();
        for number in group {
            let (page, part) = (&job.pages[number], parts[number][part].clone());
            match &page.other {
                Other::Slot(slot) if direct[number] => {
                    self.push_slot(job, page, slot.slot(), part, &mut pieces);
                }
                Other::Filling(slot) if direct[number] => {
                    page.plan.gaps().for_each(|gap| slot.blank(gap));
                    self.push_slot(job, page, slot.slot(), part, &mut pieces);
                }
                Other::Slot(_) | Other::Filling(_) => self.stage(job, page, part)?,
                Other::Source(source) => {
                    self.core.stats.device_bytes.add(part.len() as u64);
                    push_within(page, source, part, &mut pieces);
                }
            }
        }
        self.issue(job, pieces)
    }

    fn is_direct(&self, page: &JobPage) -> bool {
        page.other.slot().is_none_or(|slot| self.core.registry.is_direct(slot))
    }

    /// The pieces between a slot that the device can use and a page's memory.
    fn push_slot(
        &self,
        job: &Job,
        page: &JobPage,
        slot: &Slot,
        part: Range<usize>,
        pieces: &mut Vec<CopyRequest>,
    ) {
        let base = slot.as_ptr().expose_provenance() as u64;
        self.core.stats.direct_bytes.add(part.len() as u64);
        for run in page.plan.within(part) {
            let mut done = 0;
            while done < run.bytes {
                let offset = run.slot_offset + done;
                let after = cut_after(slot.offset() + offset);
                let bytes = after.min(run.bytes - done);
                let next = request(job.to_slots(), run.memory + done as u64, base + offset as u64, bytes);
                if after == REGISTER_PIECE_BYTES {
                    pieces.push(next); // a registration begins here: no copy may come from before it
                } else {
                    push_merged(pieces, next);
                }
                done += bytes;
            }
        }
    }

    /// Copies a part of a page through staging memory, piece by piece.
    fn stage(&mut self, job: &Job, page: &JobPage, part: Range<usize>) -> Result<(), DeviceError> {
        let piece_bytes = STAGED_PIECE_BYTES_MAX.min(self.staging.len() / 2);
        self.core.stats.staged_bytes.add(part.len() as u64);
        let mut start = part.start;
        while start < part.end {
            let end = part.end.min(start + piece_bytes);
            let staged = self.take_staging(job, end - start)?;
            // SAFETY: the piece was just taken: nothing that is enqueued uses it.
            let bytes = unsafe { staged.bytes_mut() };
            match &page.other {
                Other::Slot(slot) => slot.copy_to(start, bytes),
                Other::Filling(_) if page.plan.has_gaps() => bytes.fill(0),
                Other::Filling(_) | Other::Source(_) => {}
            }
            let mut pieces = Vec::new();
            for run in page.plan.within(start..end) {
                let place = staged.address() + (run.slot_offset - start) as u64;
                push_merged(&mut pieces, request(job.to_slots(), run.memory, place, run.bytes));
            }
            self.issue(job, pieces)?;
            self.staging_done = self.staging.end();
            self.step(match &page.other {
                Other::Filling(filling) => {
                    Act::ToSlot { staged, filling: Arc::clone(filling), offset: start }
                }
                Other::Slot(_) | Other::Source(_) => Act::Nothing,
            });
            start = end;
        }
        Ok(())
    }

    /// Enqueues pieces in whatever way suits them.
    fn issue(&mut self, job: &Job, pieces: Vec<CopyRequest>) -> Result<(), DeviceError> {
        for work in choose(pieces, job.way(), self.means.of_job(job.layers, job.pieces())) {
            match work {
                Work::Engine(requests) => self.engine(job, &requests)?,
                Work::Batch(requests) => self.batch(job, &requests)?,
                Work::Kernel(pieces) => self.kernel(job, pieces)?,
            }
        }
        Ok(())
    }

    fn engine(&mut self, job: &Job, requests: &[CopyRequest]) -> Result<(), DeviceError> {
        for request in requests {
            self.take_calls(job, 1)?;
            // SAFETY: one side is a plan's memory, whose maker vouched for it; the other is a slot of a
            // registered region, staging memory, or another plan's. All are owned by the job until its last
            // event has passed, Rust code refers to no slot's bytes, the right to write those that are filled
            // is the job's, and the order against the engine's streams is by the mark that we waited for.
            unsafe { self.core.driver.copy(*request, self.stream)? };
        }
        self.core.stats.engine_calls.add(requests.len() as u64);
        Ok(())
    }

    fn batch(&mut self, job: &Job, requests: &[CopyRequest]) -> Result<(), DeviceError> {
        for (at, part) in requests.chunks(BATCH_COPIES_MAX).enumerate() {
            if !self.means.batch {
                return self.engine(job, &requests[at * BATCH_COPIES_MAX..]);
            }
            self.take_calls(job, part.len().div_ceil(BATCH_COPIES_A_CALL))?;
            // SAFETY: as in `engine`.
            match unsafe { self.core.driver.copy_batch(part, self.stream) } {
                Ok(()) => self.core.stats.engine_calls.add(1),
                Err(error) if error.kind == DeviceErrorKind::Unsupported => {
                    self.means.batch = false;
                    self.engine(job, part)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn kernel(&mut self, job: &Job, pieces: Vec<Piece>) -> Result<(), DeviceError> {
        if self.means.kernels {
            self.take_calls(job, COPY_LAUNCH_CALLS)?;
            let table = self.take_tables(job, size_of_val(&*pieces))?;
            // SAFETY: the piece was just taken, is as long as the table and aligned for it (rings align to
            // more).
            unsafe { std::ptr::copy_nonoverlapping(pieces.as_ptr(), table.memory.cast(), pieces.len()) };
            let (blocks, count) = (self.core.kernel_blocks, pieces.len() as u32);
            let launch =
                Kernel::Copy { pieces: self.upload(&table, table.bytes, self.stream)?, count, blocks };
            // SAFETY: as in `engine`, for all pieces; the table stays as it is until a step behind this has
            // passed.
            let launched = unsafe { self.core.driver.launch(launch, self.stream) };
            self.tables_done = self.tables.end();
            match launched {
                Ok(()) => {
                    self.core.stats.launches.add(1);
                    return Ok(());
                }
                Err(error) if error.kind == DeviceErrorKind::Unsupported => self.means.kernels = false,
                Err(error) => return Err(error),
            }
        }
        let request = |piece: Piece| CopyRequest {
            target: piece.target,
            source: piece.source,
            bytes: piece.bytes as usize,
        };
        let requests: Vec<CopyRequest> = pieces.into_iter().map(request).collect();
        self.batch(job, &requests)
    }

    /// Room for so many more calls in the stream, when older ones are done: a driver whose queue is full
    /// keeps the calling thread, and with it locks that the engine's own launches need.
    pub(super) fn take_calls(&mut self, job: &Job, calls: usize) -> Result<(), DeviceError> {
        if job.flight.is_cancelled() {
            return Err(cancelled());
        }
        let calls = calls as u64;
        if self.calls.given - self.calls.stepped + calls > STEP_CALLS_MAX as u64 {
            self.step(Act::Nothing);
        }
        while self.calls.given - self.calls.done + calls > STREAM_CALLS_MAX as u64 {
            self.wait_step(&job.flight)?;
        }
        self.calls.given += calls;
        Ok(())
    }

    /// Where kernels find a table of so many bytes: copied to the device before they run, or where it is.
    pub(super) fn upload(
        &self,
        table: &Taken,
        bytes: usize,
        stream: Stream,
    ) -> Result<DeviceAddress, DeviceError> {
        let Some(uploads) = &self.uploads else { return Ok(table.address()) };
        let target = uploads.address() + self.tables.offset(table) as u64;
        let request = CopyRequest { target, source: table.address(), bytes };
        // SAFETY: both are ours until a step behind the kernel has passed; the place on the device is free
        // when that in the ring is.
        unsafe { self.core.driver.copy(request, stream) }.map(|()| target)
    }

    /// A piece of the ring of tables, when older work has freed it.
    pub(super) fn take_tables(&mut self, job: &Job, bytes: usize) -> Result<Taken, DeviceError> {
        loop {
            if let Some(taken) = self.tables.take(bytes) {
                return Ok(taken);
            }
            self.wait_room(job)?;
        }
    }

    fn take_staging(&mut self, job: &Job, bytes: usize) -> Result<Taken, DeviceError> {
        loop {
            if let Some(taken) = self.staging.take(bytes) {
                return Ok(taken);
            }
            self.wait_room(job)?;
        }
    }

    /// Waits for older work. What was enqueued since the last step gets one, or it would be waited for in
    /// vain.
    fn wait_room(&mut self, job: &Job) -> Result<(), DeviceError> {
        let last = self.steps.back().map(|step| (step.tables_end, step.staging_end));
        if last != Some((self.tables_done, self.staging_done)) {
            self.step(Act::Nothing);
        }
        self.wait_step(&job.flight)
    }
}

/// The pages that are copied and then verified together. Pages that come layer by layer are only whole when
/// all are.
fn groups(job: &Job, bytes_max: usize) -> Vec<Range<usize>> {
    let (count, mut groups) = (job.pages.len(), Vec::new());
    let whole = job.to_slots() || !job.checksums || job.layers > 1;
    let (mut first, mut bytes) = (0, 0);
    for (number, page) in job.pages.iter().enumerate() {
        if !whole && bytes > 0 && bytes + page.plan.slot_bytes() > bytes_max {
            groups.push(first..number);
            (first, bytes) = (number, 0);
        }
        bytes += page.plan.slot_bytes();
    }
    groups.push(first..count);
    groups
}

/// The parts of each page that are copied one after another.
fn parts(job: &Job) -> Result<Vec<Vec<Range<usize>>>, DeviceError> {
    let parts = job.pages.iter().map(|page| page.plan.layers(job.layers.max(1)));
    let parts: Result<_, _> = parts.collect();
    parts.map_err(|error| DeviceError::new(DeviceErrorKind::Invalid, error.to_string()))
}

fn request(to_slots: bool, memory: u64, place: u64, bytes: usize) -> CopyRequest {
    let (target, source) = if to_slots { (place, memory) } else { (memory, place) };
    CopyRequest { target, source, bytes }
}

/// The pieces between two places of device memory: where the runs of both overlap in slot order.
fn push_within(
    page: &JobPage,
    source: &crate::device::plan::DevicePlan,
    part: Range<usize>,
    pieces: &mut Vec<CopyRequest>,
) {
    for run in page.plan.within(part) {
        for from in source.within(run.slot_offset..run.slot_offset + run.bytes) {
            let target = run.memory + (from.slot_offset - run.slot_offset) as u64;
            push_merged(pieces, CopyRequest { target, source: from.memory, bytes: from.bytes });
        }
    }
}
