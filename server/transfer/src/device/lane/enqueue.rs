//! From a job to calls of a driver. Owns: which bytes go where, directly or through staging memory, and in
//! what order. Must not know: when they are done.

use std::ops::Range;
use std::sync::Arc;

use super::{Act, Job, JobPage, Lane, Other};
use crate::device::choose::{Way, Work, choose, push_merged};
use crate::device::driver::{
    CopyRequest, DeviceAddress, DeviceError, DeviceErrorKind, Kernel, Piece, Stream,
};
use crate::device::flight::cancelled;
use crate::device::register::cut_after;
use crate::device::staging::Taken;
use crate::limits::{
    BATCH_COPIES_A_CALL, COPY_LAUNCH_CALLS, KERNEL_BLOCKS_WITHIN_FACTOR, REGISTER_PIECE_BYTES,
    STAGED_PIECE_BYTES_MAX, STEP_CALLS_MAX, STREAM_CALLS_MAX,
};
use crate::plan::Run;
use crate::slot::Slot;

/// How a page is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// Piece by piece.
    Direct,
    /// Over the link in one piece, which is put together, or taken apart, on the device.
    Gathered,
    /// Through pinned memory: the device cannot reach its slot.
    Staged,
}

/// Of one batch.
const BATCH_COPIES_MAX: usize = STEP_CALLS_MAX * BATCH_COPIES_A_CALL;

impl Lane {
    /// Enqueues all of a job. `on_cpu`: the pages whose checksums the device does not take.
    pub(super) fn enqueue(&mut self, job: &Job, on_cpu: &mut Vec<usize>) -> Result<(), DeviceError> {
        if job.reads_lent() {
            self.core.driver.flush_nic_writes()?;
        }
        let routes = self.routes(job);
        let gathered = routes.contains(&Route::Gathered);
        if let Some(after) = &job.after {
            after.0.hold_up(self.stream)?;
            if job.to_slots() && job.checksums {
                after.0.hold_up(self.sums_stream)?;
            }
            if job.to_slots() && gathered {
                after.0.hold_up(self.within_stream)?;
            }
        }
        let parts = parts(job)?;
        let mut layers = Vec::with_capacity(job.layers);
        for group in groups(job, self.means.chunk_bytes) {
            if gathered {
                self.enqueue_gathered(job, &routes, group.clone())?;
            }
            let is_last = group.end == job.pages.len();
            for part in 0..job.layers.max(1) {
                self.enqueue_part(job, &routes, &parts, group.clone(), part)?;
                if job.layers > 0 && is_last {
                    self.take_calls(job, 2)?;
                    layers.push(Arc::new(self.record_copies(gathered)?));
                }
            }
            if is_last {
                // Before its checksums, whose tables may have to wait for room until much of this is there: an engine begins
                // with its first layer meanwhile.
                job.flight.set_enqueued(Ok(()), layers.clone());
            }
            self.sum(job, (group, &parts), (&layers, gathered), on_cpu)?;
        }
        Ok(())
    }

    /// Enqueues one of the parts of a group of pages, but for those that are gathered.
    fn enqueue_part(
        &mut self,
        job: &Job,
        routes: &[Route],
        parts: &[Vec<Range<usize>>],
        group: Range<usize>,
        part: usize,
    ) -> Result<(), DeviceError> {
        let mut pieces = Vec::new();
        for number in group {
            let (page, part) = (&job.pages[number], parts[number][part].clone());
            match (routes[number], &page.other) {
                (Route::Gathered, _) => {}
                (Route::Staged, _) => self.stage(job, page, part)?,
                (Route::Direct, Other::Source(source)) => {
                    self.core.stats.device_bytes.add(part.len() as u64);
                    push_within(page, source, part, &mut pieces);
                }
                (Route::Direct, Other::Lent(slot)) => self.push_lent(job, page, slot, part, &mut pieces),
                (Route::Direct, Other::FillingLent(slot)) => {
                    self.blank_lent(job, page, slot)?;
                    self.push_lent(job, page, slot, part, &mut pieces);
                }
                (Route::Direct, Other::Slot(slot)) => {
                    self.push_slot(job, page, slot.slot(), part, &mut pieces);
                }
                (Route::Direct, Other::Filling(slot)) => {
                    page.plan.gaps().for_each(|gap| slot.blank(gap));
                    self.push_slot(job, page, slot.slot(), part, &mut pieces);
                }
            }
        }
        self.issue(job, pieces)
    }

    /// How each page of a job is copied.
    fn routes(&self, job: &Job) -> Vec<Route> {
        let gathered = self.is_gathered(job);
        let route = |page: &JobPage| match page.other.slot() {
            Some(slot) if !self.core.registry.is_direct(slot) => Route::Staged,
            Some(_) if gathered => Route::Gathered,
            Some(_) | None => Route::Direct,
        };
        job.pages.iter().map(route).collect()
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
        self.core.stats.direct_bytes.add(part.len() as u64);
        for run in page.plan.within(part) {
            push_run(job, slot, run, pieces);
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
                Other::Filling(_) | Other::Source(_) | Other::Lent(_) | Other::FillingLent(_) => {}
            }
            let mut pieces = Vec::new();
            for run in page.plan.within(start..end) {
                let place = staged.address() + (run.slot_offset - start) as u64;
                push_merged(&mut pieces, request(job.to_slots(), run.memory, place, run.bytes));
            }
            self.issue(job, pieces)?;
            self.used.staging = self.staging.end();
            self.step(match &page.other {
                Other::Filling(filling) => {
                    Act::ToSlot { staged, filling: Arc::clone(filling), offset: start }
                }
                Other::Slot(_) | Other::Source(_) | Other::Lent(_) | Other::FillingLent(_) => Act::Nothing,
            });
            start = end;
        }
        Ok(())
    }

    /// Enqueues pieces in whatever way suits them.
    fn issue(&mut self, job: &Job, pieces: Vec<CopyRequest>) -> Result<(), DeviceError> {
        for work in choose(pieces, job.way(), self.means.of_job(job.layers, job.pieces, job.bytes)) {
            self.work(job, work, self.stream)?;
        }
        Ok(())
    }

    /// Enqueues calls in a stream.
    pub(super) fn work(&mut self, job: &Job, work: Work, stream: Stream) -> Result<(), DeviceError> {
        match work {
            Work::Engine(requests) => self.engine(job, &requests, stream),
            Work::Batch(requests) => self.batch(job, &requests, stream),
            Work::Kernel(requests) => self.kernel(job, &requests, stream),
        }
    }

    fn engine(&mut self, job: &Job, requests: &[CopyRequest], stream: Stream) -> Result<(), DeviceError> {
        for request in requests {
            self.take_calls(job, 1)?;
            // SAFETY: one side is a plan's memory, whose maker vouched for it, or where it is gathered; the other
            // is a slot of a registered region, staging memory, or another plan's. All are owned by the job until its last
            // event has passed, Rust code refers to no slot's bytes, the right to write those that are filled
            // is the job's, and the order against the engine's streams is by the mark that we waited for.
            unsafe { self.core.driver.copy(*request, stream)? };
        }
        self.core.stats.engine_calls.add(requests.len() as u64);
        Ok(())
    }

    fn batch(&mut self, job: &Job, requests: &[CopyRequest], stream: Stream) -> Result<(), DeviceError> {
        for (at, part) in requests.chunks(BATCH_COPIES_MAX).enumerate() {
            if !self.means.batch {
                return self.engine(job, &requests[at * BATCH_COPIES_MAX..], stream);
            }
            self.take_calls(job, part.len().div_ceil(BATCH_COPIES_A_CALL))?;
            // SAFETY: as in `engine`.
            match unsafe { self.core.driver.copy_batch(part, stream) } {
                Ok(()) => self.core.stats.engine_calls.add(1),
                Err(error) if error.kind == DeviceErrorKind::Unsupported => {
                    self.means.batch = false;
                    self.engine(job, part, stream)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn kernel(&mut self, job: &Job, requests: &[CopyRequest], stream: Stream) -> Result<(), DeviceError> {
        if self.means.kernels {
            self.take_calls(job, COPY_LAUNCH_CALLS)?;
            let table = self.take_tables(job, requests.len() * size_of::<Piece>())?;
            for (at, &CopyRequest { target, source, bytes }) in requests.iter().enumerate() {
                let piece = Piece { target, source, bytes: bytes as u64 };
                // SAFETY: the piece of the ring was just taken, is as long as the table and aligned for it (rings align to more).
                unsafe { table.memory.cast::<Piece>().add(at).write(piece) };
            }
            let within = stream == self.within_stream || job.way() == Way::Within;
            let times = if within { KERNEL_BLOCKS_WITHIN_FACTOR } else { 1 };
            let (blocks, count) = (self.core.kernel_blocks * times, requests.len() as u32);
            let pieces = self.upload(&table, table.bytes, stream)?;
            let launch = Kernel::Copy { pieces, count, blocks };
            // SAFETY: as in `engine`, for all pieces; the table stays as it is until a step behind this has
            // passed.
            let launched = unsafe { self.core.driver.launch(launch, stream) };
            self.used.tables = self.tables.end();
            match launched {
                Ok(()) => {
                    self.core.stats.launches.add(1);
                    return Ok(());
                }
                Err(error) if error.kind == DeviceErrorKind::Unsupported => self.means.kernels = false,
                Err(error) => return Err(error),
            }
        }
        self.batch(job, requests, stream)
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

    pub(super) fn take_staging(&mut self, job: &Job, bytes: usize) -> Result<Taken, DeviceError> {
        loop {
            if let Some(taken) = self.staging.take(bytes) {
                return Ok(taken);
            }
            self.wait_room(job)?;
        }
    }

    /// Waits for older work. What was enqueued since the last step gets one, or it would be waited for in
    /// vain.
    pub(super) fn wait_room(&mut self, job: &Job) -> Result<(), DeviceError> {
        if self.steps.back().map(|step| step.used) != Some(self.used) {
            self.step(Act::Nothing);
        }
        self.wait_step(&job.flight)
    }
}

/// The pages that are copied and summed together. Pages that come layer by layer are only whole when all are.
fn groups(job: &Job, bytes_max: usize) -> Vec<Range<usize>> {
    let (count, mut groups) = (job.pages.len(), Vec::new());
    let whole = !job.checksums || job.layers > 1;
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

/// The pieces between a run, at a place that the device can reach, and its part of a slot of a registered region.
pub(super) fn push_run(job: &Job, slot: &Slot, run: Run<DeviceAddress>, pieces: &mut Vec<CopyRequest>) {
    let base = slot.as_ptr().expose_provenance() as u64;
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

pub(super) fn request(to_slots: bool, memory: u64, place: u64, bytes: usize) -> CopyRequest {
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
