//! Huge pages without reserved ones. Owns: mapping at huge-page boundaries, and asking the kernel to back a fresh memfd with
//! transparent huge pages. Must not know: regions, slots.
//!
//! Why it matters: a 2 MiB page in 512 scattered pieces costs 512 faults in every process that maps it, and 512 segments in
//! every transfer from or to a disk.

use std::ffi::c_void;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::time::Instant;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// Why a memfd has no reserved huge pages, and what an operator can do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReservedError {
    /// The size does not end on a huge page.
    #[error("{bytes} bytes are not a multiple of 2 MiB")]
    Ragged {
        /// What was asked for.
        bytes: usize,
    },
    /// Fewer are free.
    #[error("{pages} free 2 MiB pages are needed and {free} are there: raise vm.nr_hugepages")]
    TooFew {
        /// Pages that it takes.
        pages: usize,
        /// What the kernel says that it has.
        free: String,
    },
    /// The kernel does not know them.
    #[error("this kernel has no huge pages for memfds ({0})")]
    Unsupported(Errno),
    /// They are others'.
    #[error("this user may not use huge pages ({0}): set vm.hugetlb_shm_group to the user's group")]
    Forbidden(Errno),
    /// Anything else.
    #[error("huge pages are refused ({0})")]
    Refused(Errno),
}

/// Why a memfd has no transparent huge pages, and what an operator can do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CollapseError {
    /// It is smaller than one.
    #[error("{bytes} bytes hold no 2 MiB page")]
    TooSmall {
        /// Its size.
        bytes: usize,
    },
    /// The kernel gives none to memfds.
    #[error(
        "this kernel gives no transparent huge pages to memfds ({0}): Linux 6.1 does, unless \
         /sys/kernel/mm/transparent_hugepage/shmem_enabled is `deny`"
    )]
    Unsupported(io::Error),
    /// Not enough memory lies together.
    #[error("memory is too scattered for transparent huge pages ({0}): start the server before other work")]
    Scattered(io::Error),
    /// It takes longer than it may.
    #[error(
        "kept memory lies scattered, and a start does not wait long for transparent huge pages: the next one goes on"
    )]
    Late,
    /// Anything else.
    #[error("transparent huge pages are refused ({0})")]
    Refused(io::Error),
}

/// Bytes of a huge page.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Maps a memfd shared and writable, at a huge-page boundary if it is large enough to hold one: only then can one page table
/// entry cover it. A file whose blocks are huge pages is aligned by the kernel.
pub(crate) fn map_shared(
    fd: &OwnedFd,
    mapped_bytes: usize,
    block_bytes: usize,
) -> Result<NonNull<u8>, Errno> {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let base = if mapped_bytes < HUGE_PAGE_BYTES || block_bytes >= HUGE_PAGE_BYTES {
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
        unsafe { rustix::mm::mmap(std::ptr::null_mut(), mapped_bytes, protection, MapFlags::SHARED, fd, 0)? }
    } else {
        let place = reserve_aligned(mapped_bytes)?;
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: `place` is `mapped_bytes` of address space that `reserve_aligned` has just reserved for us, so the fixed
        // mapping replaces nothing else. If it fails, the reservation must not be given back: the kernel may have ended it and
        // given its addresses to another thread already, whose mapping we would take away.
        unsafe { rustix::mm::mmap(place, mapped_bytes, protection, flags, fd, 0)? }
    };
    NonNull::new(base.cast::<u8>()).ok_or(Errno::NOMEM)
}

/// Address space of `bytes` that begins at a huge-page boundary.
fn reserve_aligned(bytes: usize) -> Result<*mut c_void, Errno> {
    let spacious = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing of ours.
    let start =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), spacious, ProtFlags::empty(), flags)? };
    let skip = start.cast::<u8>().align_offset(HUGE_PAGE_BYTES);
    // Both cuts are whole pages: `skip` from a page-aligned start to a 2 MiB boundary, and the rest behind the mapping.
    let end = skip + bytes.next_multiple_of(rustix::param::page_size());
    // SAFETY: both ranges lie inside the reservation made above and outside what is handed out; nobody has a pointer there.
    unsafe {
        if skip > 0 {
            rustix::mm::munmap(start, skip)?;
        }
        if end < spacious {
            rustix::mm::munmap(start.cast::<u8>().add(end).cast(), spacious - end)?;
        }
        Ok(start.cast::<u8>().add(skip).cast())
    }
}

/// Backs the huge pages inside a fresh mapping of a memfd with transparent ones, whatever the system's setting for shared
/// memory is (unless it is `deny`).
///
/// # Safety
/// `[base, base + bytes)` is a shared, writable mapping of a memfd that nobody else touches or has pinned yet.
pub(crate) unsafe fn collapse(base: NonNull<u8>, bytes: usize) -> Result<(), CollapseError> {
    let whole = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if whole == 0 {
        return Err(CollapseError::TooSmall { bytes });
    }
    for offset in (0..whole).step_by(HUGE_PAGE_BYTES) {
        // The kernel collapses only where something is; one byte is enough, and leaves little to copy.
        // SAFETY: inside the mapping, which the caller has to itself.
        unsafe { base.as_ptr().add(offset).write_volatile(0) };
    }
    // SAFETY: the range is the caller's mapping.
    unsafe { advise_collapse(base, whole) }
}

/// The same for a memfd that is in use: no byte of it changes, and what lies in huge pages already stays there, which takes no
/// time. Bytes that lie scattered are copied; no more of them once `until` has passed.
///
/// # Safety
/// `[base, base + bytes)` is a shared mapping of a memfd.
pub(crate) unsafe fn collapse_again(
    base: NonNull<u8>,
    bytes: usize,
    until: Instant,
) -> Result<(), CollapseError> {
    let whole = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if whole == 0 {
        return Err(CollapseError::TooSmall { bytes });
    }
    for offset in (0..whole).step_by(HUGE_PAGE_BYTES) {
        if Instant::now() >= until {
            return Err(CollapseError::Late);
        }
        // SAFETY: a part of the range, which is the caller's mapping.
        unsafe { advise_collapse(base.add(offset), HUGE_PAGE_BYTES)? };
    }
    Ok(())
}

/// # Safety
/// `[base, base + bytes)` is a mapping of a memfd, at huge-page boundaries.
unsafe fn advise_collapse(base: NonNull<u8>, bytes: usize) -> Result<(), CollapseError> {
    // SAFETY: the range is the caller's mapping; collapsing changes no byte.
    let result = unsafe { libc::madvise(base.as_ptr().cast(), bytes, libc::MADV_COLLAPSE) };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(match error.raw_os_error() {
        Some(libc::EINVAL) => CollapseError::Unsupported(error),
        Some(libc::ENOMEM | libc::EAGAIN | libc::EBUSY) => CollapseError::Scattered(error),
        _ => CollapseError::Refused(error),
    })
}
