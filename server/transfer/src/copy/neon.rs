//! The fused copy kernel of 64-bit ARM. Owns: copy and checksum in one pass with PMULL. Must not know:
//! whether this processor has it.
//!
//! There are no streaming stores here: these processors notice whole lines that are written one after another
//! by themselves. What is copied may be written by others meanwhile, so it is loaded and stored by instructions that
//! the compiler does not look into (see [`crate::shared`]).

use std::arch::aarch64::{
    uint8x16_t, uint64x2_t, veorq_u8, vgetq_lane_u64, vld1q_u8, vmull_p64, vreinterpretq_u8_p128,
    vreinterpretq_u64_u8, vst1q_u8,
};
use std::arch::asm;

use super::fold::{REMAINDER_BYTES, Remainder, Shift};
use super::kernel::{CopyKernel, Fused, copy_plain};

/// The only one.
pub(super) static KERNELS: [CopyKernel; 1] = [CopyKernel {
    name: "neon",
    runs: || std::arch::is_aarch64_feature_detected!("pmull"),
    copy: copy_plain,
    fused: Some(Fused { block_bytes: NEON_BLOCK_BYTES, copy: fused_neon::<true>, sum: fused_neon::<false> }),
}];

/// Vectors that are folded side by side.
const VECTORS: usize = 8;
/// Bytes that the kernel moves at once.
const NEON_BLOCK_BYTES: usize = VECTORS * REMAINDER_BYTES;

/// Folds `bytes` bytes, and copies them if it is to.
///
/// # Safety
/// As `StreamingCopy::copy`, on a processor that has the features. `bytes` is a multiple of the block, one at
/// least; `target` is not used where nothing is copied.
#[target_feature(enable = "neon,aes")]
unsafe fn fused_neon<const COPIES: bool>(
    source: *const u8,
    target: *mut u8,
    bytes: usize,
    register: u64,
) -> Remainder {
    const BLOCK: Shift = Shift::by_bytes(NEON_BLOCK_BYTES);
    const LANE: Shift = Shift::by_bytes(REMAINDER_BYTES);
    // SAFETY: every access is below `bytes`, which the caller vouches for.
    unsafe {
        let mut folded = load_block(source);
        if COPIES {
            store_block(target, &folded);
        }
        // What the register holds lies over the first eight bytes.
        let mut over = [0; REMAINDER_BYTES];
        over[..8].copy_from_slice(&register.to_le_bytes());
        folded[0] = veorq_u8(folded[0], vld1q_u8(over.as_ptr()));
        let mut at = NEON_BLOCK_BYTES;
        while at < bytes {
            let block = load_block(source.add(at));
            for i in 0..VECTORS {
                folded[i] = fold(folded[i], &BLOCK, block[i]);
            }
            if COPIES {
                store_block(target.add(at), &block);
            }
            at += NEON_BLOCK_BYTES;
        }
        let mut one = folded[0];
        for next in &folded[1..] {
            one = fold(one, &LANE, *next);
        }
        let mut remainder = [0; REMAINDER_BYTES];
        vst1q_u8(remainder.as_mut_ptr(), one);
        remainder
    }
}

/// Loads a vector from any address, whoever writes there.
///
/// # Safety
/// The vector is readable.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load(from: *const u8) -> uint8x16_t {
    let vector;
    // SAFETY: the caller's promise; the instruction reads the vector and nothing else.
    unsafe {
        asm!("ldr {:q}, [{}]", out(vreg) vector, in(reg) from, options(nostack, preserves_flags, readonly));
    }
    vector
}

/// Loads the vectors of a block. The kernel is of loops: a closure that the standard library calls is compiled without its
/// features (see the loads of x86-64).
///
/// # Safety
/// The block is readable.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn load_block(from: *const u8) -> [uint8x16_t; VECTORS] {
    // SAFETY: the caller's promise.
    let mut block = [unsafe { load(from) }; VECTORS];
    for (i, vector) in block.iter_mut().enumerate().skip(1) {
        // SAFETY: the caller's promise.
        *vector = unsafe { load(from.add(i * REMAINDER_BYTES)) };
    }
    block
}

/// Stores a vector to any address, whoever else writes there.
///
/// # Safety
/// The vector is writable.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn store(to: *mut u8, vector: uint8x16_t) {
    // SAFETY: the caller's promise; the instruction writes the vector and nothing else.
    unsafe { asm!("str {:q}, [{}]", in(vreg) vector, in(reg) to, options(nostack, preserves_flags)) };
}

/// Stores the vectors of a block.
///
/// # Safety
/// The block is writable.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn store_block(to: *mut u8, block: &[uint8x16_t; VECTORS]) {
    for (i, vector) in block.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { store(to.add(i * REMAINDER_BYTES), *vector) };
    }
}

#[inline]
#[target_feature(enable = "neon,aes")]
fn fold(vector: uint8x16_t, by: &Shift, next: uint8x16_t) -> uint8x16_t {
    let words: uint64x2_t = vreinterpretq_u64_u8(vector);
    let first = vreinterpretq_u8_p128(vmull_p64(vgetq_lane_u64::<0>(words), by.first));
    let second = vreinterpretq_u8_p128(vmull_p64(vgetq_lane_u64::<1>(words), by.second));
    veorq_u8(veorq_u8(first, second), next)
}
