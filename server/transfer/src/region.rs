//! Shared memory regions.
//!
//! Owns: the life of a mapped memfd (create, size, seal, map, touch, lock, unmap) and bounds-checked views of
//! it. Must not know: who leases a slot, what its bytes mean, which process maps it.
//!
//! A region never changes its size after it was made: both ways are sealed, and the seals are sealed too. So
//! a process that maps it cannot be killed by SIGBUS because another one shrank the file, and
//! [`Region::from_fd`] refuses a descriptor that gives no such promise.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;
use std::time::Instant;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::claims::Claims;
use crate::huge::{HUGE_PAGE_BYTES, ReservedError, collapse, collapse_again, map_shared};

/// May a region use huge pages?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum HugePages {
    /// Reserved 2 MiB pages if enough are free, else transparent ones if the kernel has them, else ordinary
    /// pages.
    #[default]
    Auto,
    /// Ordinary pages.
    Off,
}

/// How to make a region.
#[derive(Clone, Debug)]
pub struct RegionOptions {
    /// Size in bytes, greater than 0. Huge pages need a multiple of 2 MiB.
    pub bytes: usize,
    /// Whether to ask for huge pages.
    pub huge_pages: HugePages,
    /// Fault every page in now, so that no copy pays for first touch.
    pub touch: bool,
    /// Lock the pages in memory.
    pub lock: bool,
    /// Shown in /proc/PID/maps as `/memfd:NAME`.
    pub name: String,
}

/// Whether a wish of [`RegionOptions`] came true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Granted {
    /// It did.
    Yes,
    /// Nobody asked.
    NotAsked,
    /// It did not: why, and what an operator can do about it.
    No(String),
}

impl Granted {
    /// Whether the wish came true.
    #[must_use]
    pub fn is_yes(&self) -> bool {
        matches!(self, Self::Yes)
    }

    /// Why it did not, if it was asked for.
    #[must_use]
    pub fn why_not(&self) -> Option<&str> {
        match self {
            Self::No(why) => Some(why),
            Self::Yes | Self::NotAsked => None,
        }
    }
}

/// What [`Region::create`] got from the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionReport {
    /// 2 MiB pages, reserved or transparent.
    pub huge: Granted,
    /// Pages locked in memory.
    pub locked: Granted,
}

/// A mapped, sealed memfd. Unmapped when the last [`Arc`] goes, and so is every [`crate::Slot`]'s share of it.
#[derive(Debug)]
pub struct Region {
    fd: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
    /// Length of the mapping: `bytes` rounded up to the file's block (page) size.
    mapped_bytes: usize,
    /// Who in this process writes what of it.
    claims: Claims,
    /// Owners that keep it mapped for a device, and use it for nothing themselves.
    pins: Mutex<usize>,
}

/// A region that is kept mapped for a device. Others that keep it so do not count as its users.
#[derive(Debug)]
pub(crate) struct RegionPin(Arc<Region>);

impl RegionPin {
    pub(crate) fn of(region: &Arc<Region>) -> RegionPin {
        let mut pins = region.pins.lock();
        *pins += 1;
        RegionPin(Arc::clone(region))
    }

    /// Whether somebody has it, or a slot in it, for more than a device.
    pub(crate) fn is_used(&self) -> bool {
        // No pin comes or goes meanwhile; one that has just gone may count as a user still, never a user as a pin.
        let pins = self.0.pins.lock();
        Arc::strong_count(&self.0) > *pins
    }
}

impl std::ops::Deref for RegionPin {
    type Target = Arc<Region>;

    fn deref(&self) -> &Arc<Region> {
        &self.0
    }
}

impl Drop for RegionPin {
    fn drop(&mut self) {
        *self.0.pins.lock() -= 1;
    }
}

// SAFETY: a region is an address range that stays mapped until `drop`, and a descriptor; neither belongs to a
// thread.
unsafe impl Send for Region {}
// SAFETY: as above; nothing refers to the bytes, which are copied by `shared` only, and the claims have a lock
// of their own.
unsafe impl Sync for Region {}

impl Region {
    /// Makes, sizes, seals and maps a region. Missing huge pages or a refused lock are reported, not errors.
    ///
    /// # Errors
    /// The system has no memory or descriptor for it, or `bytes` is 0.
    pub fn create(options: &RegionOptions) -> io::Result<(Arc<Self>, RegionReport)> {
        if options.bytes == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a region needs at least one byte"));
        }
        let (region, huge) = match options.huge_pages {
            HugePages::Off => (Self::create_ordinary(options)?, Granted::NotAsked),
            HugePages::Auto => match Self::create_huge(options) {
                Ok(region) => (region, Granted::Yes),
                Err(reserved) => {
                    let region = Self::create_ordinary(options)?;
                    // SAFETY: the mapping was made a line ago and nobody else knows of it.
                    let collapsed = unsafe { collapse(region.base, region.bytes) };
                    let huge = match collapsed {
                        Ok(()) => Granted::Yes,
                        Err(transparent) => Granted::No(format!("{reserved}; {transparent}")),
                    };
                    (region, huge)
                }
            },
        };
        // A core dump must hold neither users' conversations nor hundreds of GB; kernels without the advice
        // dump them.
        region.advise_quietly(Advice::LinuxDontDump);
        if options.touch {
            region.prefault(0, options.bytes)?;
        }
        let locked = if options.lock { region.lock() } else { Granted::NotAsked };
        Ok((Arc::new(region), RegionReport { huge, locked }))
    }

    /// Maps the region that another process, which is gone, made by the same options: its bytes are as that one left
    /// them, and stay so. What lies scattered is put on huge pages until then.
    ///
    /// # Errors
    /// As [`Region::from_fd`]; `InvalidInput` also if its size is another one.
    pub fn adopt(
        fd: OwnedFd,
        options: &RegionOptions,
        until: Instant,
    ) -> io::Result<(Arc<Self>, RegionReport)> {
        let stat = rustix::fs::fstat(&fd)?;
        if usize::try_from(stat.st_size).ok() != Some(options.bytes) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the kept region has another size"));
        }
        let is_reserved = usize::try_from(stat.st_blksize).is_ok_and(|block| block == HUGE_PAGE_BYTES);
        let region = Self::from_fd(fd, options.bytes)?;
        let huge = match options.huge_pages {
            HugePages::Off => Granted::NotAsked,
            HugePages::Auto if is_reserved => Granted::Yes,
            HugePages::Auto => {
                // SAFETY: the mapping was made above.
                let collapsed = unsafe { collapse_again(region.base, region.bytes, until) };
                collapsed.map_or_else(|why| Granted::No(why.to_string()), |()| Granted::Yes)
            }
        };
        // What huge pages do at once: what it holds counts as this process's.
        if options.touch && !huge.is_yes() {
            region.prefault(0, options.bytes)?;
        }
        let locked = if options.lock { region.lock() } else { Granted::NotAsked };
        Ok((region, RegionReport { huge, locked }))
    }

    /// Maps a region that another process made.
    ///
    /// # Errors
    /// `PermissionDenied` if the file is not sealed against shrinking (touching it could kill this process),
    /// `InvalidInput` if it is shorter than `bytes` or `bytes` is 0, else what the system says.
    pub fn from_fd(fd: OwnedFd, bytes: usize) -> io::Result<Arc<Self>> {
        let seals = match rustix::fs::fcntl_get_seals(&fd) {
            Ok(seals) => seals,
            Err(Errno::INVAL) => return Err(unsealed("the descriptor is not a memfd")),
            Err(errno) => return Err(errno.into()),
        };
        if !seals.contains(SealFlags::SHRINK) {
            return Err(unsealed("the memfd is not sealed against shrinking"));
        }
        let stat = rustix::fs::fstat(&fd)?;
        let file_bytes = usize::try_from(stat.st_size).unwrap_or(0);
        if bytes == 0 || file_bytes < bytes {
            let message = format!("a region of {bytes} bytes was announced, its memfd has {file_bytes}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let block_bytes = usize::try_from(stat.st_blksize).unwrap_or(0).max(1);
        let region = Self::map(fd, bytes, block_bytes)?;
        region.advise_quietly(Advice::LinuxDontDump);
        Ok(Arc::new(region))
    }

    /// The descriptor, to hand to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Size in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Bytes of the mapping: the size, rounded up to whole pages of its kind.
    pub(crate) fn mapped_bytes(&self) -> usize {
        self.mapped_bytes.next_multiple_of(rustix::param::page_size())
    }

    /// Where the region begins in this process. Reading or writing through it needs a lease on the slot that
    /// is touched.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Where the region begins, as [`Region::as_ptr`].
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Who in this process writes what of it.
    pub(crate) fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Faults the pages of `[offset, offset + len)` into this process, writable, without changing their
    /// bytes.
    ///
    /// # Errors
    /// `InvalidInput` if the range is not inside the region; `OutOfMemory` if the system has no pages for it.
    pub fn prefault(&self, offset: usize, len: usize) -> io::Result<()> {
        let end = offset.checked_add(len).filter(|&end| end <= self.bytes);
        let Some(end) = end else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the range to fault in is outside the region",
            ));
        };
        let start = offset & !(rustix::param::page_size() - 1);
        loop {
            // SAFETY: `[start, end)` lies inside our mapping (checked above; the mapping begins on a page),
            // which lives as long as `self`. Populating changes no byte.
            let populated = unsafe {
                rustix::mm::madvise(
                    self.base.as_ptr().add(start).cast(),
                    end - start,
                    Advice::LinuxPopulateWrite,
                )
            };
            match populated {
                Ok(()) => return Ok(()),
                // A signal arrived: what is populated stays so, the next call goes on behind it.
                Err(Errno::INTR | Errno::AGAIN) => {}
                // Before Linux 5.14: the first copy pays for the fault, nothing else changes.
                Err(Errno::INVAL | Errno::NOSYS) => return Ok(()),
                // NOMEM: no memory (or the cgroup's limit); FAULT, HWPOISON: a page that cannot be had.
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Which NUMA node of this machine the first page lies on; none where the kernel does not say, or nothing
    /// was touched yet.
    #[must_use]
    pub fn numa_node(&self) -> Option<u32> {
        let mut node: libc::c_int = -1;
        let none: *mut libc::c_ulong = std::ptr::null_mut();
        // SAFETY: `node` has room for one number, no mask is asked for, and the address is one of our
        // mapping, which the kernel looks up and does not write.
        let code = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut node,
                none,
                0_usize,
                self.base.as_ptr(),
                NODE_OF_ADDRESS,
            )
        };
        if code == 0 { u32::try_from(node).ok() } else { None }
    }

    fn create_ordinary(options: &RegionOptions) -> io::Result<Self> {
        Ok(Self::map(sealed_memfd(&options.name, options.bytes)?, options.bytes, 1)?)
    }

    /// A region of reserved 2 MiB pages, or why not. `mmap` reserves the pages, so that no later touch can
    /// fail.
    fn create_huge(options: &RegionOptions) -> Result<Self, ReservedError> {
        if !options.bytes.is_multiple_of(HUGE_PAGE_BYTES) {
            return Err(ReservedError::Ragged { bytes: options.bytes });
        }
        let made = memfd(&options.name, MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB).and_then(|fd| {
            rustix::fs::ftruncate(&fd, options.bytes as u64)?;
            seal(&fd)?;
            Self::map(fd, options.bytes, HUGE_PAGE_BYTES)
        });
        made.map_err(|errno| match errno {
            Errno::NOMEM => {
                let pages = options.bytes / HUGE_PAGE_BYTES;
                let free = read_setting("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
                ReservedError::TooFew { pages, free }
            }
            Errno::NOSYS | Errno::INVAL | Errno::NODEV | Errno::OPNOTSUPP => {
                ReservedError::Unsupported(errno)
            }
            Errno::PERM | Errno::ACCESS => ReservedError::Forbidden(errno),
            errno => ReservedError::Refused(errno),
        })
    }

    /// `block_bytes`: the mapping's length is rounded up to it, because huge mappings end on a huge page.
    fn map(fd: OwnedFd, bytes: usize, block_bytes: usize) -> Result<Self, Errno> {
        let mapped_bytes = bytes.checked_next_multiple_of(block_bytes).ok_or(Errno::NOMEM)?;
        let base = map_shared(&fd, mapped_bytes, block_bytes)?;
        Ok(Self { fd, base, bytes, mapped_bytes, claims: Claims::default(), pins: Mutex::new(0) })
    }

    fn lock(&self) -> Granted {
        // SAFETY: the whole mapping is ours; locking changes no byte.
        let locked = unsafe { rustix::mm::mlock(self.base.as_ptr().cast(), self.mapped_bytes) };
        let Err(errno) = locked else { return Granted::Yes };
        let limit = match rustix::process::getrlimit(rustix::process::Resource::Memlock).current {
            Some(bytes) => format!("{} KiB", bytes >> 10),
            None => "unlimited".to_owned(),
        };
        let bytes = self.bytes >> 10;
        Granted::No(match errno {
            Errno::NOMEM | Errno::PERM | Errno::AGAIN => format!(
                "locking {bytes} KiB is refused ({errno}): the locked-memory limit is {limit}; raise it with LimitMEMLOCK= in \
                 the systemd unit, `ulimit -l`, or CAP_IPC_LOCK"
            ),
            errno => format!("locking {bytes} KiB is refused ({errno})"),
        })
    }

    /// For advice whose refusal changes nothing that a caller could act on.
    fn advise_quietly(&self, advice: Advice) {
        // SAFETY: the whole mapping is ours; the advice changes no byte.
        let advised = unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.mapped_bytes, advice) };
        advised.unwrap_or_default();
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone (made in `map`, never handed out without an `Arc<Region>` that
        // keeps this drop from running), so no pointer into it is used afterwards.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok(), "a mapping that `map` made can be unmapped");
    }
}

/// Flags of get_mempolicy, which libc does not name: MPOL_F_NODE and MPOL_F_ADDR.
const NODE_OF_ADDRESS: libc::c_ulong = 1 | 2;

/// A memfd of ordinary pages that never changes its size.
pub(crate) fn sealed_memfd(name: &str, bytes: usize) -> Result<OwnedFd, Errno> {
    let fd = memfd(name, MemfdFlags::empty())?;
    rustix::fs::ftruncate(&fd, bytes as u64)?;
    seal(&fd)?;
    Ok(fd)
}

fn memfd(name: &str, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3 the flag is unknown; the mapping is not executable either way.
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        made => made,
    }
}

fn seal(fd: &OwnedFd) -> Result<(), Errno> {
    rustix::fs::fcntl_add_seals(fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
}

fn unsealed(why: &str) -> io::Error {
    let message = format!("{why}: its size could change under a mapping, so it is not used");
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

fn read_setting(path: &str) -> String {
    std::fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

#[cfg(test)]
mod tests;
