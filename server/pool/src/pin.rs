//! Pins: a prefix that many sessions share, protected by name. Owns: the verbs. Must not know: budgets (protection has them).

use crate::Pool;
use crate::entry::NONE;
use crate::error::PoolError;
use crate::ids::{NamespaceIndex, Now, PageKey};
use crate::limits::{FIND_PAGES_AT_ONCE, HASHES_PER_CALL_MAX, PIN_MS_DEFAULT, PROTECTION_MS_MAX};
use crate::protection::{Owner, PIN_RANK, Protecting, Wish};
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

/// A pin that is being made.
pub struct Pinning {
    protecting: Protecting,
    pin: BlockHash,
    for_ms: u64,
    /// Pages of the prefix looked for so far; none: all of them, or one was not here.
    found: Option<usize>,
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
        let mut pinning = self.begin_pin(ns, hashes, for_ms, now)?;
        while !self.pin_some(&mut pinning, hashes) {}
        Ok(self.end_pin(pinning, now))
    }

    /// Begins a pin: then `pin_some` until it says so, then `end_pin`. Other calls may come in between.
    pub fn begin_pin(
        &mut self,
        ns: NamespaceIndex,
        hashes: &[BlockHash],
        for_ms: u64,
        now: Now,
    ) -> Result<Pinning, PoolError> {
        self.desc(ns)?;
        if hashes.len() > HASHES_PER_CALL_MAX {
            return Err(PoolError::Invalid("too many pages in one call: pin a shorter prefix"));
        }
        let Some(pin) = hashes.last().copied() else {
            return Err(PoolError::Invalid("a pin names at least one page"));
        };
        self.tick(now);
        let for_ms = if for_ms == 0 { PIN_MS_DEFAULT } else { for_ms.min(PROTECTION_MS_MAX) };
        let (owner, rank, pages) = (Owner::Pin(ns, pin), PIN_RANK, Vec::new());
        let wish = Wish { owner, ns, rank, pages, for_ms, decays: false };
        Ok(Pinning { protecting: self.begin_protection(wish), pin, for_ms, found: Some(0) })
    }

    /// Finds and protects some more of the pages. True: that is all.
    pub fn pin_some(&mut self, pinning: &mut Pinning, hashes: &[BlockHash]) -> bool {
        let slice = self.slice();
        while let Some(found) = pinning.found {
            if self.is_over(slice) {
                return false;
            }
            let rest = &hashes[found..hashes.len().min(found + FIND_PAGES_AT_ONCE)];
            self.steps += rest.len() as u64;
            let wish = pinning.protecting.wish_mut();
            let parent = wish.pages.last().copied();
            let parent = parent.map_or(Some(NONE), |page| self.pages.resolve(page));
            if let Some(parent) = parent {
                self.follow(wish.ns.0, parent, rest, &mut wish.pages);
            }
            let visible = |page: &PageKey| {
                self.pages.resolve(*page).is_some_and(|index| self.pages[index].has(crate::entry::VISIBLE))
            };
            let hidden = wish.pages[found..].iter().position(|page| !visible(page));
            wish.pages.truncate(hidden.map_or(wish.pages.len(), |hidden| found + hidden));
            let all = wish.pages.len() < found + rest.len() || wish.pages.len() == hashes.len();
            pinning.found = (!all).then_some(wish.pages.len());
        }
        self.protect_some(&mut pinning.protecting, slice)
    }

    /// The pin holds what was protected for it.
    pub fn end_pin(&mut self, pinning: Pinning, now: Now) -> Pinned {
        let Pinning { protecting, pin, for_ms, .. } = pinning;
        let now = self.tick(now);
        let pages = self.end_protection(protecting, now) as u32;
        let slice = self.slice();
        self.let_go_some(slice);
        Pinned { pages, pin, ends_in_ms: if pages == 0 { 0 } else { for_ms } }
    }

    /// Ends a pin, named by its last page. False: there is none.
    pub fn unpin(&mut self, ns: NamespaceIndex, pin: &BlockHash) -> Result<bool, PoolError> {
        self.desc(ns)?;
        let slice = self.slice();
        Ok(self.unprotect_some(Owner::Pin(ns, *pin), slice))
    }
}
