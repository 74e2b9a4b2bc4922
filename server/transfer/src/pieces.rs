//! Pieces of pages on their way into a socket. Owns: their buffers, which are used again and again: fresh
//! memory for every piece would cost more page faults than its copy. Must not know: who sends them.

use crate::checksum::Checksum;
use crate::copy::append;
use crate::limits::{HEAP_KEPT_BYTES, HEAPS_MAX, PIECE_BUFFERS_MAX};
use crate::memory::PageMemory;
use crate::page::Page;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::ops::Range;

/// Buffers of one size. Each is free again once nobody holds the piece in it any more.
#[derive(Debug)]
pub struct PieceBuffers {
    piece_bytes: usize,
    /// What was left of every buffer when its piece went out: the way to have its memory back.
    kept: Mutex<Vec<BytesMut>>,
}

impl PieceBuffers {
    /// Buffers for pieces of at most `piece_bytes`.
    #[must_use]
    pub fn new(piece_bytes: usize) -> PieceBuffers {
        PieceBuffers { piece_bytes, kept: Mutex::new(Vec::new()) }
    }

    /// A copy of `source`, which is added to the checksum on the way. It stays in the cache for whoever sends
    /// it.
    ///
    /// # Panics
    /// If the source is larger than a piece.
    #[must_use]
    pub fn copy(&self, source: &[u8], sum: &mut Checksum) -> Bytes {
        self.piece(source.len(), |buffer| append(source, buffer, sum))
    }

    /// The same of a part of a page in its slot.
    ///
    /// # Panics
    /// If the part is larger than a piece, or does not lie inside the slot.
    #[must_use]
    pub fn copy_page(&self, page: &Page, part: Range<usize>, sum: &mut Checksum) -> Bytes {
        self.piece(part.len(), |buffer| page.append_to(part, buffer, sum))
    }

    /// The same of a part of a page in memory of its own.
    ///
    /// # Panics
    /// If the part is larger than a piece, or does not lie inside the page.
    #[must_use]
    pub fn copy_memory(&self, memory: &PageMemory, part: Range<usize>, sum: &mut Checksum) -> Bytes {
        self.piece(part.len(), |buffer| memory.append_to(part, buffer, sum))
    }

    fn piece(&self, bytes: usize, fill: impl FnOnce(&mut BytesMut)) -> Bytes {
        assert!(bytes <= self.piece_bytes, "a piece is cut to fit");
        let (place, mut buffer) = self.take();
        fill(&mut buffer);
        let piece = buffer.split().freeze();
        if let Some(kept) = self.kept.lock().get_mut(place) {
            *kept = buffer;
        }
        piece
    }

    /// The first that is free, and its place. The same few go round and stay in the cache.
    fn take(&self) -> (usize, BytesMut) {
        let mut kept = self.kept.lock();
        let free = kept.iter_mut().position(|buffer| buffer.try_reclaim(self.piece_bytes));
        if let Some(place) = free {
            return (place, std::mem::take(&mut kept[place]));
        }
        if kept.len() < PIECE_BUFFERS_MAX {
            kept.push(BytesMut::new());
            return (kept.len() - 1, BytesMut::with_capacity(self.piece_bytes));
        }
        (usize::MAX, BytesMut::with_capacity(self.piece_bytes)) // has no place: not kept
    }
}

/// Keeps what this process frees of its heap, up to twice [`HEAP_KEPT_BYTES`], for its next allocations.
/// HTTP/2 allocates a buffer for every piece that arrives; glibc would give it back to the system and fault
/// it in again, which costs as much as the copies. Its thresholds follow the largest block that was ever
/// freed, so freeing one, untouched, is all that it takes.
pub fn keep_heap() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(HEAP_KEPT_BYTES)));
}

/// Has all threads of this process allocate from few heaps ([`HEAPS_MAX`]). To be called before there are
/// threads: glibc makes one a thread, up to eight a core, and each keeps what [`keep_heap`] says; only that
/// of the first heap comes back by [`trim_heap`].
pub fn share_heaps() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes two numbers and returns one, and glibc's allocator may be asked from any thread
    // at any time.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, HEAPS_MAX)
    };
}

/// Memory of this process's heaps that nobody uses: it was needed once, and lies between what is still in
/// use.
#[must_use]
pub fn free_heap_bytes() -> usize {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes nothing and returns a struct of numbers, and glibc's allocator may be asked from
    // any thread at any time.
    let free_bytes = unsafe { libc::mallinfo2() }.fordblks;
    #[cfg(not(target_env = "gnu"))]
    let free_bytes = 0;
    free_bytes
}

/// Gives free memory of this process's heap back to the system: after a burst, what was needed for it would
/// stay. It takes milliseconds, and the next allocations fault their memory in again.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes a number and returns one, and glibc's allocator may be asked from any thread at
    // any time.
    unsafe {
        libc::malloc_trim(HEAP_KEPT_BYTES)
    };
}

#[cfg(test)]
mod tests {
    use super::PieceBuffers;
    use crate::checksum::{Checksum, checksum};
    use crate::limits::PIECE_BUFFERS_MAX;

    #[test]
    fn a_held_piece_keeps_its_bytes_and_a_dropped_one_lends_its_memory() {
        let buffers = PieceBuffers::new(100_000);
        let sources: Vec<Vec<u8>> = (0..=PIECE_BUFFERS_MAX as u8).map(|at| vec![at; 100_000]).collect();
        let mut sum = Checksum::new();
        let held: Vec<_> = sources.iter().map(|source| buffers.copy(source, &mut sum)).collect();
        assert_eq!(sum.finish(), checksum(&sources.concat()));
        assert!(held.iter().zip(&sources).all(|(piece, source)| piece[..] == source[..]));
        let first = held[0].as_ptr();
        drop(held);
        let again = buffers.copy(b"short", &mut sum);
        assert_eq!((again.as_ptr(), &again[..]), (first, &b"short"[..]));
        assert!(buffers.kept.lock().len() <= PIECE_BUFFERS_MAX);
    }
}
