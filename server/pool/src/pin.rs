//! Pins: a prefix that many sessions share, protected by name. Owns: the verbs. Must not know: budgets (protection has them).

use crate::Pool;
use crate::entry::NONE;
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now, PageKey};
use crate::limits::{HASHES_PER_CALL_MAX, PIN_MS_DEFAULT, PROTECTION_MS_MAX};
use crate::protection::{Owner, PIN_RANK, Wish};
use turnkv_proto::BlockHash;

/// What became of a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pinned {
    /// Leading pages protected: fewer than asked where they are not here, or the tenant's budget ends.
    pub pages: u32,
    /// The page that names the pin: the last one asked.
    pub pin: BlockHash,
    /// When it ends by itself, unless it is renewed.
    pub ends_in_ms: u64,
}

impl Pool {
    /// Protects a prefix: the pages named (the first is a root), for a time (0: the default). Pinning it again renews it.
    pub fn pin(
        &mut self,
        ns: NamespaceIndex,
        hashes: &[BlockHash],
        for_ms: u64,
        now: Now,
    ) -> Result<Pinned, PoolError> {
        self.desc(ns)?;
        if hashes.len() > HASHES_PER_CALL_MAX {
            return Err(PoolError::Invalid("too many pages in one call: pin a shorter prefix"));
        }
        let Some(last) = hashes.last().copied() else {
            return Err(PoolError::Invalid("a pin names at least one page"));
        };
        let now = self.tick(now);
        let for_ms = if for_ms == 0 { PIN_MS_DEFAULT } else { for_ms.min(PROTECTION_MS_MAX) };
        let mut pages: Vec<PageKey> = Vec::new();
        self.follow(ns.0, NONE, hashes, &mut pages);
        let visible = |page: &PageKey| self.pages[page.index].has(crate::entry::VISIBLE);
        pages.truncate(pages.partition_point(visible));
        let wish = Wish { owner: Owner::Pin(ns, last), ns, rank: PIN_RANK, pages, for_ms, decays: false };
        let pages = self.protect(wish, now) as u32;
        Ok(Pinned { pages, pin: last, ends_in_ms: if pages == 0 { 0 } else { for_ms } })
    }

    /// Ends a pin, named by its last page. False: there is none.
    pub fn unpin(&mut self, ns: NamespaceIndex, pin: &BlockHash) -> Result<bool, PoolError> {
        self.desc(ns)?;
        Ok(self.unprotect(Owner::Pin(ns, *pin)))
    }
}
