//! Pages in memory with an owner, which a client may lend as it is. Must not know: servers, hashes.

use anyhow::{Context, Result};
use std::sync::Arc;
use turnkv_client::PageMemory;
use turnkv_transfer::{HugePages, Region, RegionOptions, Slot};

/// Places of one size, one behind the other.
pub struct OwnMemory {
    region: Arc<Region>,
    page_bytes: usize,
}

impl OwnMemory {
    /// So many places that hold zeros.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(pages: usize, page_bytes: usize) -> Result<OwnMemory> {
        let options = RegionOptions {
            bytes: pages * page_bytes,
            huge_pages: HugePages::Off,
            touch: false,
            lock: false,
            name: "turnkv-test".to_owned(),
        };
        Ok(OwnMemory { region: Region::create(&options)?.0, page_bytes })
    }

    /// A place of each of these pages.
    ///
    /// # Errors
    /// As [`OwnMemory::new`].
    pub fn of(pages: &[Vec<u8>]) -> Result<OwnMemory> {
        let own = OwnMemory::new(pages.len(), pages.first().map_or(1, Vec::len))?;
        pages.iter().enumerate().try_for_each(|(at, page)| own.fill(at, page))?;
        Ok(own)
    }

    /// The memory of these places, in this order.
    ///
    /// # Errors
    /// There are fewer.
    pub fn pages(&self, places: impl IntoIterator<Item = usize>) -> Result<Vec<PageMemory>> {
        places.into_iter().map(|at| Ok(PageMemory::new(Arc::new(self.slot(at)?)))).collect()
    }

    /// Writes a page.
    ///
    /// # Errors
    /// There is no such place, or somebody else writes it.
    pub fn fill(&self, at: usize, page: &[u8]) -> Result<()> {
        self.slot(at)?.claim()?.fill(page);
        Ok(())
    }

    /// What is there.
    ///
    /// # Errors
    /// There is no such place.
    pub fn read(&self, at: usize) -> Result<Vec<u8>> {
        Ok(self.slot(at)?.page().to_vec())
    }

    /// Whether nobody else has a share of it.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        Arc::strong_count(&self.region) == 1
    }

    fn slot(&self, at: usize) -> Result<Slot> {
        self.region.slot(at * self.page_bytes, self.page_bytes).context("no such place")
    }
}
