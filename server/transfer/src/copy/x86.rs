//! The copy kernels of x86-64. Owns: streaming copies, plain and fused with their checksum, for each width of
//! registers. Must not know: which of them this processor has.
//!
//! Kernels differ in their registers only: each shape is written once, as a macro. What they load and store may be
//! written by others meanwhile, so both are instructions that the compiler does not look into (see
//! [`crate::shared`]): the loads here, the streaming stores in the standard library.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_clmulepi64_si128, _mm_loadu_si128, _mm_set_epi64x, _mm_sfence,
    _mm_storeu_si128, _mm_stream_si128, _mm_xor_si128, _mm256_broadcastsi128_si256, _mm256_clmulepi64_epi128,
    _mm256_storeu_si256, _mm256_stream_si256, _mm256_xor_si256, _mm256_zextsi128_si256,
    _mm512_broadcast_i32x4, _mm512_clmulepi64_epi128, _mm512_storeu_si512, _mm512_stream_si512,
    _mm512_xor_si512, _mm512_zextsi128_si512,
};

use super::fold::{REMAINDER_BYTES, Remainder, Shift};
use super::kernel::{CopyKernel, Fused, LINE_BYTES};
use crate::shared;

macro_rules! has {
    ($($feature:tt),+) => {
        || $(std::arch::is_x86_feature_detected!($feature))&&+
    };
}

/// The best first. Every x86-64 runs the last.
pub(super) static KERNELS: [CopyKernel; 6] = [
    CopyKernel {
        name: "avx512",
        runs: has!("avx512f", "vpclmulqdq", "pclmulqdq"),
        copy: copy_avx512,
        fused: Some(Fused {
            block_bytes: AVX512_BLOCK_BYTES,
            copy: fused_avx512::<true>,
            sum: fused_avx512::<false>,
        }),
    },
    CopyKernel {
        name: "avx2",
        runs: has!("avx2", "vpclmulqdq", "pclmulqdq"),
        copy: copy_avx2,
        fused: Some(Fused {
            block_bytes: AVX2_BLOCK_BYTES,
            copy: fused_avx2::<true>,
            sum: fused_avx2::<false>,
        }),
    },
    // Without wide products a fold of 16 bytes was not measured to gain anything: these copy wide, chunk by
    // chunk.
    CopyKernel { name: "avx512-chunks", runs: has!("avx512f"), copy: copy_avx512, fused: None },
    CopyKernel { name: "avx2-chunks", runs: has!("avx2"), copy: copy_avx2, fused: None },
    CopyKernel {
        name: "sse",
        runs: has!("pclmulqdq"),
        copy: copy_sse2,
        fused: Some(Fused { block_bytes: SSE_BLOCK_BYTES, copy: fused_sse::<true>, sum: fused_sse::<false> }),
    },
    CopyKernel { name: "sse2", runs: has!("sse2"), copy: copy_sse2, fused: None },
];

pub(super) fn fence() {
    // SAFETY: every x86-64 has SSE.
    unsafe { _mm_sfence() };
}

macro_rules! load {
    ($name:ident, $block:ident, $feature:literal, $vector:ty, $registers:ident, $instruction:literal) => {
        /// Loads a vector from any address, whoever writes there.
        ///
        /// # Safety
        /// The vector is readable, on a processor that has the feature.
        #[inline]
        #[target_feature(enable = $feature)]
        unsafe fn $name(from: *const $vector) -> $vector {
            let vector;
            // SAFETY: the caller's promise; the instruction reads the vector and nothing else.
            unsafe {
                asm!(
                    concat!($instruction, " {}, [{}]"),
                    out($registers) vector,
                    in(reg) from,
                    options(nostack, preserves_flags, readonly)
                );
            }
            vector
        }

        /// Loads so many vectors, one behind the other. The kernels are loops: an adapter of the standard library, such as
        /// `array::from_fn`, is compiled without the feature, and where it is not inlined each vector goes through memory.
        ///
        /// # Safety
        /// The vectors are readable, on a processor that has the feature.
        #[inline]
        #[target_feature(enable = $feature)]
        unsafe fn $block<const COUNT: usize>(from: *const u8) -> [$vector; COUNT] {
            let from = from.cast::<$vector>();
            // SAFETY: the caller's promise.
            let mut block = [unsafe { $name(from) }; COUNT];
            for i in 1..COUNT {
                // SAFETY: the caller's promise.
                block[i] = unsafe { $name(from.add(i)) };
            }
            block
        }
    };
}

load!(load_128, load_block_128, "sse2", __m128i, xmm_reg, "movdqu");
load!(load_256, load_block_256, "avx2", __m256i, ymm_reg, "vmovdqu");
load!(load_512, load_block_512, "avx512f", __m512i, zmm_reg, "vmovdqu64");

macro_rules! streaming_kernel {
    ($name:ident, $feature:literal, $vector:ty, $load:ident, $load_block:ident, $store:ident, $registers:literal) => {
        /// # Safety
        /// As `StreamingCopy::copy`, on a processor that has the feature.
        #[target_feature(enable = $feature)]
        unsafe fn $name(source: *const u8, target: *mut u8, bytes: usize) {
            const WIDTH: usize = size_of::<$vector>();
            // All registers but a few. Loads go before stores, in blocks: a load that follows a store to the
            // same place modulo 4 KiB waits for it, as if they were the same address.
            const BLOCK_BYTES: usize = $registers * WIDTH;
            // Streaming stores want whole, aligned lines: the ragged ends are copied plainly.
            let head = target.align_offset(LINE_BYTES).min(bytes);
            let end = head + (bytes - head) / LINE_BYTES * LINE_BYTES;
            // SAFETY: every access is below `bytes`, which the caller vouches for. `target + at` is aligned
            // to a line wherever a line is stored, so to the vector.
            unsafe {
                shared::copy(source, target, head);
                let mut at = head;
                while end - at >= BLOCK_BYTES {
                    let block: [$vector; $registers] = $load_block(source.add(at));
                    for i in 0..$registers {
                        $store(target.add(at + i * WIDTH).cast(), block[i]);
                    }
                    at += BLOCK_BYTES;
                }
                while at < end {
                    $store(target.add(at).cast(), $load(source.add(at).cast()));
                    at += WIDTH;
                }
                shared::copy(source.add(end), target.add(end), bytes - end);
            }
        }
    };
}

streaming_kernel!(copy_sse2, "sse2", __m128i, load_128, load_block_128, _mm_stream_si128, 8);
streaming_kernel!(copy_avx2, "avx2", __m256i, load_256, load_block_256, _mm256_stream_si256, 8);
streaming_kernel!(copy_avx512, "avx512f", __m512i, load_512, load_block_512, _mm512_stream_si512, 16);

macro_rules! fused_kernel {
    (
        $name:ident, $feature:literal, $vector:ty, $registers:literal, $block:ident,
        $load_block:ident, $stream:ident, $store:ident, $xor:ident, $multiply:ident, $widen:expr, $repeat:expr
    ) => {
        /// Bytes that the kernel moves at once.
        const $block: usize = $registers * size_of::<$vector>();

        /// Folds `bytes` bytes, and copies them if it is to: `$registers` registers of remainders, each of
        /// every `$registers`th vector, and the last ones into one at the end.
        ///
        /// # Safety
        /// As `StreamingCopy::copy`, on a processor that has the features. `bytes` is a multiple of the
        /// block, one at least; `target` is aligned to a line, and not used where nothing is copied.
        #[target_feature(enable = $feature)]
        unsafe fn $name<const COPIES: bool>(
            source: *const u8,
            target: *mut u8,
            bytes: usize,
            register: u64,
        ) -> Remainder {
            const WIDTH: usize = size_of::<$vector>();
            const BLOCK: Shift = Shift::by_bytes($block);
            const VECTOR: Shift = Shift::by_bytes(WIDTH);
            const LANE: Shift = Shift::by_bytes(REMAINDER_BYTES);
            let pair = |shift: &Shift| _mm_set_epi64x(shift.second.cast_signed(), shift.first.cast_signed());
            let fold = |vector, by, next| {
                $xor($xor($multiply::<0x00>(vector, by), $multiply::<0x11>(vector, by)), next)
            };
            let block_shift = $repeat(pair(&BLOCK));
            // SAFETY: every access is below `bytes`, which the caller vouches for; `target + at` is aligned
            // to the vector, as the target and every step are, and only made where something is copied.
            unsafe {
                let mut folded: [$vector; $registers] = $load_block(source);
                if COPIES {
                    for i in 0..$registers {
                        $stream(target.add(i * WIDTH).cast(), folded[i]);
                    }
                }
                // What the register holds lies over the first eight bytes.
                folded[0] = $xor(folded[0], $widen(_mm_set_epi64x(0, register.cast_signed())));
                let mut at = $block;
                while at < bytes {
                    let block: [$vector; $registers] = $load_block(source.add(at));
                    for i in 0..$registers {
                        folded[i] = fold(folded[i], block_shift, block[i]);
                    }
                    if COPIES {
                        for i in 0..$registers {
                            $stream(target.add(at + i * WIDTH).cast(), block[i]);
                        }
                    }
                    at += $block;
                }
                let vector_shift = $repeat(pair(&VECTOR));
                let mut one = folded[0];
                for next in &folded[1..] {
                    one = fold(one, vector_shift, *next);
                }
                let mut lanes: [Remainder; WIDTH / REMAINDER_BYTES] = [[0; _]; _];
                $store(lanes.as_mut_ptr().cast(), one);
                let lane_shift = pair(&LANE);
                let mut last = _mm_loadu_si128(lanes[0].as_ptr().cast());
                for lane in &lanes[1..] {
                    let next = _mm_loadu_si128(lane.as_ptr().cast());
                    let product = _mm_xor_si128(
                        _mm_clmulepi64_si128::<0x00>(last, lane_shift),
                        _mm_clmulepi64_si128::<0x11>(last, lane_shift),
                    );
                    last = _mm_xor_si128(product, next);
                }
                let mut remainder: Remainder = [0; REMAINDER_BYTES];
                _mm_storeu_si128(remainder.as_mut_ptr().cast(), last);
                remainder
            }
        }
    };
}

fused_kernel!(
    fused_sse,
    "sse2,pclmulqdq",
    __m128i,
    4,
    SSE_BLOCK_BYTES,
    load_block_128,
    _mm_stream_si128,
    _mm_storeu_si128,
    _mm_xor_si128,
    _mm_clmulepi64_si128,
    std::convert::identity,
    std::convert::identity
);
fused_kernel!(
    fused_avx2,
    "avx2,vpclmulqdq,pclmulqdq",
    __m256i,
    4,
    AVX2_BLOCK_BYTES,
    load_block_256,
    _mm256_stream_si256,
    _mm256_storeu_si256,
    _mm256_xor_si256,
    _mm256_clmulepi64_epi128,
    _mm256_zextsi128_si256,
    _mm256_broadcastsi128_si256
);
fused_kernel!(
    fused_avx512,
    "avx512f,vpclmulqdq,pclmulqdq",
    __m512i,
    8,
    AVX512_BLOCK_BYTES,
    load_block_512,
    _mm512_stream_si512,
    _mm512_storeu_si512,
    _mm512_xor_si512,
    _mm512_clmulepi64_epi128,
    _mm512_zextsi128_si512,
    _mm512_broadcast_i32x4
);
