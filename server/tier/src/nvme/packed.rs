//! How long packed extents are on the device. Owns: that table of one segment. Must not know: how they are packed.
//!
//! Its owner knows an extent by its place and its page's size: eight bytes more of memory for each packed extent, which are
//! saved by each of the thousands of bytes that it does not take on the device.

/// Extents by their header's block. Those of a segment are placed one behind the other, so the table is in order.
#[derive(Debug, Default)]
pub(super) struct PackedExtents(Vec<PackedExtent>);

#[derive(Debug)]
struct PackedExtent {
    block: u32,
    stored_bytes: u32,
}

impl PackedExtents {
    /// Adds an extent.
    pub(super) fn insert(&mut self, block: u32, stored_bytes: u32) {
        match self.find(block) {
            Ok(place) => self.0[place].stored_bytes = stored_bytes,
            Err(place) => self.0.insert(place, PackedExtent { block, stored_bytes }),
        }
    }

    /// Is there none?
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of its payload on the device, if it is packed.
    pub(super) fn get(&self, block: u32) -> Option<u32> {
        self.find(block).ok().map(|place| self.0[place].stored_bytes)
    }

    fn find(&self, block: u32) -> Result<usize, usize> {
        self.0.binary_search_by_key(&block, |extent| extent.block)
    }
}
