//! Memory of a page that is its caller's own and may be lent as it is. Owns: copies to and from it, its checksum. Must not know:
//! who it is lent to.
//!
//! Others may read or write it at any time while it is lent, so nothing here refers to its bytes: what was copied, or arrived,
//! counts if its checksum says so.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use bytes::BytesMut;

use crate::checksum::Checksum;
use crate::copy::{append_shared, copy_checksummed, copy_part_checksummed, sum_part};
use crate::fabric::HostMemory;
use crate::page::{Page, PageMut};
use crate::slot::Slot;

/// The memory of one page (a shard of it, where a call moves several), in slot order. A share of whoever keeps it mapped: it may
/// outlive the call that it was given to.
#[derive(Clone, Debug)]
pub struct PageMemory(Arc<dyn HostMemory>);

// SAFETY: a slot keeps its region mapped and initialised, lies inside it, and gives out pointers only; it has at least one byte.
unsafe impl HostMemory for Slot {
    fn address(&self) -> NonNull<u8> {
        self.region().base().map_addr(|base| base.saturating_add(self.offset()))
    }

    fn bytes(&self) -> usize {
        self.len()
    }
}

impl PageMemory {
    /// Whatever its owner promised to be memory.
    #[must_use]
    pub fn new(memory: Arc<dyn HostMemory>) -> PageMemory {
        PageMemory(memory)
    }

    /// Where it is.
    #[must_use]
    pub fn share(&self) -> &Arc<dyn HostMemory> {
        &self.0
    }

    /// Its size in bytes, at least 1.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a page is never empty")]
    pub fn len(&self) -> usize {
        self.0.bytes()
    }

    /// Whether two of them share bytes: what is written to one would be another's.
    #[must_use]
    pub fn any_overlap<'a>(pages: impl IntoIterator<Item = &'a PageMemory>) -> bool {
        let range = |page: &PageMemory| (page.0.address().addr().get(), page.len());
        let mut order: Vec<(usize, usize)> = pages.into_iter().map(range).collect();
        order.sort_unstable();
        order.windows(2).any(|pair| pair[0].0 + pair[0].1 > pair[1].0)
    }

    /// The checksum of the bytes as they are now.
    #[must_use]
    pub fn checksum(&self) -> u64 {
        let mut sum = Checksum::new();
        // SAFETY: all of it is mapped and initialised, as its owner promised, and read by copies that others' writes do not disturb.
        unsafe { sum_part(self.0.address().as_ptr(), self.len(), &mut sum) };
        sum.finish()
    }

    /// Copies all of it into a slot; the checksum of what was copied.
    ///
    /// # Panics
    /// If the slot has another size, or shares bytes with it.
    #[must_use]
    pub fn fill(&self, slot: PageMut) -> (Page, u64) {
        assert_eq!(slot.slot().len(), self.len(), "a page fills its slot exactly");
        self.check_apart(slot.slot());
        // SAFETY: both are mapped, equally long and apart (asserted), and nothing refers to either.
        let sum = unsafe { copy_checksummed(self.0.address().as_ptr(), slot.slot().as_ptr(), self.len()) };
        (slot.seal(), sum)
    }

    /// Copies all of a slot into it; the checksum of what was copied.
    ///
    /// # Panics
    /// If the slot has another size, or shares bytes with it.
    #[must_use]
    pub fn drain(&self, slot: &Page) -> u64 {
        assert_eq!(slot.slot().len(), self.len(), "a slot drains into exactly one page");
        self.check_apart(slot.slot());
        // SAFETY: as in `fill`.
        unsafe { copy_checksummed(slot.slot().as_ptr(), self.0.address().as_ptr(), self.len()) }
    }

    /// Copies the next piece of the page to `offset`, adding to the page's checksum.
    ///
    /// # Panics
    /// If the piece does not lie inside: check lengths that come from outside before.
    pub fn put(&self, offset: usize, source: &[u8], sum: &mut Checksum) {
        self.check_part(offset, source.len());
        let target = self.0.address().as_ptr().wrapping_add(offset);
        // SAFETY: the piece lies inside the memory (checked), to which nothing refers, so the source lies elsewhere.
        unsafe { copy_part_checksummed(source.as_ptr(), target, source.len(), sum) }
    }

    /// Copies a part to the end of `target`, adding it to a checksum.
    ///
    /// # Panics
    /// If the part does not lie inside.
    pub(crate) fn append_to(&self, part: Range<usize>, target: &mut BytesMut, sum: &mut Checksum) {
        self.check_part(part.start, part.len());
        // SAFETY: the part lies inside the memory (checked).
        unsafe {
            append_shared(self.0.address().as_ptr().wrapping_add(part.start), part.len(), target, sum);
        }
    }

    fn check_part(&self, offset: usize, bytes: usize) {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.len()), "a part lies inside its page");
    }

    fn check_apart(&self, slot: &Slot) {
        let apart = self.0.address().addr().get().abs_diff(slot.as_ptr().addr());
        assert!(apart >= self.len(), "a page and its slot lie apart");
    }
}

#[cfg(test)]
mod tests;
