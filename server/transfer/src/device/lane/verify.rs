//! Checksums of pages, taken by the device. Owns: the tables that say what a page is made of. Must not know: what the checksums
//! are compared with.

use std::ops::Range;

use super::{Act, Job, JobPage, Lane};
use crate::device::buffer::Scratch;
use crate::device::driver::{DeviceError, DeviceErrorKind, Kernel, PagePieces, Piece};
use crate::device::staging::Taken;
use crate::limits::{CHECKSUM_CALLS, CHECKSUM_PART_BYTES, CHECKSUM_PIECES_MAX, DEVICE_RUNS_MAX, RING_ALIGN};

/// Pages of one launch.
#[derive(Default)]
struct Table {
    pieces: Vec<Piece>,
    pages: Vec<PagePieces>,
    bytes: usize,
}

impl Table {
    /// Adds a page in slot order, gaps as zeros.
    fn push(&mut self, page: &JobPage) {
        let first = self.pieces.len();
        let mut position = 0;
        let part_bytes = part_bytes(page.plan.slot_bytes());
        for run in page.plan.pieces() {
            self.push_zeros(run.slot_offset - position);
            let mut done = 0;
            while done < run.bytes {
                let bytes = part_bytes.min(run.bytes - done);
                self.pieces.push(Piece { target: 0, source: run.memory + done as u64, bytes: bytes as u64 });
                done += bytes;
            }
            position = run.slot_offset + run.bytes;
        }
        self.push_zeros(page.plan.slot_bytes() - position);
        self.pages.push(PagePieces { first: first as u32, count: (self.pieces.len() - first) as u32 });
        self.bytes += page.plan.slot_bytes();
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
    /// Enqueues the checksums of some pages. `on_cpu`: those that the device cannot take.
    pub(super) fn enqueue_checksums(
        &mut self,
        job: &Job,
        pages: Range<usize>,
        on_cpu: &mut Vec<usize>,
    ) -> Result<(), DeviceError> {
        let mut table = Table::default();
        let mut first = pages.start;
        for position in pages {
            let page = &job.pages[position];
            let full = table.pieces.len() + pieces_max(page) > CHECKSUM_PIECES_MAX
                || table.bytes + page.plan.slot_bytes() > self.means.chunk_bytes;
            if full && !table.pages.is_empty() {
                self.launch_checksums(job, &std::mem::take(&mut table), first, on_cpu)?;
                first = position;
            }
            table.push(page);
        }
        if table.pages.is_empty() { Ok(()) } else { self.launch_checksums(job, &table, first, on_cpu) }
    }

    fn launch_checksums(
        &mut self,
        job: &Job,
        table: &Table,
        first: usize,
        on_cpu: &mut Vec<usize>,
    ) -> Result<(), DeviceError> {
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
        let act = if launched.is_ok() { Act::Sums { output, first } } else { Act::Nothing };
        self.step_in(self.sums_stream, act);
        match launched {
            Err(error) if error.kind == DeviceErrorKind::Unsupported => {
                self.means.kernels = false;
                leave_to_cpu(job, pages, on_cpu)
            }
            launched => launched,
        }
    }

    /// Takes note of the checksums of a launch that is done.
    pub(super) fn read_sums(&mut self, output: Taken, first: usize) {
        // SAFETY: the kernel that wrote them is done, and the piece becomes free only after this.
        let bytes = unsafe { output.bytes_mut() };
        let (words, _) = bytes.as_chunks::<8>();
        self.sums.resize(self.sums.len().max(first + words.len()), 0);
        for (sum, word) in self.sums[first..].iter_mut().zip(words) {
            *sum = u64::from_ne_bytes(*word);
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
        table.push(&page);
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
