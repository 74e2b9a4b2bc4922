//! Pages in memory with an owner, which a client may lend to a pool as they are. Must not know: how they travel.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, Result};
use turnkv_client::PageMemory;
use turnkv_transfer::{HugePages, Region, RegionOptions, Slot};

use crate::pages::{Pages, check_ends, check_whole, stamp};

/// A ring of pages; page `number` uses the place `number % count`.
#[derive(Debug)]
pub struct OwnPages {
    region: Arc<Region>,
    page_bytes: usize,
    count: usize,
}

impl OwnPages {
    /// As many pages as there, with the same bytes.
    pub fn like(pages: &mut Pages, page_bytes: usize) -> Result<OwnPages> {
        let options = RegionOptions {
            bytes: (pages.count() * page_bytes).next_multiple_of(2 << 20),
            huge_pages: HugePages::Auto,
            touch: true,
            lock: false,
            name: "turnkv-bench".to_owned(),
        };
        let own = OwnPages { region: Region::create(&options)?.0, page_bytes, count: pages.count() };
        for (number, page) in pages.stamped(0..pages.count()).into_iter().enumerate() {
            own.slot(number)?.claim()?.fill(page);
        }
        Ok(own)
    }

    /// The memory of these pages, in order, once they carry their stamps.
    pub fn stamped(&self, numbers: Range<usize>) -> Result<Vec<PageMemory>> {
        let place = |number: usize| {
            let slot = self.slot(number % self.count)?;
            let mut page = slot.claim()?;
            page.fill_at(0, &stamp(number, false));
            page.fill_at(self.page_bytes - 8, &stamp(number, true));
            Ok(PageMemory::new(Arc::new(slot)))
        };
        numbers.map(place).collect()
    }

    /// `count` places to read into, from the one of `number` on, wrapping early rather than in the middle: the first, and their memory.
    pub fn targets(&self, number: usize, count: usize) -> Result<(usize, Vec<PageMemory>)> {
        let first = number % self.count;
        let first = if first + count > self.count { 0 } else { first };
        let place = |number: usize| Ok(PageMemory::new(Arc::new(self.slot(number)?)));
        Ok((first, (first..first + count).map(place).collect::<Result<_>>()?))
    }

    /// Whether the places from `first` on hold `count` pages with the stamps of `number` and those after it.
    pub fn check_ends(&self, first: usize, number: usize, count: usize) -> Result<()> {
        for at in 0..count {
            let (page, mut ends) = (self.slot(first + at)?.page(), [0; 16]);
            page.copy_to(0, &mut ends[..8]);
            page.copy_to(self.page_bytes - 8, &mut ends[8..]);
            check_ends(&[ends], number + at)?;
        }
        Ok(())
    }

    /// Whether the pages from `first` on are these, byte by byte.
    pub fn check_whole(&self, first: usize, wanted: &[&[u8]]) -> Result<()> {
        let page = |at: usize| Ok(self.slot(first + at)?.page().to_vec());
        let pages: Vec<Vec<u8>> = (0..wanted.len()).map(page).collect::<Result<_>>()?;
        check_whole(&pages, wanted)
    }

    fn slot(&self, number: usize) -> Result<Slot> {
        self.region.slot(number * self.page_bytes, self.page_bytes).context("a page outside of the ring")
    }
}
