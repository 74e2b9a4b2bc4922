//! Pages out of the pool into a capture, some at a time. Owns: what becomes of pages that follow one that is gone. Must not know: which
//! pages, and why.

use super::plan::PlannedPage;
use super::read::PageReader;
use crate::limits::SNAPSHOT_PAGES_IN_FLIGHT_MAX;
use turnkv_archive::{Capture, CapturedPage, Error as Fault};
use turnkv_proto::{BlockHash, Error};

/// Pages on their way from the pool into a capture.
pub(super) struct Taking<'a> {
    capture: &'a mut Capture,
    reader: PageReader<'a>,
    at_once: usize,
    taken: Vec<Option<u32>>,
}

/// Why no more pages are taken.
pub(super) enum TakeFault {
    /// The pool says so.
    Pool(Error),
    /// The archive does.
    Archive(Fault),
}

impl<'a> Taking<'a> {
    /// Into this capture, with so many bytes in flight.
    pub(super) fn new(capture: &'a mut Capture, reader: PageReader<'a>, inflight_bytes: u64) -> Taking<'a> {
        let at_once = (inflight_bytes / reader.page_bytes()).clamp(1, SNAPSHOT_PAGES_IN_FLIGHT_MAX as u64);
        Taking { capture, reader, at_once: at_once as usize, taken: Vec::new() }
    }

    /// Pages in parts, each of as many as may be in flight.
    pub(super) fn parts<'p>(&self, pages: &'p [PlannedPage]) -> std::slice::Chunks<'p, PlannedPage> {
        pages.chunks(self.at_once)
    }

    /// Takes the next part.
    pub(super) async fn take(&mut self, some: &[PlannedPage]) -> Result<(), TakeFault> {
        let hashes: Vec<BlockHash> = some.iter().map(|page| page.hash).collect();
        for (page, read) in some.iter().zip(self.reader.read(&hashes).await.map_err(TakeFault::Pool)?) {
            // What follows a page that is gone is of no use.
            let parent = page.parent.map(|parent| self.taken[parent as usize]);
            let number = match (read, parent) {
                (None, _) | (_, Some(None)) => None,
                (Some(shards), parent) => {
                    let captured = CapturedPage { hash: page.hash, parent: parent.flatten(), shards };
                    Some(self.capture.page(captured).await.map_err(TakeFault::Archive)?)
                }
            };
            self.taken.push(number);
        }
        Ok(())
    }

    /// For each page its number in the capture; none: it was gone.
    pub(super) fn taken(self) -> Vec<Option<u32>> {
        self.taken
    }
}

impl TakeFault {
    /// In the words of the protocol.
    pub(super) fn told(self, refuse: &impl Fn(Fault) -> Error) -> Error {
        match self {
            TakeFault::Pool(error) => error,
            TakeFault::Archive(fault) => refuse(fault),
        }
    }
}
