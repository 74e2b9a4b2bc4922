//! Deferred victims: pages that could go, but go last because they are protected or their session returns
//! soon. Owns: when a page is deferred, taking them when nothing else is left, bringing them back. Must not
//! know: who needs the room.
//!
//! A deferred page is out of its list, so that no search meets it twice. It comes back when it is used, when
//! the reason to defer it ends (`review_deferred` looks at a few pages a call), or by being evicted: deferral
//! is no lock.

use crate::ids::PageKey;
use crate::index::flags::PROTECTED;
use crate::limits::{DEFERRED_REVIEWED_PER_CALL, DEFERRED_VICTIMS_MAX, VICTIM_SCAN_MAX};
use crate::store::Store;
use crate::store::going::{Eviction, Search};
use std::collections::VecDeque;

impl Store {
    /// Whether a page goes only when nothing else can, or (while room is made for a prefetch) not at all.
    pub(super) fn goes_last(&self, index: u32, search: Search) -> bool {
        self.pages[index].has(PROTECTED)
            || self.returns_soon(index)
            || self.returns_before(index, search.returns_at)
    }

    /// Takes a page that could go out of the way of this search and the next ones. False: too many are
    /// already.
    pub(super) fn defer(&mut self, index: u32) -> bool {
        let (ns, key) = (self.pages[index].ns, self.pages.key(index));
        if self.deferred.len(ns) >= DEFERRED_VICTIMS_MAX {
            return false;
        }
        self.park(index);
        self.pages.defer(index);
        self.deferred.row(ns).push_back(key);
        true
    }

    /// The page that was deferred first, or one that hangs on it: nothing else can go.
    pub(super) fn next_deferred(&mut self, ns: u16, search: Search) -> Option<(u32, Eviction)> {
        let until = self.call.steps() + u64::from(VICTIM_SCAN_MAX);
        while self.call.steps() < until {
            self.call.step();
            let key = self.deferred.row(ns).pop_front()?;
            let Some(index) = self.pages.deferred(key) else { continue };
            let tail = self.pages.tail_in_dram(index, &mut self.call).unwrap_or(index);
            if let (Some(eviction), true) = (self.evictable(tail, search), tail != index) {
                self.deferred.row(ns).push_front(key);
                return Some((tail, eviction));
            }
            self.pages.end_deferral(index);
            match self.evictable(index, search) {
                Some(eviction) => return Some((index, eviction)),
                None => self.unpark_during(search, index),
            }
        }
        None
    }

    /// Brings back what was deferred after the first `keep`: a prefetch deferred it for its own search only.
    pub(super) fn end_prefetch_search(&mut self, ns: u16, keep: usize, search: Search) {
        let search = Search { returns_at: None, ..search };
        let mut still = VecDeque::new();
        while self.deferred.len(ns) > keep {
            let Some(key) = self.deferred.row(ns).pop_back() else { break };
            if self.stays_deferred(key, search) {
                still.push_front(key);
            }
        }
        self.deferred.row(ns).append(&mut still);
    }

    /// Brings back pages of a namespace that need not be deferred any more, looking at some of them.
    pub(super) fn review_deferred(&mut self, ns: u16) {
        for _ in 0..self.deferred.len(ns).min(DEFERRED_REVIEWED_PER_CALL) {
            let Some(key) = self.deferred.row(ns).pop_front() else { break };
            self.call.step();
            if self.stays_deferred(key, Search::NONE) {
                self.deferred.row(ns).push_back(key);
            }
        }
    }

    /// Whether a page stays deferred; one that does not is among the first to go.
    fn stays_deferred(&mut self, key: PageKey, search: Search) -> bool {
        let Some(index) = self.pages.deferred(key) else { return false };
        if self.goes_last(index, search)
            || self.pages.tail_in_dram(index, &mut self.call).is_some_and(|tail| self.goes_last(tail, search))
        {
            return true;
        }
        if self.pages.end_deferral(index) {
            self.unpark_during(search, index);
        }
        false
    }

    /// A page that was deferred is among the first to go: the reason to defer it ended.
    pub(super) fn end_deferral(&mut self, index: u32) {
        if self.pages.end_deferral(index) {
            self.unpark(index);
        }
    }
}
