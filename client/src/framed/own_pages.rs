//! A call's pages in memory of its caller's own, lent to the server as they are. Owns: naming them, and taking them back however the
//! call ends. Must not know: lent memory of the plane's, verbs.
//!
//! Only over framed rails: their domain learns of memory at once, and forgets it after at most one copy. A NIC is told of memory slowly,
//! and may not be sure that nothing touches it any more: it gets the plane's.

use super::staging::Staged;
use std::ops::Range;
use std::sync::Arc;
use turnkv_proto::limits::REMOTE_REGIONS_MAX;
use turnkv_proto::wire;
use turnkv_transfer::PageMemory;
use turnkv_transfer::fabric::framed::FramedDomain;
use turnkv_transfer::fabric::{Access, Domain, RegionKey, TargetMemory};

/// Where a call's pages are while a server reads or writes them.
#[derive(Debug)]
pub(crate) enum LentFor {
    /// In memory of the plane's, to or from which they are copied.
    Copies(Staged),
    /// Where their caller has them.
    Own(OwnPages),
}

/// Pages that a server may reach where they are. Dropped, they are taken back: nothing touches them after that.
#[derive(Debug)]
pub(crate) struct OwnPages {
    domain: Arc<FramedDomain>,
    number: u32,
    /// Pages side by side are one region.
    regions: Vec<RegionKey>,
    /// Of each page its region, and where it begins there.
    pages: Vec<(PageMemory, u32, u64)>,
}

impl LentFor {
    /// What names the memory to the server.
    pub(crate) fn regions(&self) -> Vec<wire::RemoteRegion> {
        match self {
            LentFor::Copies(staged) => vec![staged.region()],
            LentFor::Own(own) => own.regions(),
        }
    }

    /// Whether it is memory of a device, which only NICs reach.
    pub(crate) fn is_direct(&self) -> bool {
        matches!(self, LentFor::Copies(staged) if staged.is_direct())
    }

    /// The call was answered: the server does nothing with the memory any more.
    pub(crate) fn answered(self) {
        match self {
            LentFor::Copies(staged) => staged.answered(),
            LentFor::Own(own) => drop(own),
        }
    }
}

impl OwnPages {
    /// Lends these pages to whoever is at the other end of this domain's rails. None: they are in more places than a call may name, or
    /// the domain has no room for them.
    pub(super) fn lend(
        domain: &Arc<FramedDomain>,
        number: u32,
        pages: Vec<PageMemory>,
        access: Access,
    ) -> Option<OwnPages> {
        let joined = PageMemory::joined(&pages);
        if joined.len() > REMOTE_REGIONS_MAX {
            return None;
        }
        let domain = Arc::clone(domain);
        let mut own = OwnPages { domain, number, regions: Vec::new(), pages: Vec::new() };
        let mut pages = pages.into_iter();
        for (memory, count) in joined {
            let region = own.regions.len() as u32;
            let key = own.domain.register(TargetMemory::Host(Arc::clone(memory.share())), access).ok()?;
            own.regions.push(key);
            let mut offset = 0;
            for page in pages.by_ref().take(count) {
                let begins = offset;
                offset += page.len() as u64;
                own.pages.push((page, region, begins));
            }
        }
        Some(own)
    }

    fn regions(&self) -> Vec<wire::RemoteRegion> {
        let region = |key: &RegionKey| wire::RemoteRegion {
            keys: vec![wire::RemoteKey { domain: self.number, key: key.key, base: key.base }],
            bytes: key.bytes,
        };
        self.regions.iter().map(region).collect()
    }

    /// The numbers of the last so many pages.
    pub(crate) fn last(&self, pages: usize) -> Range<usize> {
        self.pages.len() - pages..self.pages.len()
    }

    /// What names one of the pages to the server.
    pub(crate) fn span(&self, page: usize) -> wire::RemoteSpan {
        let (memory, region, offset) = &self.pages[page];
        wire::RemoteSpan { region: *region, offset: *offset, bytes: memory.len() as u32 }
    }

    /// The checksum of one of the pages as it is now.
    pub(crate) fn checksum(&self, page: usize) -> u64 {
        self.pages[page].0.checksum()
    }
}

impl Drop for OwnPages {
    fn drop(&mut self) {
        for key in self.regions.drain(..) {
            // A framed domain is always sure.
            if self.domain.deregister(key).is_err() {
                tracing::warn!("pages that were lent stay with their rails until they end");
            }
        }
    }
}
