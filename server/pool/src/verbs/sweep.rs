//! Walks through the whole index, slice by slice: what an operator, a drain, or the loss of the device asks
//! of every page. Owns: the walks. Must not know: who asks.
//!
//! Pages come and go between two slices. A walk goes by the place of an entry, so a page that comes meanwhile
//! may be passed, and none is seen twice.

use crate::Pool;
use crate::call::Slice;
use crate::ids::{NONE, NamespaceIndex, Now};
use crate::index::flags::{FILLED, PROMOTING};
use crate::index::list_id::{ListId, Position};
use crate::index::residency::{Eviction, Removal, Search};
use crate::index::sweep::Sweep;

impl Pool {
    /// Drops every page of a namespace, or of all, that readers can see. Returns how many.
    pub fn evict_namespace(&mut self, ns: Option<NamespaceIndex>) -> u64 {
        let mut sweep = Sweep::default();
        while !self.evict_some(ns, &mut sweep) {}
        sweep.pages
    }

    /// Drops some more pages of a namespace, or of all. True: that is all.
    pub fn evict_some(&mut self, ns: Option<NamespaceIndex>, sweep: &mut Sweep) -> bool {
        self.call.begin();
        if ns.is_some_and(|ns| self.namespaces.desc(ns).is_err()) {
            return true;
        }
        let (before, slice) = (self.tally.visible, self.call.slice());
        let done = loop {
            if sweep.at >= self.pages.end() {
                break true;
            }
            let wanted = self.pages.is_live(sweep.at) && ns.is_none_or(|ns| ns.0 == self.pages[sweep.at].ns);
            if wanted {
                let mut walk = sweep.walk.take();
                self.call.note_freed();
                if !self.remove_some(
                    self.pages.key(sweep.at),
                    &mut walk,
                    Removal::Dropped,
                    slice,
                    Search::NONE,
                ) {
                    sweep.walk = walk;
                    break false;
                }
            }
            if !sweep.go_on(&mut self.call, slice) {
                break false;
            }
        };
        sweep.pages += before - self.tally.visible;
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
        self.call.begin();
        if ns.is_some_and(|ns| self.namespaces.desc(ns).is_err()) {
            return true;
        }
        let (before, slice) = (self.tally.demoted, self.call.slice());
        let done = loop {
            if sweep.at >= self.pages.end() {
                break true;
            }
            let index = sweep.at;
            let listed = matches!(self.pages[index].list(), Some(ListId::Dram(_)));
            let wanted = listed && ns.is_none_or(|ns| ns.0 == self.pages[index].ns);
            if wanted && self.evictable(index, Search::NONE) == Some(Eviction::Demote) {
                self.evict(index, Eviction::Demote, Search::NONE);
                self.call.note_freed();
            }
            if !sweep.go_on(&mut self.call, slice) {
                break false;
            }
        };
        sweep.pages += self.tally.demoted - before;
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
        self.tick(now);
        let slice = self.call.slice();
        self.admit_off(sweep, slice, |pool, index| {
            pool.insist(index);
            true
        })
    }

    /// Goes through what is off NVMe, parents first, and lets `admit` send each page there. True: that is
    /// all. It ends before, to go on there later, with its slice or when `admit` says that no more goes.
    pub(crate) fn admit_off(
        &mut self,
        sweep: &mut Sweep,
        slice: Slice,
        admit: impl Fn(&mut Pool, u32) -> bool,
    ) -> bool {
        while sweep.at < self.pages.end() || !sweep.waiting.is_empty() {
            let next = sweep.waiting.pop();
            let index = match next {
                Some(page) => self.pages.resolve(page),
                None => Some(sweep.at).filter(|index| self.pages.is_live(*index)),
            };
            // A page whose parent is off comes after it: the walk finds the parent, and goes down from there.
            let reachable = |pool: &Pool, index: u32| {
                let parent = pool.pages[index].parent;
                parent == NONE || !pool.nvme.is_off(&pool.pages, parent)
            };
            if let Some(index) =
                index.filter(|index| self.nvme.is_off(&self.pages, *index) && reachable(self, *index))
            {
                if !admit(self, index) {
                    sweep.waiting.extend(next);
                    return false;
                }
                sweep.pages += 1;
                let mut child = self.pages[index].first_child;
                while child != NONE {
                    self.call.step();
                    sweep.waiting.extend(self.nvme.is_off(&self.pages, child).then(|| self.pages.key(child)));
                    child = self.pages[child].next;
                }
            }
            match next {
                Some(_) if self.call.is_over(slice) => return false,
                Some(_) => {}
                None if !sweep.go_on(&mut self.call, slice) => return false,
                None => {}
            }
        }
        true
    }

    /// The device is gone: nothing goes there any more. What was there is to be swept with `lose_some`.
    #[must_use]
    pub fn nvme_lost(&mut self) -> Sweep {
        self.nvme.lose();
        Sweep::default()
    }

    /// Of some more pages, what was on the lost device is forgotten: pages in DRAM live on without it; pages
    /// that were only there are dropped, with all that hangs on them. True: that is all.
    pub fn lose_some(&mut self, sweep: &mut Sweep) -> bool {
        self.call.begin();
        let slice = self.call.slice();
        while sweep.at < self.pages.end() {
            let index = sweep.at;
            if self.pages.is_live(index) {
                // A read in flight may still land; where it fails, the page goes then.
                let here = self.pages.cells(index).iter().all(|cell| cell.has(FILLED | PROMOTING));
                if here || !self.pages[index].is_visible() {
                    self.stay_without_nvme(index);
                } else {
                    let mut walk = sweep.walk.take();
                    if !self.remove_some(
                        self.pages.key(index),
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
            if !sweep.go_on(&mut self.call, slice) {
                return false;
            }
        }
        true
    }

    fn stay_without_nvme(&mut self, index: u32) {
        self.unmark_leaving(index);
        for shard in 0..self.pages.shards(index) {
            self.clear_dirty(index, shard);
            self.clear_place(index, shard);
        }
        self.pages.give_up_writes(index);
        self.pages.give_up_nvme(index);
        self.refresh(index, Position::Hot);
    }
}
