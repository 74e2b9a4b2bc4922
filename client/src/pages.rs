//! What a page is copied from and to. Owns: the two kinds (bytes, plans) and their checks. Must not know: how slots come.

use crate::error::{Error, Result};
use bytes::Bytes;
use std::sync::Arc;
use turnkv_transfer::{Checksum, CopyPlan, HugePages, Region, RegionOptions, Slot, copy_streaming};

/// Where a page's bytes are before an offload.
#[derive(Debug, Clone, Copy)]
pub enum PageSource<'a> {
    /// In one piece, in the namespace's order.
    Bytes(&'a [u8]),
    /// In strided tensors.
    Plan(&'a CopyPlan),
}

/// Where a page's bytes go in a reload. Bytes of pages past the reported ones are undefined afterwards.
#[derive(Debug)]
pub enum PageTarget<'a> {
    /// In one piece, in the namespace's order.
    Bytes(&'a mut [u8]),
    /// Into strided tensors.
    Plan(&'a CopyPlan),
}

impl PageSource<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            PageSource::Bytes(bytes) => bytes.len(),
            PageSource::Plan(plan) => plan.slot_bytes(),
        }
    }

    /// Copies the page into its slot; the checksum of what was copied.
    pub(crate) fn fill(&self, slot: &Slot) -> u64 {
        match self {
            PageSource::Bytes(bytes) => slot.fill(bytes),
            PageSource::Plan(plan) => slot.gather(plan),
        }
    }
}

impl PageTarget<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            PageTarget::Bytes(bytes) => bytes.len(),
            PageTarget::Plan(plan) => plan.slot_bytes(),
        }
    }

    /// Copies the page out of its slot; the checksum of what was copied.
    pub(crate) fn drain(&mut self, slot: &Slot) -> u64 {
        match self {
            PageTarget::Bytes(bytes) => slot.drain(bytes),
            PageTarget::Plan(plan) => slot.scatter(plan),
        }
    }
}

/// Memory of one page, for plans whose bytes travel inline.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    slot: Option<Slot>,
}

impl Staging {
    pub(crate) fn slot(&mut self, page_bytes: usize) -> Result<&Slot> {
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
        self.slot.as_ref().ok_or_else(|| Error::invalid("a page of no bytes"))
    }
}

/// A page on its way in, piece by piece, in order.
#[derive(Debug)]
pub(crate) struct Arriving {
    page_bytes: usize,
    received: usize,
    checksum: Checksum,
}

impl Arriving {
    pub(crate) fn new(page_bytes: usize) -> Arriving {
        Arriving { page_bytes, received: 0, checksum: Checksum::new() }
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
                PageTarget::Plan(_) => {
                    staging.slot(self.page_bytes)?.fill_at(self.received, part);
                }
            }
            self.received = end;
        }
        Ok(self.received == self.page_bytes)
    }

    /// The checksum of the whole page, which is in the target now.
    pub(crate) fn finish(self, target: &mut PageTarget<'_>, staging: &mut Staging) -> Result<u64> {
        debug_assert_eq!(self.received, self.page_bytes);
        match target {
            PageTarget::Bytes(_) => Ok(self.checksum.finish()),
            PageTarget::Plan(plan) => Ok(staging.slot(self.page_bytes)?.scatter(plan)),
        }
    }
}
