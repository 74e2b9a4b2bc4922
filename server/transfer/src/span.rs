//! A stretch of address space with pieces of slots mapped into it, so that scattered slots read as one array.
//!
//! Owns: the stretch, which piece of it is mapped, the share of the system's mappings that spans may use. Must not know: which
//! page a slot holds, who leases it.
//!
//! Where nothing is mapped there is ordinary private memory that reads as zeros and costs nothing until it is written: no
//! address of a span ever faults, whatever view of it a careless user keeps.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::checksum::Checksum;
use crate::copy;
use crate::limits::{MAPPINGS_MAX_USUAL, MAPPINGS_PERCENT_MAX};
use crate::slot::Slot;

/// Pieces mapped by all spans of this process.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// See the module text.
#[derive(Debug)]
pub struct Span {
    base: NonNull<u8>,
    piece_bytes: usize,
    /// Which pieces are mapped now.
    pieces: Mutex<Vec<bool>>,
    bytes: usize,
    /// A forked child has a copy of the mappings that are its parent's to end.
    process: u32,
}

// SAFETY: a span is an address range that stays reserved until `drop`; it belongs to no thread.
unsafe impl Send for Span {}
// SAFETY: as above; changes of what is mapped are serialised by the mutex, and no reference into the range is ever made here.
unsafe impl Sync for Span {}

impl Span {
    /// Reserves room for `pieces` pieces.
    ///
    /// # Errors
    /// `InvalidInput` if pieces are not whole memory pages or there are none, else what the system says.
    pub fn reserve(piece_bytes: usize, pieces: usize) -> io::Result<Span> {
        let bytes = piece_bytes.checked_mul(pieces).filter(|bytes| *bytes > 0);
        let (true, Some(bytes)) = (piece_bytes.is_multiple_of(rustix::param::page_size()), bytes) else {
            let text = format!("{pieces} pieces of {piece_bytes} bytes: a piece must be whole memory pages");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        let base = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags)? };
        // A few tokens written to private memory must not cost huge pages; core dumps hold no conversations.
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontDump] {
            // SAFETY: the range was mapped a line ago; the advice changes no byte, and its refusal changes nothing.
            unsafe { rustix::mm::madvise(base, bytes, advice) }.unwrap_or_default();
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let pieces = Mutex::new(vec![false; pieces]);
        Ok(Span { base, piece_bytes, pieces, bytes, process: std::process::id() })
    }

    /// Where a piece is in this process. Whoever reads or writes there holds the lease of what is mapped.
    #[must_use]
    pub fn address(&self, piece: usize) -> usize {
        self.base.as_ptr() as usize + piece * self.piece_bytes
    }

    /// Bytes of all pieces.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a span is never empty")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Maps `[offset, offset + piece_bytes)` of a slot at a piece's place, instead of whatever is there.
    ///
    /// # Errors
    /// `InvalidInput` for a piece or range that is none, or memory that cannot be mapped piecewise (reserved huge pages);
    /// `OutOfMemory` when the process has as many mappings as spans may use.
    pub fn map(&self, piece: usize, slot: &Slot, offset: usize, writable: bool) -> io::Result<()> {
        let mut pieces = self.pieces();
        let inside = offset.checked_add(self.piece_bytes).is_some_and(|end| end <= slot.len());
        if piece >= pieces.len() || !inside || self.process != std::process::id() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such piece of this span or slot"));
        }
        if !pieces[piece] && MAPPED.fetch_add(1, Ordering::Relaxed) >= mappings_max() {
            MAPPED.fetch_sub(1, Ordering::Relaxed);
            let text = format!(
                "{} pieces of pages are mapped already, {MAPPINGS_PERCENT_MAX} % of vm.max_map_count: raise it, or use \
                 larger pages",
                mappings_max()
            );
            return Err(io::Error::new(io::ErrorKind::OutOfMemory, text));
        }
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        let at = self.address(piece) as *mut std::ffi::c_void;
        let file_offset = (slot.offset() + offset) as u64;
        // SAFETY: the piece lies inside our own reservation (checked above), so the fixed mapping replaces nothing of anybody
        // else's; no reference into it exists, only addresses whose users hold leases. The file cannot shrink (its region
        // is sealed), so no access can fault.
        let mapped = unsafe {
            rustix::mm::mmap(at, self.piece_bytes, protection, flags, slot.region().fd(), file_offset)
        };
        pieces[piece] = mapped.is_ok();
        if let Err(errno) = mapped {
            MAPPED.fetch_sub(1, Ordering::Relaxed);
            // The system may have taken away what was there before it refused: no hole must stay. But what fills it must not
            // replace anything: by now the addresses may be another thread's. Where nothing was taken away, what was there is
            // still there, and the caller clears it.
            match self.place_private(piece, 1, MapFlags::FIXED_NOREPLACE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(hole) => return Err(hole.into()),
            }
            return Err(errno.into());
        }
        Ok(())
    }

    /// Copies `[offset, offset + piece_bytes)` of a slot to a piece's place, where private memory is, and adds the bytes to a
    /// checksum. What was copied counts if its checksum and its lease say so.
    ///
    /// # Errors
    /// `InvalidInput` for a piece or range that is none, or where something is mapped.
    pub fn copy_in(&self, piece: usize, slot: &Slot, offset: usize, sum: &mut Checksum) -> io::Result<()> {
        let pieces = self.pieces();
        let inside = offset.checked_add(self.piece_bytes).is_some_and(|end| end <= slot.len());
        if pieces.get(piece) != Some(&false) || !inside || self.process != std::process::id() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such private piece of this span"));
        }
        let (source, target) = (slot.as_ptr().wrapping_add(offset), self.address(piece) as *mut u8);
        // SAFETY: the source lies inside its slot and the target is a piece of private memory (both checked above), which stays
        // so while the lock is held; the two never overlap, and Rust code refers to neither: a span gives out addresses only.
        unsafe { copy::copy_part_checksummed(source, target, self.piece_bytes, sum) };
        Ok(())
    }

    /// Puts fresh private memory, all zeros, at the places of `count` pieces.
    ///
    /// # Errors
    /// What the system says; the pieces are still mapped then.
    pub fn clear(&self, piece: usize, count: usize) -> io::Result<()> {
        let mut pieces = self.pieces();
        let Some(cleared) = piece.checked_add(count).and_then(|end| pieces.get_mut(piece..end)) else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no such pieces of this span"));
        };
        let mapped = cleared.iter().filter(|mapped| **mapped).count();
        if self.process != std::process::id() {
            return Ok(()); // the copy of a mapping that is the parent's
        }
        self.place_private(piece, count, MapFlags::FIXED)?;
        cleared.fill(false);
        MAPPED.fetch_sub(mapped, Ordering::Relaxed);
        Ok(())
    }

    fn place_private(&self, piece: usize, count: usize, fixed: MapFlags) -> Result<(), Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | fixed;
        let at = self.address(piece) as *mut std::ffi::c_void;
        let bytes = count * self.piece_bytes;
        // SAFETY: callers checked that the pieces lie inside our own reservation; nobody has a reference into it.
        unsafe {
            rustix::mm::mmap_anonymous(at, bytes, protection, flags)?;
            rustix::mm::madvise(at, bytes, Advice::LinuxNoHugepage).unwrap_or_default();
        }
        Ok(())
    }

    fn pieces(&self) -> MutexGuard<'_, Vec<bool>> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let mapped = self.pieces().iter().filter(|mapped| **mapped).count();
        MAPPED.fetch_sub(mapped, Ordering::Relaxed);
        // SAFETY: the range is this span's alone; whoever was given addresses in it keeps the span alive (documented at
        // `address`'s users), so nothing is used afterwards. In a forked child the copy of the mapping ends likewise.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "a span can be unmapped");
    }
}

/// Pieces that all spans of this process may map: a share of what the system allows a process.
pub fn mappings_max() -> usize {
    static MAX: OnceLock<usize> = OnceLock::new();
    *MAX.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
        text.trim().parse().unwrap_or(MAPPINGS_MAX_USUAL) * MAPPINGS_PERCENT_MAX / 100
    })
}

#[cfg(test)]
mod tests;
