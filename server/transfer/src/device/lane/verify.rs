//! Checksums of pages, taken by the device. Owns: the tables that say what a page is made of. Must not know: what the checksums
//! are compared with.

use std::ops::Range;
use std::sync::Arc;

use super::{Act, Job, JobPage, Lane};
use crate::checksum::Appended;
use crate::device::buffer::Scratch;
use crate::device::driver::{DeviceError, DeviceErrorKind, Kernel, PagePieces, Piece};
use crate::device::flight::OwnedEvent;
use crate::device::staging::Taken;
use crate::limits::{CHECKSUM_CALLS, CHECKSUM_PART_BYTES, CHECKSUM_PIECES_MAX, DEVICE_RUNS_MAX, RING_ALIGN};

/// Some of the parts of some pages, at least one.
struct Parts<'a> {
    pages: Range<usize>,
    /// The parts of every page of the job.
    of: &'a [Vec<Range<usize>>],
    parts: Range<usize>,
}

impl Parts<'_> {
    /// Which bytes of a page's slot they are.
    fn range(&self, page: usize) -> Range<usize> {
        let of = &self.of[page];
        of[self.parts.start].start..of[self.parts.end - 1].end
    }
}

/// Pages of one launch.
#[derive(Default)]
struct Table {
    pieces: Vec<Piece>,
    pages: Vec<PagePieces>,
    bytes: usize,
    /// The job's number of the first page.
    first: usize,
    /// Bytes of each, where they follow others of its page.
    appended: Vec<usize>,
}

impl Table {
    /// Adds a part of a page in slot order, gaps as zeros.
    fn push(&mut self, page: &JobPage, part: Range<usize>) {
        let first = self.pieces.len();
        let mut position = part.start;
        let part_bytes = part_bytes(page.plan.slot_bytes());
        for run in page.plan.within(part.clone()) {
            self.push_zeros(run.slot_offset - position);
            let mut done = 0;
            while done < run.bytes {
                let bytes = part_bytes.min(run.bytes - done);
                self.pieces.push(Piece { target: 0, source: run.memory + done as u64, bytes: bytes as u64 });
                done += bytes;
            }
            position = run.slot_offset + run.bytes;
        }
        self.push_zeros(part.end - position);
        self.pages.push(PagePieces { first: first as u32, count: (self.pieces.len() - first) as u32 });
        self.bytes += part.len();
    }

    fn push_zeros(&mut self, bytes: usize) {
        if bytes > 0 {
            self.pieces.push(Piece { target: 0, source: 0, bytes: bytes as u64 });
        }
    }
}

/// A device takes a piece's checksum with one block or one warp of threads: long runs go in parts, so that a few large pages
/// keep as much of it busy as many small ones.
fn part_bytes(slot_bytes: usize) -> usize {
    slot_bytes.div_ceil(DEVICE_RUNS_MAX).next_multiple_of(RING_ALIGN).max(CHECKSUM_PART_BYTES)
}

/// Pieces that a page may come to: its runs, a gap before each and one at the end, and the cuts in long runs.
fn pieces_max(page: &JobPage) -> usize {
    let slot_bytes = page.plan.slot_bytes();
    page.plan.pieces().len() * 2 + 1 + slot_bytes / part_bytes(slot_bytes)
}

impl Lane {
    /// Enqueues the checksums of a group of pages. To slots: from where the bytes come, so that what is damaged on the way does not
    /// verify later. From slots: where they have come to, behind the events of `layers`, so that the way here is checked too. What
    /// comes after them is copied meanwhile. `on_cpu`: those that the device cannot take.
    pub(super) fn sum(
        &mut self,
        job: &Job,
        (group, of): (Range<usize>, &[Vec<Range<usize>>]),
        (layers, gathered): (&[Arc<OwnedEvent>], bool),
        on_cpu: &mut Vec<usize>,
    ) -> Result<(), DeviceError> {
        let mut summed = 0;
        for part in job.summed_after() {
            match layers.get(part) {
                _ if job.to_slots() => {}
                Some(layer) => layer.hold_up(self.sums_stream)?,
                None => self.record_copies(gathered)?.hold_up(self.sums_stream)?,
            }
            let parts = Parts { pages: group.clone(), of, parts: summed..part + 1 };
            self.enqueue_checksums(job, parts, on_cpu)?;
            summed = part + 1;
        }
        Ok(())
    }

    fn enqueue_checksums(
        &mut self,
        job: &Job,
        parts: Parts<'_>,
        on_cpu: &mut Vec<usize>,
    ) -> Result<(), DeviceError> {
        let chunk_bytes = self.means.of_job(job.layers, job.pieces, job.bytes).chunk_bytes;
        let mut table = Table::default();
        for position in parts.pages.clone() {
            let (page, part) = (&job.pages[position], parts.range(position));
            let full = table.pieces.len() + pieces_max(page) > CHECKSUM_PIECES_MAX
                || table.bytes + part.len() > chunk_bytes;
            if full && !table.pages.is_empty() {
                self.launch_checksums(job, std::mem::take(&mut table), on_cpu)?;
            }
            if table.pages.is_empty() {
                table.first = position;
            }
            if part.start > 0 {
                table.appended.push(part.len());
            }
            table.push(page, part);
        }
        if table.pages.is_empty() { Ok(()) } else { self.launch_checksums(job, table, on_cpu) }
    }

    fn launch_checksums(
        &mut self,
        job: &Job,
        table: Table,
        on_cpu: &mut Vec<usize>,
    ) -> Result<(), DeviceError> {
        let first = table.first;
        let pages = first..first + table.pages.len();
        let scratch = self.scratch.as_ref().filter(|_| self.means.kernels).map(Scratch::address);
        let Some(scratch) = scratch else {
            return leave_to_cpu(job, pages, on_cpu);
        };
        let (pieces_bytes, pages_bytes) = (size_of_val(&*table.pieces), size_of_val(&*table.pages));
        let output_bytes = table.pages.len() * size_of::<u64>();
        self.take_calls(job, CHECKSUM_CALLS)?;
        let taken = self.take_tables(job, pieces_bytes + pages_bytes + output_bytes)?;
        // SAFETY: the piece was just taken, and is as long as all three; pieces, pages and sums are multiples of 8 bytes, so
        // that each begins aligned behind the one before.
        let output = unsafe {
            let pages_at = taken.memory.add(pieces_bytes);
            std::ptr::copy_nonoverlapping(table.pieces.as_ptr(), taken.memory.cast(), table.pieces.len());
            std::ptr::copy_nonoverlapping(table.pages.as_ptr(), pages_at.cast(), table.pages.len());
            Taken { memory: pages_at.add(pages_bytes), bytes: output_bytes }
        };
        let pieces = self.upload(&taken, pieces_bytes + pages_bytes, self.sums_stream)?;
        let kernel = Kernel::Checksum {
            pieces,
            count: table.pieces.len() as u32,
            pages: pieces + pieces_bytes as u64,
            page_count: table.pages.len() as u32,
            scratch,
            output: output.address(),
        };
        // SAFETY: the pieces are of plans, whose makers vouched for them; table, scratch and output are ours until a step
        // behind this has passed. The scratch is used by this stream only, launch after launch.
        let launched = unsafe { self.core.driver.launch(kernel, self.sums_stream) };
        self.used.tables = self.tables.end();
        // Whatever became of it, what it may have begun is waited for.
        let appended = table.appended;
        let act = if launched.is_ok() { Act::Sums { output, first, appended } } else { Act::Nothing };
        self.step_in(self.sums_stream, act);
        match launched {
            Err(error) if error.kind == DeviceErrorKind::Unsupported => {
                self.means.kernels = false;
                leave_to_cpu(job, pages, on_cpu)
            }
            launched => launched,
        }
    }

    /// Takes note of the checksums of a launch that is done. `appended`: of how many bytes each is, behind those of the same page
    /// whose checksum is known; empty: none are.
    pub(super) fn read_sums(&mut self, output: Taken, first: usize, appended: &[usize]) {
        // SAFETY: the kernel that wrote them is done, and the piece becomes free only after this.
        let bytes = unsafe { output.bytes_mut() };
        let (words, _) = bytes.as_chunks::<8>();
        self.sums.resize(self.sums.len().max(first + words.len()), 0);
        let mut behind = (0, Appended::bytes(0));
        for (at, (sum, word)) in self.sums[first..].iter_mut().zip(words).enumerate() {
            let word = u64::from_ne_bytes(*word);
            let Some(&bytes) = appended.get(at) else {
                *sum = word;
                continue;
            };
            if behind.0 != bytes {
                behind = (bytes, Appended::bytes(bytes)); // pages are alike: once, most of the time
            }
            *sum = behind.1.join(*sum, word);
        }
    }
}

/// Leaves the checksums of pages to the CPU, which takes them over their slots.
///
/// # Errors
/// It cannot look into a slot of the device's memory. Such memory is not lent where the device takes no checksums.
fn leave_to_cpu(job: &Job, pages: Range<usize>, on_cpu: &mut Vec<usize>) -> Result<(), DeviceError> {
    if job.pages[pages.clone()].iter().any(|page| page.other.is_lent()) {
        let text = "the device takes no checksums any more, and no CPU can look at pages in its memory";
        return Err(DeviceError::new(DeviceErrorKind::Unsupported, text));
    }
    on_cpu.extend(pages);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{JobPage, Table, part_bytes, pieces_max};
    use crate::device::lane::Other;
    use crate::device::plan::DevicePlan;
    use crate::limits::{CHECKSUM_PART_BYTES, CHECKSUM_PIECES_MAX, DEVICE_RUNS_MAX};

    fn page(runs: &[(u64, usize)]) -> JobPage {
        // SAFETY: nothing copies by this plan.
        let plan = unsafe { DevicePlan::runs(runs) }.expect("runs that can be planned");
        JobPage { other: Other::Source(plan.clone()), plan }
    }

    #[test]
    fn long_runs_are_cut_so_that_a_large_page_is_work_for_many() {
        let page = page(&[(1 << 20, 2 << 20), (1 << 30, 100), (1 << 32, CHECKSUM_PART_BYTES + 1)]);
        let mut table = Table::default();
        table.push(&page, 0..page.plan.slot_bytes());
        assert_eq!(table.pieces.len(), (2 << 20) / CHECKSUM_PART_BYTES + 1 + 2);
        assert!(table.pieces.len() <= pieces_max(&page));
        let (mut expected, mut rest) = (page.plan.pieces().iter(), 0);
        let mut next = 0;
        for piece in &table.pieces {
            if rest == 0 {
                let run = expected.next().expect("no more pieces than runs have bytes");
                (next, rest) = (run.memory, run.bytes as u64);
            }
            assert_eq!(piece.source, next);
            (next, rest) = (next + piece.bytes, rest - piece.bytes);
        }
        assert_eq!((rest, expected.next()), (0, None));
    }

    #[test]
    fn pages_of_any_size_fit_a_launch() {
        for slot_bytes in [1, 4096, 2 << 20, 1 << 40] {
            let cuts = slot_bytes / part_bytes(slot_bytes);
            assert!(DEVICE_RUNS_MAX * 2 + 1 + cuts <= CHECKSUM_PIECES_MAX, "{slot_bytes}");
        }
    }
}
