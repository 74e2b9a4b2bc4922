//! Access to the bytes of a slot: the right to write them, and the right to copy them.
//!
//! Owns: the order of the two, bounds-checked copies and sums of the bytes. Must not know: who leases a slot,
//! what its bytes mean.
//!
//! ```text
//!   Slot --claim()--> PageMut --fill(), gather(), or fill_part()... and seal()--> Page
//!        --page()--------------------------------------------------------------> Page
//! ```
//!
//! What holds for the bytes of a region, whoever calls:
//! - *Two writers.* A [`PageMut`] is neither `Clone` nor `Copy`, is made only by [`Slot::claim`], and that
//!   refuses while another one of the same mapping overlaps it: within this process it is exclusive, however
//!   many copies of the [`Slot`] there are. Leases keep other processes away, and what a broken lease does is
//!   the next rule's.
//! - *A writer and a reader.* Nothing here refers to the bytes: they are copied by `crate::shared`, which is
//!   defined whatever others write meanwhile. A sum is always of the very bytes that were copied. So a reader
//!   whose lease ended, and a peer that breaks its lease, cost a miss: never a wrong page, never undefined
//!   behaviour.
//! - *The mapping.* A region cannot shrink (it is sealed), and both types keep it mapped.
//!
//! Whoever wants the bytes in place takes [`Slot::as_ptr`], and says in an `unsafe` block why it may.

use std::ops::Range;

use bytes::BytesMut;

use crate::checksum::Checksum;
use crate::copy::{self, sum_part};
use crate::limits::CHUNK_BYTES;
use crate::plan::CopyPlan;
use crate::shared;
use crate::slot::Slot;

/// Why a slot cannot be written: somebody in this process is writing bytes of it. The pool grants a slot to one
/// writer at a time, so this is a writer that outlived its lease: give the lease back and ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bytes of this slot are being written by somebody else in this process")]
pub struct Claimed;

/// The exclusive right, within this process, to write the bytes of one slot. Given up when it is dropped or
/// sealed.
///
/// A page is written once:
/// ```compile_fail,E0382
/// # fn shown(slot: turnkv_transfer::Slot) -> Result<(), turnkv_transfer::Claimed> {
/// let page = slot.claim()?;
/// page.fill(&[1; 4096]);
/// page.fill(&[2; 4096]); // the first call took the right away
/// # Ok(())
/// # }
/// ```
/// Nobody writes it after it was sealed:
/// ```compile_fail,E0382
/// # fn shown(slot: turnkv_transfer::Slot) -> Result<(), turnkv_transfer::Claimed> {
/// let mut page = slot.claim()?;
/// let sealed = page.seal();
/// page.fill_at(0, &[1; 8]);
/// # Ok(())
/// # }
/// ```
/// Nor through what sealing gives:
/// ```compile_fail,E0599
/// # fn shown(slot: turnkv_transfer::Slot) -> Result<(), turnkv_transfer::Claimed> {
/// let page = slot.claim()?.seal();
/// page.fill_at(0, &[1; 8]);
/// # Ok(())
/// # }
/// ```
/// Nobody reads it before:
/// ```compile_fail,E0599
/// # fn shown(slot: turnkv_transfer::Slot) -> Result<(), turnkv_transfer::Claimed> {
/// let page = slot.claim()?;
/// let bytes = page.to_vec();
/// # Ok(())
/// # }
/// ```
/// And the right is one's own:
/// ```compile_fail,E0599
/// # fn shown(slot: turnkv_transfer::Slot) -> Result<(), turnkv_transfer::Claimed> {
/// let page = slot.claim()?;
/// let second = page.clone();
/// # Ok(())
/// # }
/// ```
/// In this order it works:
/// ```no_run
/// # fn shown(slot: turnkv_transfer::Slot) -> Result<(), turnkv_transfer::Claimed> {
/// let mut page = slot.claim()?;
/// page.fill_at(0, &[1; 8]);
/// let bytes = page.seal().to_vec();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PageMut {
    slot: Slot,
}

/// The right to copy the bytes of a slot. Promises nothing about who writes them meanwhile: what was copied
/// counts if its checksum and its lease say so.
#[derive(Clone, Debug)]
pub struct Page {
    slot: Slot,
}

impl Slot {
    /// The right to write this slot's bytes. Asked for by whoever the pool granted the slot to.
    ///
    /// # Errors
    /// Somebody in this process has the right to write some of them.
    pub fn claim(&self) -> Result<PageMut, Claimed> {
        let bytes = self.offset()..self.offset() + self.len();
        if self.region().claims().take(bytes) { Ok(PageMut { slot: self.clone() }) } else { Err(Claimed) }
    }

    /// The right to copy this slot's bytes, as they are at the time of each copy.
    #[must_use]
    pub fn page(&self) -> Page {
        Page { slot: self.clone() }
    }
}

impl PageMut {
    /// Where the bytes are.
    #[must_use]
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// The page is written: from here on it is read.
    #[must_use]
    pub fn seal(self) -> Page {
        self.slot.page()
    }

    /// Copies all of the page past the cache; gives its checksum.
    ///
    /// # Panics
    /// If `source` is not exactly as long as the slot: check lengths that come from outside before.
    pub fn fill(self, source: &[u8]) -> (Page, u64) {
        assert_eq!(source.len(), self.slot.len(), "a page fills its slot exactly");
        // SAFETY: the target is mapped and as long as the source (asserted); nothing refers to it.
        let sum = unsafe { copy::copy_checksummed(source.as_ptr(), self.slot.as_ptr(), self.slot.len()) };
        (self.seal(), sum)
    }

    /// Copies all of another page of the same size past the cache, to be written on; gives its checksum.
    ///
    /// # Panics
    /// If the sizes differ, or the slots share bytes.
    pub fn fill_from(&mut self, source: &Page) -> u64 {
        let bytes = self.slot.len();
        assert_eq!(source.slot.len(), bytes, "a page fills its slot exactly");
        let apart = self.slot.as_ptr().addr().abs_diff(source.slot.as_ptr().addr());
        assert!(apart >= bytes, "the slots lie apart");
        // SAFETY: both slots are mapped, equally long and apart (asserted); nothing refers to them.
        unsafe { copy::copy_checksummed(source.slot.as_ptr(), self.slot.as_ptr(), bytes) }
    }

    /// Collects the page from strided tensors; gives the checksum of its bytes in slot order. Places that the
    /// plan leaves out (the rest of a partial page) become zero.
    ///
    /// # Panics
    /// If the plan is for another slot size.
    pub fn gather(self, plan: &CopyPlan) -> (Page, u64) {
        assert_eq!(plan.slot_bytes(), self.slot.len(), "a plan is made for one slot size");
        // SAFETY: the slot is mapped and as long as the plan says (asserted), nothing refers to it, and whoever
        // made the plan's views promised that their memory is valid.
        let sum = unsafe { plan.gather_into(self.slot.as_ptr()) };
        (self.seal(), sum)
    }

    /// Copies a piece of the page to `offset`; gives the checksum of the piece.
    ///
    /// # Panics
    /// As [`PageMut::fill_part`].
    pub fn fill_at(&mut self, offset: usize, source: &[u8]) -> u64 {
        let mut sum = Checksum::new();
        self.fill_part(offset, source, &mut sum);
        sum.finish()
    }

    /// Copies the next piece of the page to `offset`, adding to the page's checksum.
    ///
    /// # Panics
    /// If the piece does not lie inside the slot: check lengths that come from outside before.
    pub fn fill_part(&mut self, offset: usize, source: &[u8], sum: &mut Checksum) {
        check_part(&self.slot, offset, source.len());
        let target = self.slot.as_ptr().wrapping_add(offset);
        // SAFETY: the piece lies inside the slot (checked), which is mapped; nothing refers to it.
        unsafe { copy::copy_part_checksummed(source.as_ptr(), target, source.len(), sum) }
    }

    /// The same for a right that several parts of one copy share.
    ///
    /// # Panics
    /// If the piece does not lie inside the slot.
    pub(crate) fn put(&self, offset: usize, source: &[u8]) {
        check_part(&self.slot, offset, source.len());
        let target = self.slot.as_ptr().wrapping_add(offset);
        // SAFETY: as in `fill_part`.
        unsafe { copy::copy_part_checksummed(source.as_ptr(), target, source.len(), &mut Checksum::new()) }
    }

    /// Writes zeros over a part of the slot.
    ///
    /// # Panics
    /// If the part does not lie inside the slot.
    pub(crate) fn blank(&self, part: Range<usize>) {
        check_part(&self.slot, part.start, part.len());
        for start in part.clone().step_by(ZEROS.len()) {
            let bytes = ZEROS.len().min(part.end - start);
            // SAFETY: the piece lies inside the part, and that inside the slot (checked); nothing refers to it.
            unsafe { shared::copy(ZEROS.as_ptr(), self.slot.as_ptr().add(start), bytes) };
        }
    }
}

impl Drop for PageMut {
    fn drop(&mut self) {
        self.slot.region().claims().give_back(self.slot.offset());
    }
}

impl Page {
    /// Where the bytes are.
    #[must_use]
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// A copy of the bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.slot.len()];
        self.copy_to(0, &mut bytes);
        bytes
    }

    /// Copies the bytes from `offset` on into `target`, without a checksum: what is there may be another
    /// page's.
    ///
    /// # Panics
    /// If the part does not lie inside the slot: check lengths that come from outside before.
    pub fn copy_to(&self, offset: usize, target: &mut [u8]) {
        check_part(&self.slot, offset, target.len());
        // SAFETY: the part is mapped (checked) and as long as the target; an exclusive slice of the caller
        // never lies inside a slot.
        unsafe { shared::copy(self.slot.as_ptr().add(offset), target.as_mut_ptr(), target.len()) };
    }

    /// Copies the page into `target` past the cache; gives the checksum of what was copied.
    ///
    /// # Panics
    /// If `target` is not exactly as long as the slot: check lengths that come from outside before.
    pub fn drain(&self, target: &mut [u8]) -> u64 {
        assert_eq!(target.len(), self.slot.len(), "a slot drains into exactly one page");
        // SAFETY: the source is mapped and as long as the target (asserted); an exclusive slice of the caller
        // never lies inside a slot.
        unsafe { copy::copy_checksummed(self.slot.as_ptr(), target.as_mut_ptr(), target.len()) }
    }

    /// Spreads the page over strided tensors; gives the checksum, in slot order, of what was copied.
    ///
    /// # Panics
    /// If the plan is for another slot size.
    pub fn scatter(&self, plan: &CopyPlan) -> u64 {
        assert_eq!(plan.slot_bytes(), self.slot.len(), "a plan is made for one slot size");
        // SAFETY: the slot is mapped and as long as the plan says (asserted), and whoever made the plan's views
        // promised that their memory is valid.
        unsafe { plan.scatter_from(self.slot.as_ptr()) }
    }

    /// The checksum of the bytes as they are now.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        self.checksum_of(self.slot.len())
    }

    /// The checksum of the first bytes as they are now.
    ///
    /// # Panics
    /// If the slot is shorter.
    #[must_use]
    pub fn checksum_of(&self, bytes: usize) -> u64 {
        check_part(&self.slot, 0, bytes);
        let mut sum = Checksum::new();
        // SAFETY: the part is mapped (checked).
        unsafe { sum_part(self.slot.as_ptr(), bytes, &mut sum) };
        sum.finish()
    }

    /// Copies a part to the end of `target`, adding it to a checksum: chunk by chunk, so that the sum finds
    /// each chunk in the cache.
    ///
    /// # Panics
    /// If the part does not lie inside the slot.
    pub(crate) fn append_to(&self, part: Range<usize>, target: &mut BytesMut, sum: &mut Checksum) {
        check_part(&self.slot, part.start, part.len());
        // SAFETY: the part lies inside the slot, which is mapped (checked).
        unsafe { copy::append_shared(self.slot.as_ptr().wrapping_add(part.start), part.len(), target, sum) };
    }
}

/// What parts of slots are blanked with.
static ZEROS: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];

fn check_part(slot: &Slot, offset: usize, bytes: usize) {
    let end = offset.checked_add(bytes);
    assert!(end.is_some_and(|end| end <= slot.len()), "a part lies inside its slot");
}

#[cfg(test)]
mod tests;
