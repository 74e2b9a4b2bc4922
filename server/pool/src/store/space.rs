//! Space on NVMe: which pages leave when there is no room for all, and how what hangs on them goes with them.
//! Owns: marks of the pages that leave first. Must not know: which segment is emptied, and when.
//!
//! A page that is *leaving* is on NVMe alone, and the policy's order says that it goes next. It can be read,
//! and a read makes it stay; the reclaim of its segment drops it. Pages that stay are written again when
//! their segment is reclaimed. For each page that comes to NVMe the coldest pages are marked, so that a part
//! of the tier is always free or about to be, and emptying a segment moves little. Pages that only closed
//! sessions used leave at once.
//!
//! A page that is in DRAM as well may lose its copy on NVMe, unless somebody was *promised* that it is
//! durable: such a page is written again, or goes from both tiers.

use crate::ids::NONE;
use crate::index::arena::Pages;
use crate::index::flags::{COUNTED_DRAM, LEAVING, Line, MOVING, ON_NVME, VICTIM};
use crate::index::list_id::{ListId, Position};
use crate::limits::{LEAVE_PAGES_PER_CALL_MAX, VICTIM_SCAN_MAX};
use crate::store::Store;
use crate::store::going::{Eviction, Removal, Search};

impl Store {
    /// Says how the tier cuts its space, before any page is on it.
    pub(crate) fn shape_nvme(&mut self, kept_percent: u8, segment_bytes: u64, block_bytes: u64) {
        self.nvme.shape(kept_percent, segment_bytes, block_bytes);
    }

    /// The tier can have so many bytes from now on, each hundred of which hold so many bytes of pages, and pages may keep such a
    /// share.
    pub(crate) fn resize_nvme(&mut self, bytes: u64, packing_percent: u64, kept_percent: u8) {
        self.nvme.resize(bytes, packing_percent, kept_percent);
    }

    /// So many bytes more may be written again: segments are given up, and what is hot in them moves.
    pub(crate) fn allow_rewrites(&mut self, bytes: u64) {
        self.nvme.allow_rewrites(bytes);
    }

    /// Whether more is to stay than can, and every page that could leave is in DRAM as well.
    pub(super) fn is_crowded(&mut self) -> bool {
        self.nvme.is_overfull()
            && (self.nvme.is_beside_dram(self.slots.dram_bytes()) || self.coldest(ListId::Nvme).is_none())
    }

    /// More is on NVMe than is to stay: the coldest are to leave it, so many a call.
    pub(super) fn choose_leaving(&mut self, pages_max: u32) {
        let slice = self.call.slice();
        for _ in 0..pages_max {
            if self.call.is_over(slice) || !self.nvme.is_overfull() {
                return;
            }
            let promised_fit = self.nvme.promised_fits();
            if promised_fit && self.nvme.is_beside_dram(self.slots.dram_bytes()) {
                return;
            }
            let victim = match self.coldest(ListId::Nvme) {
                None if !promised_fit => self.coldest_beside(),
                found => found,
            };
            let Some(victim) = victim else { return };
            match self.pages.tail_by(victim, &mut self.call, Pages::staying_child) {
                Some(tail) if self.pages[tail].has(MOVING) => return, // soon it can
                Some(tail) if self.may_leave(tail, Search::NONE) => self.mark_leaving(tail),
                // It is to stay: it must not be found again for each page that comes.
                _ => self.policy.touch(&mut self.pages, victim),
            }
        }
    }

    /// Everything on NVMe is in DRAM too, and more of it was promised than fits: the page that DRAM would
    /// give up next is on NVMe alone from now on, so that it can leave. The namespaces take turns.
    fn coldest_beside(&mut self) -> Option<u32> {
        let namespaces = self.pages.namespaces();
        let ns = self.turns.next(namespaces)?;
        let (victim, eviction) = self.next_victim(ns, VICTIM_SCAN_MAX, Search::NONE)?;
        if eviction != Eviction::Demote {
            return None;
        }
        self.evict(victim, eviction, Search::NONE);
        Some(victim).filter(|victim| self.pages[*victim].line() == Line::Nvme)
    }

    /// A page that was left, and that is on NVMe alone, does not wait until room is needed: it leaves.
    pub(super) fn leave_if_left(&mut self, index: u32, search: Search) {
        if self.pages[index].has(VICTIM) && self.may_leave(index, search) {
            self.mark_leaving(index);
        }
    }

    fn may_leave(&self, index: u32, search: Search) -> bool {
        let alone = self.pages[index].line() == Line::Nvme && self.pages.child_in_dram(index).is_none();
        alone && !self.goes_last(index, search)
    }

    fn mark_leaving(&mut self, index: u32) {
        let (bytes, promised) = (self.extent_bytes(index), self.pages.is_promised(index));
        self.pages.set_leaving(index, true);
        for cell in self.pages.cells(index).iter().filter(|cell| cell.has(ON_NVME)) {
            self.nvme.keep_no_more(cell.place(), bytes, promised);
        }
        self.nvme.note_leaving(&self.pages, index);
        self.refresh(index, Position::Hot);
    }

    /// A page found on NVMe that went before others when the pool was left: it goes first again.
    pub(super) fn leave_again(&mut self, index: u32) {
        if self.may_leave(index, Search::NONE) {
            self.mark_leaving(index);
        }
    }

    /// Somebody uses the page, or it moves: it is among those that stay.
    pub(super) fn stay(&mut self, index: u32) {
        if self.pages[index].has(LEAVING) {
            self.unmark_leaving(index);
            self.refresh(index, Position::Hot);
        }
    }

    /// Takes back the mark alone.
    pub(super) fn unmark_leaving(&mut self, index: u32) {
        if !self.pages[index].has(LEAVING) {
            return;
        }
        let (bytes, promised) = (self.extent_bytes(index), self.pages.is_promised(index));
        self.pages.set_leaving(index, false);
        for cell in self.pages.cells(index).iter().filter(|cell| cell.has(ON_NVME)) {
            self.nvme.keep(cell.place(), bytes, promised);
        }
        self.nvme.note_leaving(&self.pages, index);
    }

    /// Somebody counts on the page to be on NVMe as long as it is here, and on its ancestors, which were
    /// promised before.
    pub(super) fn promise(&mut self, index: u32) {
        if self.pages.is_promised(index) {
            return;
        }
        self.pages.set_promised(index);
        if !self.pages[index].has(LEAVING) {
            let extents = self.pages.cells(index).iter().filter(|cell| cell.has(ON_NVME)).count() as u64;
            self.nvme.promise(extents * self.extent_bytes(index));
        }
    }

    /// The page's copy on NVMe is given up. What is in DRAM stays there, off NVMe with all that hangs on it,
    /// unless it was promised; that, and what is on NVMe alone, is gone, with all that hangs on it. Tails go
    /// before heads, so many a call: false if not all went.
    pub(super) fn leave_nvme(&mut self, top: u32) -> bool {
        let (mut at, mut lost) = (top, NONE);
        let mut passed = 0;
        for _ in 0..LEAVE_PAGES_PER_CALL_MAX {
            self.call.pass(std::mem::take(&mut passed));
            loop {
                passed += 1;
                let in_dram = self.nvme.is_alive() && self.pages[at].has(COUNTED_DRAM);
                if lost == NONE && (!in_dram || self.pages.is_promised(at)) {
                    lost = at; // nothing leads to what hangs on it
                }
                let any = Some(self.pages[at].first_child).filter(|child| *child != NONE);
                match if lost == NONE { self.pages.nvme_child(at) } else { any } {
                    Some(child) => at = child,
                    None => break,
                }
            }
            let parent = self.pages[at].parent;
            if lost == NONE {
                self.stay_off(at);
            } else {
                self.remove_leaf(at, Removal::Evicted, Search::NONE);
                if at == top && parent != NONE {
                    self.prune(parent, Search::NONE);
                }
            }
            if at == top {
                return true;
            }
            lost = if lost == at { NONE } else { lost };
            at = parent;
        }
        false
    }

    /// DRAM has the only copy, until NVMe has room again.
    fn stay_off(&mut self, index: u32) {
        self.note_let_go(index);
        for shard in 0..self.pages.shards(index) {
            self.clear_dirty(index, shard);
            self.clear_place(index, shard);
        }
        self.pages.give_up_nvme(index);
        self.refresh(index, Position::Hot);
    }

    /// DRAM has the only copy of what is here, for good: the device is gone.
    pub(crate) fn stay_without_nvme(&mut self, index: u32) {
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
