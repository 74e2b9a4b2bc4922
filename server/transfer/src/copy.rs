//! Copies of pages, fused with their checksum. Owns: the choice of the copy instructions. Must not know: slots, plans.
//!
//! A page is as large as the cache, and its copy is read by somebody else later: writing it through the cache would first
//! read every target line and throw other data out. Non-temporal stores do neither, which makes checksum and copy together
//! 1.2 to 1.5 times as fast as memcpy alone. The checksum needs the bytes in the cache once, so both go chunk by chunk:
//!
//! ```text
//!   chunk i:   checksum (reads it from memory into L1)  ->  streaming copy (reads L1, while the hardware prefetches i + 1)
//! ```
//!
//! Small chunks interleave reading and writing best, and prefetching by hand only takes bandwidth away: see [`CHUNK_BYTES`].

use crate::checksum::Checksum;
use crate::limits::{CHUNK_BYTES, STREAMING_BYTES_MIN};

/// Bytes of a cache line.
const LINE_BYTES: usize = 64;

/// Copies `source` to `target` past the cache and adds it to a checksum.
///
/// # Panics
/// If the lengths differ.
pub fn copy_streaming(source: &[u8], target: &mut [u8], sum: &mut Checksum) {
    assert_eq!(source.len(), target.len(), "a copy is as long as its source");
    // SAFETY: both slices are valid for their length, and an exclusive borrow overlaps no other.
    unsafe { copy_part_checksummed(source.as_ptr(), target.as_mut_ptr(), source.len(), sum) }
}

/// Copies `bytes` bytes and gives the checksum of the source. All of it is visible to other cores before this returns.
///
/// # Safety
/// `source` is readable and `target` writable for `bytes`, they do not overlap, and nobody writes either meanwhile.
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
        // SAFETY: the caller's promise.
        return unsafe {
            sum.update(std::slice::from_raw_parts(source, bytes));
            std::ptr::copy_nonoverlapping(source, target, bytes);
        };
    }
    let stream = Stream::new();
    let mut done = 0;
    while done < bytes {
        // The first chunk ends on a cache line of the target, so that no later one shares a line with its neighbour.
        let skew = target.addr().wrapping_add(done) % LINE_BYTES;
        let piece = (CHUNK_BYTES - skew).min(bytes - done);
        // SAFETY: `done + piece <= bytes`, the range that the caller vouches for.
        unsafe {
            sum.update(std::slice::from_raw_parts(source.add(done), piece));
            stream.copy(source.add(done), target.add(done), piece);
        }
        done += piece;
    }
    stream.finish();
}

/// Streaming copies with the widest stores that this processor has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    kernel: Kernel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    #[cfg_attr(all(target_arch = "x86_64", not(miri)), expect(dead_code, reason = "every x86-64 has SSE2"))]
    Plain,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Sse2,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx2,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Avx512,
}

impl Stream {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    pub(crate) fn new() -> Self {
        let kernel = if std::arch::is_x86_feature_detected!("avx512f") {
            Kernel::Avx512
        } else if std::arch::is_x86_feature_detected!("avx2") {
            Kernel::Avx2
        } else {
            Kernel::Sse2
        };
        Self { kernel }
    }

    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    pub(crate) fn new() -> Self {
        Self { kernel: Kernel::Plain }
    }

    /// Copies `bytes`. Call [`Stream::finish`] after the last copy.
    ///
    /// # Safety
    /// As [`copy_checksummed`].
    #[inline]
    pub(crate) unsafe fn copy(self, source: *const u8, target: *mut u8, bytes: usize) {
        match self.kernel {
            // SAFETY: the caller's promise, in every arm; `new` found the instructions that an arm needs.
            Kernel::Plain => unsafe { std::ptr::copy_nonoverlapping(source, target, bytes) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Kernel::Sse2 => unsafe { x86::copy_sse2(source, target, bytes) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Kernel::Avx2 => unsafe { x86::copy_avx2(source, target, bytes) },
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            // SAFETY: as above.
            Kernel::Avx512 => unsafe { x86::copy_avx512(source, target, bytes) },
        }
    }

    /// Orders the streaming stores before all later ones: who is told of the copy afterwards sees all of it.
    #[inline]
    pub(crate) fn finish(self) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        x86::fence();
    }
}

/// The kernels. They differ only in the register's width: the shape is written once, as a macro.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, __m512i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128, _mm256_loadu_si256,
        _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512,
    };

    use super::LINE_BYTES;

    pub(super) fn fence() {
        // SAFETY: every x86-64 has SSE.
        unsafe { _mm_sfence() };
    }

    macro_rules! streaming_kernel {
        ($name:ident, $feature:literal, $vector:ty, $load:ident, $store:ident, $registers:literal) => {
            /// # Safety
            /// As `Stream::copy`, on a processor that has the feature.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(source: *const u8, target: *mut u8, bytes: usize) {
                const WIDTH: usize = size_of::<$vector>();
                // All registers but a few. Loads go before stores, in blocks: a load that follows a store to the same
                // place modulo 4 KiB waits for it, as if they were the same address.
                const BLOCK_BYTES: usize = $registers * WIDTH;
                // Streaming stores want whole, aligned lines: the ragged ends are copied plainly.
                let head = target.align_offset(LINE_BYTES).min(bytes);
                let end = head + (bytes - head) / LINE_BYTES * LINE_BYTES;
                // SAFETY: every access is below `bytes`, which the caller vouches for. `target + at` is aligned to a line
                // wherever a line is stored, so to the vector.
                unsafe {
                    std::ptr::copy_nonoverlapping(source, target, head);
                    let mut at = head;
                    while end - at >= BLOCK_BYTES {
                        let block: [$vector; BLOCK_BYTES / WIDTH] =
                            std::array::from_fn(|i| $load(source.add(at + i * WIDTH).cast()));
                        for (i, vector) in block.into_iter().enumerate() {
                            $store(target.add(at + i * WIDTH).cast(), vector);
                        }
                        at += BLOCK_BYTES;
                    }
                    while at < end {
                        $store(target.add(at).cast(), $load(source.add(at).cast()));
                        at += WIDTH;
                    }
                    std::ptr::copy_nonoverlapping(source.add(end), target.add(end), bytes - end);
                }
            }
        };
    }

    streaming_kernel!(copy_sse2, "sse2", __m128i, _mm_loadu_si128, _mm_stream_si128, 8);
    streaming_kernel!(copy_avx2, "avx2", __m256i, _mm256_loadu_si256, _mm256_stream_si256, 8);
    streaming_kernel!(copy_avx512, "avx512f", __m512i, _mm512_loadu_si512, _mm512_stream_si512, 16);
}

#[cfg(test)]
mod tests;
