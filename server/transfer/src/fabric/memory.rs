//! Memory that a client lends to its server. Owns: what is promised about it. Must not know: how an engine
//! registers it.

use std::any::Any;
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::region::Region;

/// What the server may do with registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read it: offloads.
    Read,
    /// Write it: reloads.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    /// Whether the server may read.
    #[must_use]
    pub fn reads(self) -> bool {
        matches!(self, Self::Read | Self::ReadWrite)
    }

    /// Whether the server may write.
    #[must_use]
    pub fn writes(self) -> bool {
        matches!(self, Self::Write | Self::ReadWrite)
    }
}

/// Memory of this process that others may read and write at any time.
///
/// # Safety
/// From when a value is made until it is dropped, all of `[address, address + bytes)` stays mapped and
/// initialised, at the same place, readable by any thread and by devices, writable where it is given for
/// writing, and no Rust reference to it lives while it is registered: bytes change under whoever looks.
/// `bytes` is at least 1 and never changes.
pub unsafe trait HostMemory: Send + Sync + fmt::Debug {
    /// Where it begins.
    fn address(&self) -> NonNull<u8>;
    /// Its size, at least 1.
    fn bytes(&self) -> usize;
}

// SAFETY: a region stays mapped and initialised where it is until its last share goes, and gives out pointers
// only; its size is sealed and not 0.
unsafe impl HostMemory for Region {
    fn address(&self) -> NonNull<u8> {
        self.base()
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

/// Memory to be registered. The engine holds its share of the owner until nothing can touch it any more.
#[derive(Debug)]
pub enum TargetMemory {
    /// Memory of the host, pinned or not.
    Host(Arc<dyn HostMemory>),
    /// Memory of a device, as a dma-buf. Not every engine can take it.
    Device(DeviceTarget),
}

/// A part of a device's memory that its driver exported.
#[derive(Debug)]
pub struct DeviceTarget {
    /// The dma-buf.
    pub dma_buf: OwnedFd,
    /// Where in the dma-buf the memory begins.
    pub offset: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its first byte's address, as the device knows it.
    pub address: u64,
    /// Keeps the device's memory allocated.
    pub owner: Arc<dyn DeviceOwner>,
}

/// What keeps memory of a device allocated.
pub trait DeviceOwner: Any + Send + Sync + fmt::Debug {}

impl<T: Any + Send + Sync + fmt::Debug> DeviceOwner for T {}

impl TargetMemory {
    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Host(memory) => memory.bytes() as u64,
            Self::Device(memory) => memory.bytes,
        }
    }
}
