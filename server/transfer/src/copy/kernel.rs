//! What a copy kernel is: its name, whether this processor runs it, its functions. Must not know: which
//! kernels there are.

use super::fold::Remainder;
use crate::shared;

/// Bytes of a cache line.
pub(super) const LINE_BYTES: usize = 64;

/// A way to copy, to and from memory that others may be writing: each load and store of it is one that
/// [`crate::shared`] allows.
#[derive(Debug)]
pub(super) struct CopyKernel {
    pub(super) name: &'static str,
    /// Whether this processor has the instructions.
    pub(super) runs: fn() -> bool,
    /// Copies so many bytes, streaming where there is such a thing.
    pub(super) copy: unsafe fn(*const u8, *mut u8, usize),
    /// Copy and checksum in one.
    pub(super) fused: Option<Fused>,
}

/// Folds whole blocks onto the checksum's register: source, target, bytes, register.
pub(super) type Fold = unsafe fn(*const u8, *mut u8, usize, u64) -> Remainder;

/// Checksums out of wide registers.
#[derive(Debug)]
pub(super) struct Fused {
    pub(super) block_bytes: usize,
    /// Copies to an aligned target on the way.
    pub(super) copy: Fold,
    /// Uses no target.
    pub(super) sum: Fold,
}

/// # Safety
/// `source` is readable and `target` writable for `bytes`, and they do not overlap.
pub(super) unsafe fn copy_plain(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { shared::copy(source, target, bytes) }
}
