//! Registered buffers of a ring: which slab has which numbers. Owns: the table, and the regions in it for as long as
//! the kernel may use them through it. Must not know: operations.
//!
//! A slab of more than 1 GiB takes several entries, because the kernel allows no more in one. What cannot be registered
//! is no error: such slots go through plain reads and writes.

use crate::limits::{RING_BUFFER_BYTES_MAX, RING_BUFFERS_MAX};
use io_uring::IoUring;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use turnkv_transfer::{Region, Slot};

/// The table. Dropped after the ring (see the worker's fields), so no region goes while it is registered.
pub(super) struct Buffers {
    regions: Vec<Option<Arc<Region>>>,
    /// First entry of a registered region, by its address; the table keeps the region, so no other can have it.
    first: HashMap<usize, u16>,
    entries_per_region: usize,
    registered_bytes: u64,
}

impl Buffers {
    /// A table for so many regions of up to `region_bytes`, or an empty one if the kernel has no sparse tables.
    pub(super) fn new(ring: &IoUring, regions: usize, region_bytes: usize) -> io::Result<Buffers> {
        let entries_per_region = region_bytes.div_ceil(RING_BUFFER_BYTES_MAX).max(1);
        let regions = regions.min(RING_BUFFERS_MAX / entries_per_region);
        ring.submitter().register_buffers_sparse((regions * entries_per_region) as u32)?;
        Ok(Buffers { entries_per_region, ..Buffers::none(regions) })
    }

    /// A table that registers nothing.
    pub(super) fn empty() -> Buffers {
        Buffers::none(0)
    }

    fn none(regions: usize) -> Buffers {
        let regions = (0..regions).map(|_| None).collect();
        Buffers { regions, first: HashMap::new(), entries_per_region: 1, registered_bytes: 0 }
    }

    /// Puts a region at a place of the table, in place of the one before, which operations in flight still keep. A place
    /// outside the table, or a region too large for one, stays unregistered.
    pub(super) fn set(&mut self, ring: &IoUring, index: usize, region: Arc<Region>) -> io::Result<()> {
        let entries = region.len().div_ceil(RING_BUFFER_BYTES_MAX);
        self.clear(ring, index)?;
        if index >= self.regions.len() || entries > self.entries_per_region {
            return Ok(());
        }
        let chunk = |entry: usize| {
            let start = entry * RING_BUFFER_BYTES_MAX;
            let bytes = (region.len() - start).min(RING_BUFFER_BYTES_MAX);
            libc::iovec { iov_base: region.as_ptr().wrapping_add(start).cast(), iov_len: bytes }
        };
        let chunks: Vec<libc::iovec> = (0..entries).map(chunk).collect();
        let first = index * self.entries_per_region;
        // SAFETY: the ranges are the region's mapping, and the region goes into `regions` below, which outlives the ring
        // or is cleared in the kernel first (`clear`).
        unsafe { ring.submitter().register_buffers_update(first as u32, &chunks, None)? };
        self.first.insert(Arc::as_ptr(&region) as usize, first as u16);
        self.registered_bytes += region.len() as u64;
        self.regions[index] = Some(region);
        Ok(())
    }

    /// Takes a region out of the table; operations in flight keep it until they end.
    pub(super) fn clear(&mut self, ring: &IoUring, index: usize) -> io::Result<()> {
        let Some(old) = self.regions.get_mut(index).and_then(Option::take) else { return Ok(()) };
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let nothing = vec![nothing; self.entries_per_region];
        let first = index * self.entries_per_region;
        self.first.remove(&(Arc::as_ptr(&old) as usize));
        self.registered_bytes -= old.len() as u64;
        // SAFETY: empty entries refer to no memory. The kernel keeps the old pages pinned until its operations end.
        let cleared = unsafe { ring.submitter().register_buffers_update(first as u32, &nothing, None) };
        if cleared.is_err() {
            // The kernel still has it in its table: then it must stay mapped for as long as the ring lives.
            std::mem::forget(old);
        }
        cleared
    }

    /// The number of the registered buffer that a slot lies in whole.
    pub(super) fn find(&self, slot: &Slot) -> Option<u16> {
        let first = *self.first.get(&(Arc::as_ptr(slot.region()) as usize))?;
        let entry = slot.offset() / RING_BUFFER_BYTES_MAX;
        let last = (slot.offset() + slot.len() - 1) / RING_BUFFER_BYTES_MAX;
        (entry == last).then_some(first + entry as u16)
    }

    /// Bytes registered.
    pub(super) fn registered_bytes(&self) -> u64 {
        self.registered_bytes
    }
}
