//! Device memory of ours. Owns: one allocation, and giving it back when nothing uses it any more. Must not
//! know: what is in it.

use std::ops::Range;
use std::sync::Arc;

use crate::device::core::DeviceCore;
use crate::device::driver::{DeviceAddress, DeviceError, Driver};
use crate::device::plan::DevicePlan;
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
