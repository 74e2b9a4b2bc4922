//! Slots: page-sized places in a region.
//!
//! Owns: that a place lies inside its region, and keeps it mapped. Must not know: who leases a slot, what its
//! bytes mean, how they are read and written (`page` does).

use std::sync::Arc;

use crate::region::Region;

/// A page-sized place in a region. Owns the mapping for as long as it lives, so an operation in flight cannot
/// lose it. It is a place only: [`Slot::claim`] and [`Slot::page`] give access to what is there.
#[derive(Clone, Debug)]
pub struct Slot {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

impl Region {
    /// The slot at `[offset, offset + len)`, or `None` if that is empty or not inside the region.
    #[must_use]
    pub fn slot(self: &Arc<Self>, offset: usize, len: usize) -> Option<Slot> {
        let end = offset.checked_add(len)?;
        (len > 0 && end <= self.len()).then(|| Slot { region: Arc::clone(self), offset, len })
    }
}

impl Slot {
    /// The region that this slot lies in.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Bytes from the region's start.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Size in bytes, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a slot is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where the slot begins in this process. Using it needs a lease, and the slot must outlive the use.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        debug_assert!(self.offset + self.len <= self.region.len());
        // SAFETY: `Region::slot` checked that the offset lies inside the mapping, which `region` keeps alive.
        unsafe { self.region.as_ptr().add(self.offset) }
    }
}
