//! Pins: a prefix that many sessions share, protected by name. Owns: the verbs. Must not know: budgets (protection has them).

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now};
use crate::limits::{HASHES_PER_CALL_MAX, PIN_MS_DEFAULT, PROTECTION_MS_MAX};
use crate::protection::{Owner, PIN_RANK, Wish};
use crate::tips::End;
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
        let path = self.visible_end(self.follow(ns.0, End::EMPTY, hashes));
        let wish = Wish { owner: Owner::Pin(ns, last), ns, rank: PIN_RANK, path, for_ms, decays: false };
        let pages = self.protect(wish, now);
        Ok(Pinned { pages, pin: last, ends_in_ms: if pages == 0 { 0 } else { for_ms } })
    }

    /// Ends a pin, named by its last page. False: there is none.
    pub fn unpin(&mut self, ns: NamespaceIndex, pin: &BlockHash) -> Result<bool, PoolError> {
        self.desc(ns)?;
        Ok(self.unprotect(Owner::Pin(ns, *pin)))
    }
}
