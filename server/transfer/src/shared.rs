//! Copies of bytes that somebody else may be writing.
//!
//! Owns: the loads and stores by which processors touch a region's bytes. Must not know: slots, checksums.
//!
//! A region is mapped by other processes, and devices and disks write into it. Rust knows nothing of these: a
//! plain load of a byte that is written meanwhile is undefined behaviour, whatever becomes of the byte, and so
//! is a reference to it. No lease mends that, because a peer may break its lease. So these copies are made by
//! instructions that the compiler does not look into. What such a block may do is what Rust code could do in
//! its place: load and store every byte by itself, atomically and relaxed. Races of relaxed atomics are
//! defined, and a byte has no invalid value, so each copied byte is one that somebody wrote there, perhaps not
//! beside its neighbour. Whether the bytes belong together is what checksums and leases are for.
//!
//! What this asks of the rest of the crate: no reference to a region's bytes, shared or exclusive, is ever
//! made, and every other load or store of them is such a block too (the copy kernels' are).

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
use std::arch::asm;

/// Copies `bytes` bytes, in any order.
///
/// # Safety
/// `source` is readable and `target` writable for `bytes`, and they do not overlap. Others may write both: of
/// what they write each byte comes over or does not. Memory that Rust code refers to is written by nobody else.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise; the direction flag is clear on entry, as everywhere in Rust.
    unsafe {
        asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") source => _,
            inout("rdi") target => _,
            options(nostack, preserves_flags)
        );
    }
}

/// The same here: blocks of four registers, then single bytes.
///
/// # Safety
/// `source` is readable and `target` writable for `bytes`, and they do not overlap. Others may write both: of
/// what they write each byte comes over or does not. Memory that Rust code refers to is written by nobody else.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize) {
    const BLOCK_BYTES: usize = 64;
    // SAFETY: the caller's promise; both loops end with the last byte of what they are given.
    unsafe {
        let (mut from, mut to) = (source, target);
        let blocks = bytes / BLOCK_BYTES;
        if blocks > 0 {
            asm!(
                "2:",
                "ldp {a:q}, {b:q}, [{from}]",
                "ldp {c:q}, {d:q}, [{from}, #32]",
                "add {from}, {from}, #64",
                "stp {a:q}, {b:q}, [{to}]",
                "stp {c:q}, {d:q}, [{to}, #32]",
                "add {to}, {to}, #64",
                "sub {left}, {left}, #1",
                "cbnz {left}, 2b",
                from = inout(reg) from,
                to = inout(reg) to,
                left = inout(reg) blocks => _,
                a = out(vreg) _,
                b = out(vreg) _,
                c = out(vreg) _,
                d = out(vreg) _,
                options(nostack, preserves_flags)
            );
        }
        let rest = bytes % BLOCK_BYTES;
        if rest > 0 {
            asm!(
                "2:",
                "ldrb {byte:w}, [{from}], #1",
                "strb {byte:w}, [{to}], #1",
                "sub {left}, {left}, #1",
                "cbnz {left}, 2b",
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                left = inout(reg) rest => _,
                byte = out(reg) _,
                options(nostack, preserves_flags)
            );
        }
    }
}

/// The same where no instructions are known: in so many words.
///
/// # Safety
/// `source` is readable and `target` writable for `bytes`, and they do not overlap. Others may write both: of
/// what they write each byte comes over or does not. Memory that Rust code refers to is written by nobody else.
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
pub(crate) unsafe fn copy(source: *const u8, target: *mut u8, bytes: usize) {
    use std::sync::atomic::{AtomicU8, Ordering};
    for at in 0..bytes {
        // SAFETY: the caller's promise. The source may be memory that only reads are allowed of: an atomic load
        // of one byte writes nothing.
        unsafe {
            let byte = AtomicU8::from_ptr(source.add(at).cast_mut()).load(Ordering::Relaxed);
            AtomicU8::from_ptr(target.add(at)).store(byte, Ordering::Relaxed);
        }
    }
}
