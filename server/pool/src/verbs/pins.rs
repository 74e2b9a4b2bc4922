//! Pins: a prefix that many sessions share, protected by name. Owns: the verbs. Must not know: budgets
//! (protection has them).

use crate::Pool;
use crate::error::PoolError;
use crate::eviction::protections::{Owner, PIN_RANK};
use crate::ids::{NamespaceIndex, Now};
use crate::index::path_end::PathEnd;
use crate::index::tips::TipId;
use crate::limits::{FIND_PAGES_AT_ONCE, HASHES_PER_CALL_MAX, PIN_MS_DEFAULT, PROTECTION_MS_MAX};
use crate::store::protection::{ProtectReach, ProtectionWish};
use crate::verbs::record::ListStart;
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
    wish: ProtectionWish,
    pin: BlockHash,
    /// What is protected of it so far.
    held: Option<TipId>,
    /// Pages of the prefix that are known to be here.
    found: usize,
    /// Of one that comes back: pages on its way that are not protected yet, the first last.
    ways: Vec<ListStart>,
}

impl Pool {
    /// Protects a prefix: the pages named (the first is a root), for a time (0: the default). Pinning it
    /// again renews it.
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
        self.namespaces.desc(ns)?;
        if hashes.len() > HASHES_PER_CALL_MAX {
            return Err(PoolError::Invalid("too many pages in one call: pin a shorter prefix"));
        }
        let Some(pin) = hashes.last().copied() else {
            return Err(PoolError::Invalid("a pin names at least one page"));
        };
        Ok(self.new_pinning(ns, pin, for_ms, now))
    }

    /// Begins to bring a pin back, by its name, whose list is here as far as `start` says: then `pin_again`
    /// until it says so, then `end_pin`.
    pub fn begin_pin_again(
        &mut self,
        ns: NamespaceIndex,
        pin: BlockHash,
        start: ListStart,
        for_ms: u64,
        now: Now,
    ) -> Result<Pinning, PoolError> {
        self.namespaces.desc(ns)?;
        let mut pinning = self.new_pinning(ns, pin, for_ms, now);
        self.store.call.begin();
        pinning.ways = self.ways_to(ns, start);
        Ok(pinning)
    }

    /// Some pages on the way to one, itself first: a path is gone over once, and protected in short pieces
    /// after.
    fn ways_to(&mut self, ns: NamespaceIndex, start: ListStart) -> Vec<ListStart> {
        let Some(page) = self.find_page(ns, &start.page()) else { return Vec::new() };
        let path = self.store.pages().upward(page).zip((1..=start.pages).rev());
        let is_way = |pages: u32| pages == start.pages || pages.is_multiple_of(FIND_PAGES_AT_ONCE as u32);
        let ways = path.filter(|(_, pages)| is_way(*pages));
        let ways = ways.map(|(index, pages)| ListStart::new(self.store.pages()[index].hash, pages)).collect();
        self.store.call.pass(start.pages.into());
        ways
    }

    fn new_pinning(&mut self, ns: NamespaceIndex, pin: BlockHash, for_ms: u64, now: Now) -> Pinning {
        self.store.tick(now);
        let for_ms = if for_ms == 0 { PIN_MS_DEFAULT } else { for_ms.min(PROTECTION_MS_MAX) };
        let (owner, rank, path) = (Owner::Pin(ns, pin), PIN_RANK, PathEnd::EMPTY);
        let wish = ProtectionWish { owner, ns, rank, path, for_ms, decays: false };
        Pinning { wish, pin, held: None, found: 0, ways: Vec::new() }
    }

    /// Protects some more of a pin that comes back. True: that is all.
    pub fn pin_again(&mut self, pinning: &mut Pinning) -> bool {
        self.store.call.begin();
        let slice = self.store.call.slice();
        while let Some(way) = pinning.ways.last().copied() {
            let Some(page) = self.find_page(pinning.wish.ns, &way.page()) else {
                return true; // it went meanwhile, perhaps with its namespace
            };
            pinning.wish.path = PathEnd { page, pages: way.pages };
            let (held, reach) = self.store.protect_more(pinning.held, &pinning.wish, slice);
            pinning.held = held;
            match reach {
                ProtectReach::All => drop(pinning.ways.pop()),
                ProtectReach::Budget => return true,
                ProtectReach::Slice => return false,
            }
        }
        true
    }

    /// Protects some more of the pages. True: that is all.
    pub fn pin_some(&mut self, pinning: &mut Pinning, hashes: &[BlockHash]) -> bool {
        self.store.call.begin();
        let slice = self.store.call.slice();
        if self.namespaces.get(pinning.wish.ns).is_none() {
            return true; // it retired meanwhile
        }
        while !self.store.call.is_over(slice) {
            let from = pinning.held.map_or(PathEnd::EMPTY, |held| self.store.pages().tip_end(held));
            if (from.pages as usize) < pinning.found {
                return true; // its last pages went away meanwhile
            }
            let rest = &hashes[pinning.found..hashes.len().min(pinning.found + FIND_PAGES_AT_ONCE)];
            self.store.call.add(rest.len() as u64);
            pinning.wish.path =
                self.store.pages().visible_end(self.store.pages().follow(pinning.wish.ns.0, from, rest));
            let wanted = pinning.wish.path.pages as usize;
            let (held, reach) = self.store.protect_more(pinning.held, &pinning.wish, slice);
            pinning.held = held;
            pinning.found = held.map_or(0, |held| self.store.pages().tip_end(held).pages as usize);
            let ended = wanted < from.pages as usize + rest.len() || wanted == hashes.len();
            if reach == ProtectReach::Budget || (reach == ProtectReach::All && ended) {
                return true;
            }
        }
        false
    }

    /// How much longer a pin holds; none: there is none.
    pub fn pin_ends_in(&self, ns: NamespaceIndex, pin: &BlockHash, now: Now) -> Option<u64> {
        let ends = self.store.protections().ends_of(Owner::Pin(ns, *pin))?;
        Some(ends.saturating_sub(self.store.call.now().max(now)))
    }

    /// The pin holds what was protected for it. Where that is nothing, a pin of this name stays as it was.
    pub fn end_pin(&mut self, pinning: Pinning, now: Now) -> Pinned {
        let now = self.store.tick(now);
        let is_open = self.namespaces.get(pinning.wish.ns).is_some();
        // What was protected for it may all have gone meanwhile.
        let held = pinning.held.filter(|held| is_open && self.store.pages().tip_end(*held) != PathEnd::EMPTY);
        if held.is_none() {
            self.store.disown_protected(pinning.held);
            return Pinned { pages: 0, pin: pinning.pin, ends_in_ms: 0 };
        }
        let pages = self.store.own_protected(held, &pinning.wish, now);
        let ends_in_ms = if pages == 0 { 0 } else { pinning.wish.for_ms };
        Pinned { pages, pin: pinning.pin, ends_in_ms }
    }

    /// Ends a pin, named by its last page. False: there is none.
    pub fn unpin(&mut self, ns: NamespaceIndex, pin: &BlockHash) -> Result<bool, PoolError> {
        self.namespaces.desc(ns)?;
        self.store.call.begin();
        Ok(self.store.unprotect(Owner::Pin(ns, *pin)))
    }

    /// Pins that ended by time since the last call: what was saved of them can go.
    pub fn take_ended_pins(&mut self) -> Vec<(NamespaceIndex, BlockHash)> {
        self.store.take_ended_pins()
    }
}
