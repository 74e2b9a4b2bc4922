//! Walks through the whole index, slice by slice: what an operator, a drain, or the loss of the device asks
//! of every page. Owns: the walks. Must not know: who asks.
//!
//! Pages come and go between two slices. A walk goes by the place of an entry, so a page that comes meanwhile
//! may be passed, and none is seen twice.

use crate::Pool;
use crate::ids::{NamespaceIndex, Now};
use crate::index::flags::{FILLED, PROMOTING};
use crate::index::list_id::ListId;
use crate::index::sweep::Sweep;
use crate::store::going::{Eviction, Removal, Search};

impl Pool {
    /// Drops every page of a namespace, or of all, that readers can see. Returns how many.
    pub fn evict_namespace(&mut self, ns: Option<NamespaceIndex>) -> u64 {
        let mut sweep = Sweep::default();
        while !self.evict_some(ns, &mut sweep) {}
        sweep.pages
    }

    /// Drops some more pages of a namespace, or of all. True: that is all.
    pub fn evict_some(&mut self, ns: Option<NamespaceIndex>, sweep: &mut Sweep) -> bool {
        self.store.call.begin();
        if ns.is_some_and(|ns| self.namespaces.desc(ns).is_err()) {
            return true;
        }
        let (before, slice) = (self.store.tally().visible, self.store.call.slice());
        let done = loop {
            if sweep.at >= self.store.pages().end() {
                break true;
            }
            let wanted = self.store.pages().is_live(sweep.at)
                && ns.is_none_or(|ns| ns.0 == self.store.pages()[sweep.at].ns);
            if wanted {
                let mut walk = sweep.walk.take();
                self.store.call.note_freed();
                if !self.store.remove_some(
                    self.store.pages().key(sweep.at),
                    &mut walk,
                    Removal::Dropped,
                    slice,
                    Search::NONE,
                ) {
                    sweep.walk = walk;
                    break false;
                }
            }
            if !sweep.go_on(&mut self.store.call, slice) {
                break false;
            }
        };
        sweep.pages += before - self.store.tally().visible;
        done
    }

    /// Demotes every page that is on NVMe and not in use. Returns how many.
    pub fn demote_all(&mut self, ns: Option<NamespaceIndex>) -> u64 {
        let mut sweep = Sweep::default();
        while !self.demote_some(ns, &mut sweep) {}
        sweep.pages
    }

    /// Demotes some more pages of a namespace, or of all, that are on NVMe and not in use. True: that is all.
    pub fn demote_some(&mut self, ns: Option<NamespaceIndex>, sweep: &mut Sweep) -> bool {
        self.store.call.begin();
        if ns.is_some_and(|ns| self.namespaces.desc(ns).is_err()) {
            return true;
        }
        let (before, slice) = (self.store.tally().demoted, self.store.call.slice());
        let done = loop {
            if sweep.at >= self.store.pages().end() {
                break true;
            }
            let index = sweep.at;
            let listed = matches!(self.store.pages()[index].list(), Some(ListId::Dram(_)));
            let wanted = listed && ns.is_none_or(|ns| ns.0 == self.store.pages()[index].ns);
            if wanted && self.store.evictable(index, Search::NONE) == Some(Eviction::Demote) {
                self.store.evict(index, Eviction::Demote, Search::NONE);
                self.store.call.note_freed();
            }
            if !sweep.go_on(&mut self.store.call, slice) {
                break false;
            }
        };
        sweep.pages += self.store.tally().demoted - before;
        done
    }

    /// Everything that is off NVMe is written, parents first: the pool is about to stop. Returns how many
    /// pages.
    pub fn admit_all(&mut self, now: Now) -> u64 {
        let mut sweep = Sweep::default();
        while !self.admit_some(&mut sweep, now) {}
        sweep.pages
    }

    /// Writes some more of what is off NVMe, parents first. True: that is all.
    pub fn admit_some(&mut self, sweep: &mut Sweep, now: Now) -> bool {
        self.store.tick(now);
        let slice = self.store.call.slice();
        self.store.admit_off(sweep, slice, |pool, index| {
            pool.insist(index);
            true
        })
    }

    /// The device is gone: nothing goes there any more. What was there is to be swept with `lose_some`.
    #[must_use]
    pub fn nvme_lost(&mut self) -> Sweep {
        self.store.lose_nvme();
        Sweep::default()
    }

    /// Of some more pages, what was on the lost device is forgotten: pages in DRAM live on without it; pages
    /// that were only there are dropped, with all that hangs on them. True: that is all.
    pub fn lose_some(&mut self, sweep: &mut Sweep) -> bool {
        self.store.call.begin();
        let slice = self.store.call.slice();
        while sweep.at < self.store.pages().end() {
            let index = sweep.at;
            if self.store.pages().is_live(index) {
                // A read in flight may still land; where it fails, the page goes then.
                let here = self.store.pages().cells(index).iter().all(|cell| cell.has(FILLED | PROMOTING));
                if here || !self.store.pages()[index].is_visible() {
                    self.store.stay_without_nvme(index);
                } else {
                    let mut walk = sweep.walk.take();
                    if !self.store.remove_some(
                        self.store.pages().key(index),
                        &mut walk,
                        Removal::Dropped,
                        slice,
                        Search::NONE,
                    ) {
                        sweep.walk = walk;
                        return false;
                    }
                }
            }
            if !sweep.go_on(&mut self.store.call, slice) {
                return false;
            }
        }
        true
    }
}
