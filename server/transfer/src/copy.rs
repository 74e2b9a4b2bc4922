//! Copies of pages, fused with their checksum. Owns: the choice of the copy instructions. Must not know:
//! slots, plans.
//!
//! A page is as large as the cache, and its copy is read by somebody else later: writing it through the cache
//! would first read every target line and throw other data out. Non-temporal stores do neither. Where the
//! processor multiplies without carries, the checksum is folded out of the very registers that are stored, so
//! that every byte is loaded once:
//!
//! ```text
//!   load a block -> fold it onto the remainders (fold.rs) -> store it past the cache
//! ```
//!
//! Elsewhere both go chunk by chunk: a chunk is copied to a stage in L1, summed there, and copied on from there.
//! Prefetching by hand only takes bandwidth away.
//!
//! Either end may be in a region, where somebody else may be writing: every byte is loaded once, by `shared` or
//! by a kernel's own instructions, so the checksum is that of the bytes that were copied, whoever wrote them.

use std::ptr;
use std::sync::OnceLock;

use bytes::BytesMut;

use self::kernel::{CopyKernel, LINE_BYTES, copy_plain};
use crate::checksum::Checksum;
use crate::limits::{CHUNK_BYTES, STREAMING_BYTES_MIN};
use crate::shared;

mod fold;
mod kernel;
#[cfg(all(target_arch = "aarch64", not(miri)))]
mod neon;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86;

#[cfg(all(target_arch = "aarch64", not(miri)))]
use neon::KERNELS;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use x86::KERNELS;

/// Names the kernel to use (`avx512`, `avx2`, `sse`, ...: see its table), to measure and to test each of
/// them. A kernel that this processor cannot run is not used, whatever this says.
const KERNEL_VARIABLE: &str = "TURNKV_COPY_KERNEL";

/// Copies `source` to `target` past the cache and adds it to a checksum.
///
/// # Panics
/// If the lengths differ.
pub fn copy_streaming(source: &[u8], target: &mut [u8], sum: &mut Checksum) {
    assert_eq!(source.len(), target.len(), "a copy is as long as its source");
    // SAFETY: both slices are valid for their length, and an exclusive borrow overlaps no other.
    unsafe { copy_part_checksummed(source.as_ptr(), target.as_mut_ptr(), source.len(), sum) }
}

/// Copies `source` through the cache to the end of `target` and adds it to a checksum: whoever sends it finds
/// it in the cache.
pub(crate) fn append(source: &[u8], target: &mut BytesMut, sum: &mut Checksum) {
    for chunk in source.chunks(CHUNK_BYTES) {
        sum.update(chunk);
        target.extend_from_slice(chunk);
    }
}

/// The same of bytes that others may be writing.
///
/// # Safety
/// `source` is readable for `bytes`.
pub(crate) unsafe fn append_shared(
    source: *const u8,
    bytes: usize,
    target: &mut BytesMut,
    sum: &mut Checksum,
) {
    target.reserve(bytes);
    for start in (0..bytes).step_by(CHUNK_BYTES) {
        let (chunk, before) = (CHUNK_BYTES.min(bytes - start), target.len());
        // SAFETY: the chunk ends at `bytes` or before, and the room for it was reserved; it is initialised when it becomes part of the
        // buffer.
        unsafe {
            let room = target.spare_capacity_mut().as_mut_ptr().cast();
            shared::copy(source.add(start), room, chunk);
            target.set_len(before + chunk);
        }
        sum.update(&target[before..]);
    }
}

/// A chunk on the stack, whole cache lines: what others write elsewhere does not change it.
#[repr(align(64))]
pub(crate) struct Stage {
    pub(crate) bytes: [u8; CHUNK_BYTES],
}

impl Stage {
    pub(crate) fn new() -> Self {
        Self { bytes: [0; CHUNK_BYTES] }
    }

    /// Copies the next bytes here, adding them to a checksum.
    ///
    /// # Panics
    /// If they are more than a chunk.
    ///
    /// # Safety
    /// `source` is readable for `bytes`.
    pub(crate) unsafe fn take(&mut self, source: *const u8, bytes: usize, sum: &mut Checksum) -> &[u8] {
        let stage = &mut self.bytes[..bytes];
        // SAFETY: the caller's promise; the stage is as long, and ours alone.
        unsafe { shared::copy(source, stage.as_mut_ptr(), bytes) };
        sum.update(stage);
        stage
    }
}

/// Adds `bytes` bytes to a checksum.
///
/// # Safety
/// `source` is readable for `bytes`.
pub(crate) unsafe fn sum_part(source: *const u8, bytes: usize, sum: &mut Checksum) {
    // SAFETY: the caller's promise.
    unsafe { StreamingCopy::new().sum(source, bytes, sum) }
}

/// Copies `bytes` bytes and gives their checksum. All of them are visible to other cores before this returns.
///
/// # Safety
/// `source` is readable and `target` writable for `bytes`, and they do not overlap. Others may write both
/// meanwhile, unless Rust code refers to it.
pub(crate) unsafe fn copy_checksummed(source: *const u8, target: *mut u8, bytes: usize) -> u64 {
    let mut sum = Checksum::new();
    // SAFETY: the caller's promise.
    unsafe { copy_part_checksummed(source, target, bytes, &mut sum) };
    sum.finish()
}

/// The same, adding to a checksum.
///
/// # Safety
/// As [`copy_checksummed`].
pub(crate) unsafe fn copy_part_checksummed(
    source: *const u8,
    target: *mut u8,
    bytes: usize,
    sum: &mut Checksum,
) {
    if bytes < STREAMING_BYTES_MIN {
        let mut stage = Stage::new();
        for start in (0..bytes).step_by(CHUNK_BYTES) {
            // SAFETY: the chunk ends at `bytes` or before, the range that the caller vouches for.
            unsafe {
                let chunk = stage.take(source.add(start), CHUNK_BYTES.min(bytes - start), sum);
                shared::copy(chunk.as_ptr(), target.add(start), chunk.len());
            }
        }
        return;
    }
    let stream = StreamingCopy::new();
    // SAFETY: the caller's promise.
    unsafe { stream.copy_summed(source, target, bytes, sum) };
    stream.finish();
}

/// Copies `source` to `target` with the kernel of that name and gives the checksum; `None` where this
/// processor cannot run it.
///
/// # Panics
/// If the lengths differ.
pub fn copy_streaming_by(kernel: &str, source: &[u8], target: &mut [u8]) -> Option<u64> {
    assert_eq!(source.len(), target.len(), "a copy is as long as its source");
    let stream = StreamingCopy { kernel: runnable().find(|one| one.name == kernel)? };
    let mut sum = Checksum::new();
    // SAFETY: both slices are valid for their length, and an exclusive borrow overlaps no other.
    unsafe { stream.copy_summed(source.as_ptr(), target.as_mut_ptr(), source.len(), &mut sum) };
    stream.finish();
    Some(sum.finish())
}

/// The names of the kernels that this processor runs, the best first.
pub fn copy_kernels() -> Vec<&'static str> {
    runnable().map(|kernel| kernel.name).collect()
}

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
static KERNELS: [CopyKernel; 0] = [];

/// Every processor runs it.
static PLAIN: CopyKernel = CopyKernel { name: "plain", runs: || true, copy: copy_plain, fused: None };

/// The kernels that this processor runs, the best first.
fn runnable() -> impl Iterator<Item = &'static CopyKernel> {
    KERNELS.iter().chain([&PLAIN]).filter(|kernel| (kernel.runs)())
}

/// Streaming copies with the best instructions that this processor has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamingCopy {
    kernel: &'static CopyKernel,
}

impl StreamingCopy {
    pub(crate) fn new() -> Self {
        static BEST: OnceLock<&'static CopyKernel> = OnceLock::new();
        let kernel = BEST.get_or_init(|| {
            let named = std::env::var(KERNEL_VARIABLE).unwrap_or_default();
            runnable().find(|kernel| kernel.name == named).or_else(|| runnable().next()).unwrap_or(&PLAIN)
        });
        Self { kernel }
    }

    /// Copies `bytes`. Call [`StreamingCopy::finish`] after the last copy.
    ///
    /// # Safety
    /// As [`copy_checksummed`].
    #[inline]
    pub(crate) unsafe fn copy(self, source: *const u8, target: *mut u8, bytes: usize) {
        // SAFETY: the caller's promise; this processor runs the kernel.
        unsafe { (self.kernel.copy)(source, target, bytes) }
    }

    /// Copies `bytes` and adds them to a checksum. Call [`StreamingCopy::finish`] after the last copy.
    ///
    /// # Safety
    /// As [`copy_checksummed`].
    pub(crate) unsafe fn copy_summed(
        self,
        source: *const u8,
        target: *mut u8,
        bytes: usize,
        sum: &mut Checksum,
    ) {
        let mut done = 0;
        if let Some(fused) = &self.kernel.fused {
            // Streaming stores want whole, aligned lines: the ragged ends are not fused.
            let head = target.align_offset(LINE_BYTES).min(bytes);
            let body = (bytes - head) / fused.block_bytes * fused.block_bytes;
            if body > 0 {
                // SAFETY: the caller's promise; `head + body <= bytes`, the body is whole blocks, its target
                // is aligned.
                unsafe {
                    self.copy_chunks(source, target, head, sum);
                    let remainder = (fused.copy)(source.add(head), target.add(head), body, sum.register());
                    sum.resume(&remainder);
                }
                done = head + body;
            }
        }
        // SAFETY: `done <= bytes`, the range that the caller vouches for.
        unsafe { self.copy_chunks(source.add(done), target.add(done), bytes - done, sum) };
    }

    /// Adds `bytes` bytes to a checksum, and copies nothing.
    ///
    /// # Safety
    /// `source` is readable for `bytes`.
    unsafe fn sum(self, source: *const u8, bytes: usize, sum: &mut Checksum) {
        let mut done = 0;
        if let Some(fused) = &self.kernel.fused {
            done = bytes / fused.block_bytes * fused.block_bytes;
            if done > 0 {
                // SAFETY: the caller's promise; whole blocks, one at least; this processor runs the kernel.
                let remainder = unsafe { (fused.sum)(source, ptr::null_mut(), done, sum.register()) };
                sum.resume(&remainder);
            }
        }
        let mut stage = Stage::new();
        for start in (done..bytes).step_by(CHUNK_BYTES) {
            // SAFETY: the chunk ends at `bytes` or before.
            unsafe { stage.take(source.add(start), CHUNK_BYTES.min(bytes - start), sum) };
        }
    }

    /// The same as [`StreamingCopy::copy_summed`] without a fused kernel.
    ///
    /// # Safety
    /// As [`copy_checksummed`].
    unsafe fn copy_chunks(self, source: *const u8, target: *mut u8, bytes: usize, sum: &mut Checksum) {
        let (mut stage, mut done) = (Stage::new(), 0);
        while done < bytes {
            // The first chunk ends on a cache line of the target, so that no later one shares a line with its
            // neighbour.
            let skew = target.addr().wrapping_add(done) % LINE_BYTES;
            let piece = (CHUNK_BYTES - skew).min(bytes - done);
            // SAFETY: `done + piece <= bytes`, the range that the caller vouches for.
            unsafe {
                let chunk = stage.take(source.add(done), piece, sum);
                self.copy(chunk.as_ptr(), target.add(done), piece);
            }
            done += piece;
        }
    }

    /// Orders the streaming stores before all later ones: who is told of the copy afterwards sees all of it.
    #[inline]
    pub(crate) fn finish(self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        x86::fence();
    }
}

#[cfg(test)]
mod tests;
