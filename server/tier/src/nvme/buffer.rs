//! Memory that O_DIRECT accepts, for the control plane: headers, footers, recovery. Owns: its allocation.
//! Must not know: what is in it. Payloads never pass through here, they lie in slots.

use crate::limits::BLOCK;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Zeroed bytes that begin on a block and are whole blocks long.
pub(crate) struct AlignedBuffer {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the buffer owns its allocation alone, as a `Box<[u8]>` does; nothing in it belongs to a thread.
unsafe impl Send for AlignedBuffer {}

impl AlignedBuffer {
    /// At least `bytes`, rounded up to whole blocks.
    pub(crate) fn new(bytes: usize) -> AlignedBuffer {
        let bytes = bytes.max(1).next_multiple_of(BLOCK);
        // SAFETY: the layout's size is not zero (`max(1)` above).
        let base = unsafe { alloc_zeroed(layout(bytes)) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout(bytes)) };
        AlignedBuffer { base, bytes }
    }

    /// A copy of `source`, padded with zeros.
    pub(crate) fn copy_of(source: &[u8]) -> AlignedBuffer {
        let mut buffer = AlignedBuffer::new(source.len());
        buffer[..source.len()].copy_from_slice(source);
        buffer
    }
}

fn layout(bytes: usize) -> Layout {
    // SAFETY: 4096 is a power of two, and callers round sizes far below isize::MAX to whole blocks.
    unsafe { Layout::from_size_align_unchecked(bytes, BLOCK) }
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `base` is our own allocation of `bytes` initialised (zeroed) bytes; `&self` keeps writers away.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, and freed only here.
        unsafe { dealloc(self.base.as_ptr(), layout(self.bytes)) }
    }
}
