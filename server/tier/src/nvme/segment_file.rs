//! The file that a segment lies in. Owns: its name, whole reads and writes for the control plane. Must not
//! know: what the segment holds, which files there are.

use super::buffer::AlignedBuffer;
use super::storage::{File, patiently};
use crate::limits::BLOCK_BYTES;
#[cfg(test)]
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Where one segment lies. An operation in flight owns it, and so its descriptor.
#[derive(Debug)]
pub(crate) struct SegmentFile {
    pub(super) storage: Arc<File>,
    /// Where the segment begins in it.
    pub(super) base: u64,
    /// Number of the file among all of this device's files.
    pub(crate) file: u32,
}

impl SegmentFile {
    /// A file that is never read or written.
    #[cfg(test)]
    pub(crate) fn fake() -> SegmentFile {
        let fd = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        SegmentFile { storage: Arc::new(File::Descriptor(fd.expect("/dev/null opens"))), base: 0, file: 0 }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.storage.fd()
    }

    /// What it is in.
    pub(crate) fn storage(&self) -> &File {
        &self.storage
    }

    /// Where a block of the segment is in the file.
    pub(crate) fn offset(&self, block: u32) -> u64 {
        self.base + u64::from(block) * BLOCK_BYTES
    }

    /// Reads whole blocks into memory that begins on a block.
    pub(crate) fn read(&self, block: u32, target: &mut [u8]) -> io::Result<()> {
        self.storage.read_all(target, self.offset(block))
    }

    /// Writes whole blocks.
    pub(crate) fn write(&self, block: u32, source: &[u8]) -> io::Result<()> {
        self.storage.write_all(&AlignedBuffer::copy_of(source), self.offset(block))
    }

    /// Everything written is on stable storage. Any failure is the device's, and final: what it lost is
    /// unknown, and the kernel does not say so twice.
    pub(crate) fn sync(&self) -> io::Result<()> {
        patiently(|| self.storage.sync()).map_err(|errno| io::Error::other(errno.to_string()))
    }

    /// Do the two share a descriptor, so that one sync covers both?
    pub(crate) fn same_file(&self, other: &SegmentFile) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }
}

/// The name of a segment's file.
pub(super) fn name(segment: u32) -> String {
    format!("segment-{segment:06}.kv")
}

/// The segment that a file of this name is of: no other spelling of the number counts.
pub(super) fn number(text: &str) -> Option<u32> {
    let number = text.strip_prefix("segment-")?.strip_suffix(".kv")?.parse().ok()?;
    (name(number) == text).then_some(number)
}
