//! Device memory of ours. Owns: one allocation, and giving it back when nothing uses it any more. Must not
//! know: what is in it.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::device::core::DeviceCore;
use crate::device::driver::{DeviceAddress, DeviceError, Driver};
use crate::device::plan::DevicePlan;
use crate::fabric::DeviceTarget;
use crate::limits::EXPORT_STEP_BYTES;
use crate::plan::PlanError;

/// Device memory. Plans of it keep it, and copies under way keep their plans.
#[derive(Debug)]
pub struct DeviceBuffer {
    core: Arc<DeviceCore>,
    address: DeviceAddress,
    bytes: usize,
}

impl DeviceBuffer {
    pub(crate) fn new(core: &Arc<DeviceCore>, bytes: usize) -> Result<Arc<Self>, DeviceError> {
        let address = core.driver.allocate(bytes)?;
        Ok(Arc::new(Self { core: Arc::clone(core), address, bytes }))
    }

    /// Where it begins, as the device knows it.
    #[must_use]
    pub fn address(&self) -> DeviceAddress {
        self.address
    }

    /// Its size.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "memory of no bytes is never taken")]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// A plan of pieces of it, each `(offset, bytes)`, that fill a slot one after another.
    ///
    /// # Errors
    /// A piece does not lie inside; or as [`DevicePlan::runs`].
    pub fn plan(self: &Arc<Self>, pieces: &[(usize, usize)]) -> Result<DevicePlan, PlanError> {
        let inside = |&(offset, bytes): &(usize, usize)| {
            let end = offset.checked_add(bytes).filter(|&end| end <= self.bytes);
            end.map(|_| (self.address + offset as u64, bytes)).ok_or(PlanError::Overflow)
        };
        let pieces = pieces.iter().map(inside).collect::<Result<Vec<_>, _>>()?;
        DevicePlan::of_pieces(&pieces, Some(Arc::<Self>::clone(self)))
    }

    /// A plan of a page that lies here from `offset` on in slot order, of which only some parts, in order,
    /// hold bytes.
    ///
    /// # Errors
    /// The page does not lie inside; its parts are none, not in order or not inside it.
    pub fn page(
        self: &Arc<Self>,
        offset: usize,
        page_bytes: usize,
        parts: &[Range<usize>],
    ) -> Result<DevicePlan, PlanError> {
        offset.checked_add(page_bytes).filter(|&end| end <= self.bytes).ok_or(PlanError::Overflow)?;
        DevicePlan::of_parts(self.address + offset as u64, page_bytes, parts, Arc::<Self>::clone(self))
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.core.broken().is_some() {
            return; // what a broken device has, it keeps
        }
        // SAFETY: it came from `allocate` and is given back once. Copies under way own plans that own this,
        // so none is.
        let freed = unsafe { self.core.driver.free(self.address) };
        if let Err(error) = freed {
            self.core.fail(error);
        }
    }
}

/// Device memory that NICs can be told of, by a dma-buf. It stays as long as anybody has a share of it: the NICs' domains do, and
/// copies under way.
#[derive(Debug)]
pub struct ExportedBuffer {
    dma_buf: OwnedFd,
    memory: DeviceBuffer,
}

impl ExportedBuffer {
    /// At least so many bytes.
    pub(crate) fn new(core: &Arc<DeviceCore>, bytes: usize) -> Result<Arc<Self>, DeviceError> {
        let bytes = bytes.max(1).next_multiple_of(EXPORT_STEP_BYTES);
        let (address, dma_buf) = core.driver.allocate_exported(bytes)?;
        Ok(Arc::new(Self { dma_buf, memory: DeviceBuffer { core: Arc::clone(core), address, bytes } }))
    }

    /// Its size.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "memory of no bytes is never taken")]
    pub fn len(&self) -> usize {
        self.memory.bytes
    }

    /// What a domain registers. The domain's share of it keeps the memory.
    ///
    /// # Errors
    /// This process has no descriptor left.
    pub fn target(self: &Arc<Self>) -> io::Result<DeviceTarget> {
        Ok(DeviceTarget {
            dma_buf: self.dma_buf.try_clone()?,
            offset: 0,
            bytes: self.memory.bytes as u64,
            address: self.memory.address,
            owner: Arc::<Self>::clone(self),
        })
    }

    /// The slot at `[offset, offset + len)`, or `None` if that is empty or not inside.
    #[must_use]
    pub fn slot(self: &Arc<Self>, offset: usize, len: usize) -> Option<DeviceSlot> {
        let end = offset.checked_add(len)?;
        (len > 0 && end <= self.len()).then(|| DeviceSlot { memory: Arc::clone(self), offset, len })
    }
}

/// A page-sized place in memory of a device that NICs are told of. Whoever has it sees to it that nobody else uses the place: no
/// CPU can look there, so nothing that goes wrong there is more than a page that does not verify.
#[derive(Clone)]
pub struct DeviceSlot {
    memory: Arc<ExportedBuffer>,
    offset: usize,
    len: usize,
}

impl DeviceSlot {
    /// Where it begins, as the device knows it.
    pub(crate) fn address(&self) -> DeviceAddress {
        self.memory.memory.address + self.offset as u64
    }

    /// Size in bytes, at least 1.
    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl fmt::Debug for DeviceSlot {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}+{:#x}", self.address(), self.len)
    }
}

/// Device memory that only work of its owner's own streams uses.
#[derive(Debug)]
pub(crate) struct Scratch {
    driver: Arc<dyn Driver>,
    address: DeviceAddress,
    lost: bool,
}

impl Scratch {
    pub(crate) fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self, DeviceError> {
        let address = driver.allocate(bytes)?;
        Ok(Self { driver: Arc::clone(driver), address, lost: false })
    }

    /// Where it begins, as the device knows it.
    pub(crate) fn address(&self) -> DeviceAddress {
        self.address
    }

    /// The device may go on using the memory for ever.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.lost {
            return;
        }
        // SAFETY: it came from `allocate` and is given back once; its owner's work is done, or else it was
        // lost.
        let freed = unsafe { self.driver.free(self.address) };
        // A broken device keeps it.
        drop(freed);
    }
}
