//! The seam between the tier and whatever keeps its bytes: a folder of named files, or one file.
//!
//! Owns: the few calls that all of the tier's storage goes through, and what is repeated when a call did only
//! part of its work. Must not know: what the bytes mean. A production build has one variant of each: the
//! calls are the kernel's own.

#![cfg_attr(
    not(feature = "simulation"),
    allow(
        clippy::infallible_destructuring_match,
        reason = "in a production build there is one variant of each"
    )
)]

use super::open_mode::OpenMode;
#[cfg(feature = "simulation")]
use super::simulated_disk::{SimulatedDisk, SimulatedFile};
use super::time::Clock;
use crate::errno::{ErrnoClass, Rereads};
use crate::limits::{RETRIES_MAX, SHORT_PAUSE};
use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use turnkv_transfer::{Page, PageMut};

/// Named files.
#[derive(Debug)]
pub(crate) enum Folder {
    /// A directory of the host.
    Directory(OwnedFd),
    /// Memory that fails as it is told.
    #[cfg(feature = "simulation")]
    Simulated(SimulatedDisk),
}

/// One file.
#[derive(Debug)]
pub(crate) enum File {
    /// A file or device of the host.
    Descriptor(OwnedFd),
    /// Memory that fails as it is told.
    #[cfg(feature = "simulation")]
    Simulated(SimulatedFile),
}

impl Folder {
    /// Opens a file, and nothing else of that name. `direct`: past the page cache.
    pub(crate) fn open(&self, name: &str, open: OpenMode, direct: bool) -> Result<File, Errno> {
        let dir = match self {
            Folder::Directory(dir) => dir,
            #[cfg(feature = "simulation")]
            Folder::Simulated(disk) => return disk.open(name, open, direct).map(File::Simulated),
        };
        let mut flags = OFlags::CLOEXEC;
        flags |= match open {
            OpenMode::Read => OFlags::RDONLY | OFlags::NONBLOCK, // a pipe of that name must not hold us up
            OpenMode::Keep => OFlags::RDWR | OFlags::CREATE,
            OpenMode::Create => OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
        };
        if direct {
            flags |= OFlags::DIRECT;
        }
        // Looked at first: to open a device may do something to it, and what a pipe answers depends on the flags.
        if let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::empty()) {
            check_regular(stat.st_mode)?;
        }
        let file = rustix::fs::openat(dir, name, flags, Mode::RUSR | Mode::WUSR)?;
        check_regular(rustix::fs::fstat(&file)?.st_mode)?;
        Ok(File::Descriptor(file))
    }

    /// The names of what is in it, in no order that means anything; one that is not text is not ours.
    pub(crate) fn names(&self) -> Result<Vec<String>, Errno> {
        let dir = match self {
            Folder::Directory(dir) => dir,
            #[cfg(feature = "simulation")]
            Folder::Simulated(disk) => return Ok(disk.names()),
        };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(dir)? {
            names.extend(entry?.file_name().to_str().ok().map(str::to_owned));
        }
        Ok(names)
    }

    /// Deletes a file.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Errno> {
        match self {
            Folder::Directory(dir) => rustix::fs::unlinkat(dir, name, AtFlags::empty()),
            #[cfg(feature = "simulation")]
            Folder::Simulated(disk) => disk.remove(name),
        }
    }

    /// Gives a file another name, in the place of the file that has it.
    pub(crate) fn rename(&self, old: &str, new: &str) -> Result<(), Errno> {
        match self {
            Folder::Directory(dir) => rustix::fs::renameat(dir, old, dir, new),
            #[cfg(feature = "simulation")]
            Folder::Simulated(disk) => disk.rename(old, new),
        }
    }

    /// What was made, deleted and renamed is on stable storage.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        match self {
            Folder::Directory(dir) => rustix::fs::fsync(dir),
            #[cfg(feature = "simulation")]
            Folder::Simulated(disk) => disk.sync(),
        }
    }

    /// The time and the random numbers that go with this storage.
    pub(crate) fn clock(&self) -> Clock {
        match self {
            Folder::Directory(_) => Clock::System,
            #[cfg(feature = "simulation")]
            Folder::Simulated(disk) => Clock::Simulated(disk.clone()),
        }
    }
}

impl File {
    /// The descriptor engines give to the kernel.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            File::Descriptor(fd) => fd.as_fd(),
            #[cfg(feature = "simulation")]
            File::Simulated(file) => file.no_descriptor(),
        }
    }

    /// One read; as many bytes as came.
    pub(crate) fn read_at(&self, target: &mut [u8], offset: u64) -> Result<usize, Errno> {
        match self {
            File::Descriptor(fd) => rustix::io::pread(fd, target, offset),
            #[cfg(feature = "simulation")]
            File::Simulated(file) => file.read_at(target, offset),
        }
    }

    /// One read into a slot from its byte `from` on; as many bytes as came.
    pub(crate) fn read_into(&self, target: &mut PageMut, from: usize, offset: u64) -> Result<usize, Errno> {
        let rest = target.slot().len().saturating_sub(from);
        match self {
            File::Descriptor(fd) => {
                let (fd, offset) = (fd.as_raw_fd(), offset.try_into().map_err(|_| Errno::OVERFLOW)?);
                let memory = target.slot().as_ptr().wrapping_add(from).cast();
                // SAFETY: `rest` bytes from `from` on lie inside the slot, which `target` keeps mapped; nothing
                // in this process refers to them, and `target` is its only right to write them.
                counted(unsafe { libc::pread(fd, memory, rest, offset) })
            }
            #[cfg(feature = "simulation")]
            File::Simulated(file) => {
                let mut bytes = vec![0; rest];
                let count = file.read_at(&mut bytes, offset)?;
                target.fill_at(from, &bytes[..count]);
                Ok(count)
            }
        }
    }

    /// One write of a header and of a slot from its byte `from` on, one after the other; as many bytes as went.
    pub(crate) fn write_from(
        &self,
        header: &[u8],
        source: &Page,
        from: usize,
        offset: u64,
    ) -> Result<usize, Errno> {
        let rest = source.slot().len().saturating_sub(from);
        match self {
            File::Descriptor(fd) => {
                let (fd, offset) = (fd.as_raw_fd(), offset.try_into().map_err(|_| Errno::OVERFLOW)?);
                let pieces = [
                    libc::iovec { iov_base: header.as_ptr().cast_mut().cast(), iov_len: header.len() },
                    libc::iovec { iov_base: source.slot().as_ptr().wrapping_add(from).cast(), iov_len: rest },
                ];
                // SAFETY: the header is a slice; `rest` bytes from `from` on lie inside the slot, which `source`
                // keeps mapped. The kernel reads both, and what others write there meanwhile is its to race with.
                counted(unsafe { libc::pwritev(fd, pieces.as_ptr(), 2, offset) })
            }
            #[cfg(feature = "simulation")]
            File::Simulated(file) => {
                let mut bytes = vec![0; rest];
                source.copy_to(source.slot().len() - rest, &mut bytes);
                file.write_at([header, &bytes], offset)
            }
        }
    }

    /// One write; as many bytes as went.
    pub(crate) fn write_at(&self, source: &[u8], offset: u64) -> Result<usize, Errno> {
        match self {
            File::Descriptor(fd) => rustix::io::pwrite(fd, source, offset),
            #[cfg(feature = "simulation")]
            File::Simulated(file) => file.write_at([source, &[]], offset),
        }
    }

    /// Everything written is on stable storage, its length included.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        match self {
            File::Descriptor(fd) => rustix::fs::fdatasync(fd),
            #[cfg(feature = "simulation")]
            File::Simulated(file) => file.sync(),
        }
    }

    /// Makes the file so long, with all its space.
    pub(crate) fn allocate(&self, bytes: u64) -> Result<(), Errno> {
        let fd = match self {
            File::Descriptor(fd) => fd,
            #[cfg(feature = "simulation")]
            File::Simulated(file) => return file.allocate(bytes),
        };
        match rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, bytes) {
            // A file system that cannot reserve: the length alone, and ENOSPC shows when it is written.
            Err(Errno::OPNOTSUPP) => rustix::fs::ftruncate(fd, bytes),
            result => result,
        }
    }

    /// Gives all its space back.
    pub(crate) fn clear(&self) -> Result<(), Errno> {
        match self {
            File::Descriptor(fd) => rustix::fs::ftruncate(fd, 0),
            #[cfg(feature = "simulation")]
            File::Simulated(file) => file.clear(),
        }
    }

    /// Its length.
    pub(crate) fn len(&self) -> Result<u64, Errno> {
        match self {
            File::Descriptor(fd) => Ok(rustix::fs::fstat(fd)?.st_size as u64),
            #[cfg(feature = "simulation")]
            File::Simulated(file) => file.len(),
        }
    }

    /// Reads all of `target`.
    pub(crate) fn read_all(&self, target: &mut [u8], offset: u64) -> io::Result<()> {
        let (mut done, mut rereads) = (0, Rereads::default());
        while done < target.len() {
            match patiently(|| self.read_at(&mut target[done..], offset + done as u64)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(errno) if rereads.again(true, ErrnoClass::of(errno)) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Writes all of `source`.
    pub(crate) fn write_all(&self, source: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < source.len() {
            match patiently(|| self.write_at(&source[done..], offset + done as u64))? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => done += count,
            }
        }
        Ok(())
    }
}

/// That it is a file; the error says of anything else that it is none.
fn check_regular(mode: u32) -> Result<(), Errno> {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::NXIO),
    }
}

/// What a call returned, which gives a negative number and sets errno when it fails.
fn counted(returned: libc::ssize_t) -> Result<usize, Errno> {
    let errno = || Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO);
    usize::try_from(returned).map_err(|_| errno())
}

/// Makes a call again while the system is short of something, with a pause, so many times.
pub(crate) fn patiently<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    for _ in 0..RETRIES_MAX {
        match call().map_err(|errno| (errno, ErrnoClass::of(errno))) {
            Ok(done) => return Ok(done),
            Err((_, ErrnoClass::Interrupted)) => {}
            Err((_, ErrnoClass::Short)) => std::thread::sleep(SHORT_PAUSE),
            Err((errno, ErrnoClass::Full | ErrnoClass::Device)) => return Err(errno),
        }
    }
    call()
}
