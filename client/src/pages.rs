//! What a page is copied from and to. Owns: the kinds (bytes, plans, slots) and their checks. Must not know: how slots come.

use crate::error::{Error, Result};
use bytes::Bytes;
use std::sync::Arc;
use turnkv_transfer::{
    Checksum, CopyPlan, HugePages, Page, PageMemory, PageMut, Region, RegionOptions, Slot, copy_streaming,
};

/// Where a page's bytes are before an offload.
#[derive(Debug, Clone, Copy)]
pub enum PageSource<'a> {
    /// In one piece, in the namespace's order.
    Bytes(&'a [u8]),
    /// The same with an owner that outlives the call: over a network the pool may read it where it is, and nobody copies it here.
    Memory(&'a PageMemory),
    /// In strided tensors.
    Plan(&'a CopyPlan),
}

/// Where a page's bytes go in a reload. Bytes of pages past the reported ones are undefined afterwards.
#[derive(Debug)]
pub enum PageTarget<'a> {
    /// In one piece, in the namespace's order.
    Bytes(&'a mut [u8]),
    /// The same with an owner that outlives the call: over a network the pool may write it where it is. Whoever drops the call finds
    /// anything in it, and nothing that changes it any more.
    Memory(&'a PageMemory),
    /// Into strided tensors.
    Plan(&'a CopyPlan),
    /// Into a slot of a pool in this process.
    Slot(&'a mut SlotTarget),
}

/// A slot that a page is reloaded into, by a pool that is another one's client.
#[derive(Debug)]
pub struct SlotTarget {
    /// The right to write it.
    pub page: PageMut,
    /// CRC-64/NVME of the bytes that were copied into it.
    pub checksum: u64,
}

impl PageSource<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            PageSource::Bytes(bytes) => bytes.len(),
            PageSource::Memory(memory) => memory.len(),
            PageSource::Plan(plan) => plan.slot_bytes(),
        }
    }

    /// Copies the page into its slot; the checksum of what was copied.
    pub(crate) fn fill(&self, slot: &Slot) -> Result<u64> {
        let page = slot.claim()?;
        let (_, sum) = match self {
            PageSource::Bytes(bytes) => page.fill(bytes),
            PageSource::Memory(memory) => memory.fill(page),
            PageSource::Plan(plan) => page.gather(plan),
        };
        Ok(sum)
    }

    /// What may be lent as it is.
    pub(crate) fn own(&self) -> Option<PageMemory> {
        match self {
            PageSource::Memory(memory) => Some((*memory).clone()),
            PageSource::Bytes(_) | PageSource::Plan(_) => None,
        }
    }
}

impl PageTarget<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            PageTarget::Bytes(bytes) => bytes.len(),
            PageTarget::Memory(memory) => memory.len(),
            PageTarget::Plan(plan) => plan.slot_bytes(),
            PageTarget::Slot(target) => target.page.slot().len(),
        }
    }

    /// What may be lent as it is.
    pub(crate) fn own(&self) -> Option<PageMemory> {
        match self {
            PageTarget::Memory(memory) => Some((*memory).clone()),
            PageTarget::Slot(target) => Some(PageMemory::new(Arc::new(target.page.slot().clone()))),
            PageTarget::Bytes(_) | PageTarget::Plan(_) => None,
        }
    }

    /// Memory of the caller's, which may be another target's as well. (Slots are claimed, and a slice is one target's.)
    pub(crate) fn memory(&self) -> Option<&PageMemory> {
        match self {
            PageTarget::Memory(memory) => Some(memory),
            PageTarget::Bytes(_) | PageTarget::Plan(_) | PageTarget::Slot(_) => None,
        }
    }

    /// The page was written where it is: this is the checksum of what is there.
    pub(crate) fn note_checksum(&mut self, checksum: u64) {
        if let PageTarget::Slot(target) = self {
            target.checksum = checksum;
        }
    }

    /// Copies the page out of its slot; the checksum of what was copied.
    pub(crate) fn drain(&mut self, page: &Page) -> u64 {
        match self {
            PageTarget::Bytes(bytes) => page.drain(bytes),
            PageTarget::Memory(memory) => memory.drain(page),
            PageTarget::Plan(plan) => page.scatter(plan),
            PageTarget::Slot(target) => {
                target.checksum = target.page.fill_from(page);
                target.checksum
            }
        }
    }
}

/// Memory of one page, for plans whose bytes travel inline.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    slot: Option<Slot>,
}

impl Staging {
    /// The right to write it: the page before this one was sealed.
    pub(crate) fn page(&mut self, page_bytes: usize) -> Result<PageMut> {
        if self.slot.is_none() {
            let options = RegionOptions {
                bytes: page_bytes,
                huge_pages: HugePages::Off,
                touch: false,
                lock: false,
                name: "turnkv-staging".to_owned(),
            };
            let made = Region::create(&options).map(|(region, _)| Arc::clone(&region).slot(0, page_bytes));
            let slot = made.map_err(|error| {
                Error::new(crate::ErrorKind::Internal, format!("staging memory: {error}"))
            })?;
            self.slot = slot;
        }
        let slot = self.slot.as_ref().ok_or_else(|| Error::invalid("a page of no bytes"))?;
        Ok(slot.claim()?)
    }
}

/// A page on its way in, piece by piece, in order.
#[derive(Debug)]
pub(crate) struct Arriving {
    page_bytes: usize,
    received: usize,
    checksum: Checksum,
    /// Where it is put together, if its target is a plan.
    staged: Option<PageMut>,
}

impl Arriving {
    pub(crate) fn new(page_bytes: usize) -> Arriving {
        Arriving { page_bytes, received: 0, checksum: Checksum::new(), staged: None }
    }

    /// Takes the next piece, which came in these parts. True: the page is whole.
    pub(crate) fn take(
        &mut self,
        offset: u64,
        parts: &[Bytes],
        target: &mut PageTarget<'_>,
        staging: &mut Staging,
    ) -> Result<bool> {
        let bytes = parts.iter().map(Bytes::len).sum();
        let end = self.received.checked_add(bytes).filter(|end| *end <= self.page_bytes);
        if end.is_none() || bytes == 0 || offset != self.received as u64 {
            return Err(Error::protocol("a piece of a page is not where it belongs"));
        }
        for part in parts {
            let end = self.received + part.len();
            match target {
                PageTarget::Bytes(bytes) => {
                    copy_streaming(part, &mut bytes[self.received..end], &mut self.checksum);
                }
                PageTarget::Memory(memory) => memory.put(self.received, part, &mut self.checksum),
                PageTarget::Plan(_) => {
                    let staged = match self.staged.take() {
                        Some(staged) => staged,
                        None => staging.page(self.page_bytes)?,
                    };
                    self.staged.insert(staged).fill_part(self.received, part, &mut self.checksum);
                }
                PageTarget::Slot(target) => {
                    target.page.fill_part(self.received, part, &mut self.checksum);
                }
            }
            self.received = end;
        }
        Ok(self.received == self.page_bytes)
    }

    /// The checksum of the whole page, which is in the target now.
    pub(crate) fn finish(self, target: &mut PageTarget<'_>) -> u64 {
        debug_assert_eq!(self.received, self.page_bytes);
        match (target, self.staged) {
            (PageTarget::Plan(plan), Some(staged)) => staged.seal().scatter(plan),
            (PageTarget::Slot(target), _) => {
                target.checksum = self.checksum.finish();
                target.checksum
            }
            _ => self.checksum.finish(),
        }
    }
}

#[cfg(test)]
mod tests;
