//! Slots: page-sized places in a region.
//!
//! Owns: bounds-checked copies and sums of their bytes. Must not know: who leases a slot, what its bytes mean.
//!
//! The bytes of a region are shared with other processes, whose writes Rust cannot see, and whose leases this
//! crate does not know. So no safe function gives out a reference to them: they are copied or summed within
//! one call, lengths and places are checked before, a byte has no invalid value, and what was copied counts
//! only if its checksum and its lease say so. A broken lease costs a miss, not a wrong page. Whoever needs
//! the bytes in place takes a pointer, or promises in an `unsafe` block that nobody writes ([`Slot::bytes`]).

use std::ops::Range;
use std::sync::Arc;

use bytes::BytesMut;

use crate::checksum::{Checksum, checksum};
use crate::copy::{self, append};
use crate::plan::CopyPlan;
use crate::region::Region;

/// A page-sized place in a region. Owns the mapping for as long as it lives, so an operation in flight cannot
/// lose it.
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

    /// The slot's bytes in place.
    ///
    /// # Safety
    /// Nobody, in this process or another, writes the slot while the slice lives.
    #[must_use]
    pub unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped and initialised (a memfd reads as zero before it is written) for as
        // long as `self` lives; that nobody writes it is the caller's promise, and `u8` has no invalid value.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    /// A copy of the slot's bytes as they are now.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(0, &mut bytes);
        bytes
    }

    /// Copies the bytes from `offset` on into `target`, without a checksum: what is there may be another
    /// page's.
    ///
    /// # Panics
    /// If the part does not lie inside the slot: check lengths that come from outside before.
    pub fn copy_to(&self, offset: usize, target: &mut [u8]) {
        self.check_part(offset, target.len());
        // SAFETY: the part is mapped (checked) and as long as the target; an exclusive slice of the caller
        // never lies inside a slot.
        unsafe {
            std::ptr::copy_nonoverlapping(self.as_ptr().add(offset), target.as_mut_ptr(), target.len())
        };
    }

    /// Copies another slot of the same size into this one past the cache and gives its checksum.
    ///
    /// # Panics
    /// If the sizes differ, or the slots share bytes.
    pub fn fill_from(&self, source: &Slot) -> u64 {
        assert_eq!(source.len, self.len, "a page fills its slot exactly");
        assert!(self.as_ptr().addr().abs_diff(source.as_ptr().addr()) >= self.len, "the slots lie apart");
        // SAFETY: both slots are mapped, equally long and apart (asserted).
        unsafe { copy::copy_checksummed(source.as_ptr(), self.as_ptr(), self.len) }
    }

    /// Copies `source` into the slot past the cache and gives its checksum.
    ///
    /// # Panics
    /// If `source` is not exactly as long as the slot: check lengths that come from outside before.
    pub fn fill(&self, source: &[u8]) -> u64 {
        assert_eq!(source.len(), self.len, "a page fills its slot exactly");
        // SAFETY: the target is mapped and as long as the source (asserted), and no slice of the caller lies
        // inside a slot: only `bytes` makes one, under a promise that nobody writes.
        unsafe { copy::copy_checksummed(source.as_ptr(), self.as_ptr(), self.len) }
    }

    /// Copies a piece of a page into the slot at `offset`; returns the checksum of the piece.
    ///
    /// # Panics
    /// As [`Slot::fill_part`].
    pub fn fill_at(&self, offset: usize, source: &[u8]) -> u64 {
        let mut sum = Checksum::new();
        self.fill_part(offset, source, &mut sum);
        sum.finish()
    }

    /// Copies the next piece of a page into the slot at `offset`, adding to the page's checksum.
    ///
    /// # Panics
    /// If the piece does not lie inside the slot: check lengths that come from outside before.
    pub fn fill_part(&self, offset: usize, source: &[u8], sum: &mut Checksum) {
        self.check_part(offset, source.len());
        let target = self.as_ptr().wrapping_add(offset);
        // SAFETY: as in `fill`; the piece lies inside the slot (checked).
        unsafe { copy::copy_part_checksummed(source.as_ptr(), target, source.len(), sum) }
    }

    /// Writes zeros over a part of the slot.
    ///
    /// # Panics
    /// If the part does not lie inside the slot.
    pub(crate) fn blank(&self, part: Range<usize>) {
        assert!(part.start <= part.end && part.end <= self.len, "a part lies inside its slot");
        // SAFETY: the part is mapped (asserted), and no reference into it lives, as in `fill`.
        unsafe { std::ptr::write_bytes(self.as_ptr().add(part.start), 0, part.len()) };
    }

    /// Copies the slot into `target` past the cache and gives the checksum of the slot's bytes.
    ///
    /// # Panics
    /// If `target` is not exactly as long as the slot: check lengths that come from outside before.
    pub fn drain(&self, target: &mut [u8]) -> u64 {
        assert_eq!(target.len(), self.len, "a slot drains into exactly one page");
        // SAFETY: the source is mapped and as long as the target (asserted); an exclusive slice of the caller
        // never lies inside a slot.
        unsafe { copy::copy_checksummed(self.as_ptr(), target.as_mut_ptr(), self.len) }
    }

    /// The checksum of the slot's bytes as they are now.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        self.checksum_of(self.len)
    }

    /// The checksum of the slot's first bytes as they are now.
    ///
    /// # Panics
    /// If the slot is shorter.
    #[must_use]
    pub fn checksum_of(&self, bytes: usize) -> u64 {
        self.check_part(0, bytes);
        // SAFETY: the part is mapped (checked); the slice ends with this call, which reads each byte for the
        // sum and nothing else.
        checksum(unsafe { std::slice::from_raw_parts(self.as_ptr(), bytes) })
    }

    /// The checksum goes on with a part of the slot, and the part is copied to the end of `target`: chunk by
    /// chunk, so that the copy finds each chunk in the cache.
    ///
    /// # Panics
    /// If the part does not lie inside the slot.
    pub(crate) fn append_to(&self, part: Range<usize>, target: &mut BytesMut, sum: &mut Checksum) {
        self.check_part(part.start, part.len());
        // SAFETY: the part is mapped (checked); the slice ends with this call, which copies its bytes and
        // looks at none.
        let source = unsafe { std::slice::from_raw_parts(self.as_ptr().add(part.start), part.len()) };
        append(source, target, sum);
    }

    fn check_part(&self, offset: usize, bytes: usize) {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.len), "a part lies inside its slot");
    }

    /// Collects a page from strided tensors into the slot; returns the checksum of the slot's bytes in slot
    /// order. Places that the plan leaves out (the rest of a partial page) become zero.
    ///
    /// # Panics
    /// If the plan is for another slot size.
    pub fn gather(&self, plan: &CopyPlan) -> u64 {
        assert_eq!(plan.slot_bytes(), self.len, "a plan is made for one slot size");
        // SAFETY: the slot is mapped and as long as the plan says (asserted), no reference into it lives, as
        // in `fill`, and whoever made the plan's views promised that their memory is valid.
        unsafe { plan.gather_into(self.as_ptr()) }
    }

    /// Spreads the slot over strided tensors; returns the checksum of the slot's bytes in slot order. What
    /// was copied is good only if the checksum is the page's own.
    ///
    /// # Panics
    /// If the plan is for another slot size.
    pub fn scatter(&self, plan: &CopyPlan) -> u64 {
        assert_eq!(plan.slot_bytes(), self.len, "a plan is made for one slot size");
        // SAFETY: as in `gather`.
        unsafe { plan.scatter_from(self.as_ptr()) }
    }
}
