//! A call's pages in memory of its caller's own, lent to the server as they are. Owns: naming them, and taking them back however the
//! call ends. Must not know: lent memory of the plane's, verbs.
//!
//! Only over framed rails: their domain learns of memory at once, and forgets it after at most one copy. A NIC is told of memory slowly,
//! and may not be sure that nothing touches it any more: it gets the plane's.

use super::staging::Staged;
use std::sync::Arc;
use turnkv_proto::wire;
use turnkv_transfer::PageMemory;
use turnkv_transfer::fabric::framed::FramedDomain;
use turnkv_transfer::fabric::{Access, Domain, RegionKey};

/// Where a call's pages are while a server reads or writes them: one behind the other, as far as it knows.
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
    key: RegionKey,
    pages: Vec<PageMemory>,
}

impl LentFor {
    /// What names the memory to the server.
    pub(crate) fn region(&self) -> wire::RemoteRegion {
        match self {
            LentFor::Copies(staged) => staged.region(),
            LentFor::Own(own) => own.region(),
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
    /// Lends these pages to whoever is at the other end of this domain's rails. None: it has no room for them, or they are of several
    /// sizes.
    pub(super) fn lend(
        domain: &Arc<FramedDomain>,
        number: u32,
        pages: Vec<PageMemory>,
        access: Access,
    ) -> Option<OwnPages> {
        let shares = pages.iter().map(|page| Arc::clone(page.share())).collect();
        let key = domain.register_pages(shares, access);
        let key =
            key.inspect_err(|error| tracing::debug!(%error, "pages are copied instead of lent")).ok()?;
        Some(OwnPages { domain: Arc::clone(domain), number, key, pages })
    }

    fn region(&self) -> wire::RemoteRegion {
        let key = wire::RemoteKey { domain: self.number, key: self.key.key, base: self.key.base };
        wire::RemoteRegion { keys: vec![key], bytes: self.key.bytes }
    }

    /// The checksum of one of the pages as it is now.
    pub(crate) fn checksum(&self, page: usize) -> u64 {
        self.pages[page].checksum()
    }

    /// Takes a page back that is said to be there, and gives the checksum of what is: nothing can change it any more.
    pub(crate) fn take_in(&self, page: usize) -> u64 {
        self.domain.take_back_page(self.key, page);
        self.checksum(page)
    }
}

impl Drop for OwnPages {
    fn drop(&mut self) {
        // A framed domain is always sure.
        if self.domain.deregister(self.key).is_err() {
            tracing::warn!("pages that were lent stay with their rails until they end");
        }
    }
}

#[cfg(test)]
mod tests;
