//! Admission to NVMe: which pages are written, and how many bytes a day. Owns: which pages are kept off NVMe.
//! Must not know: the write queue's order, segments.
//!
//! A page that is *off* is in DRAM, clean, and not on its way to NVMe: it is dropped when DRAM needs its
//! slot. What hangs on it is off as well, so that what is on NVMe is always reachable there, and tails go
//! before heads. What is off only because NVMe could not take it in time, or had no room for it later, is
//! found again and written once NVMe can.

use crate::call::Slice;
use crate::ids::NONE;
use crate::index::flags::{COUNTED_NVME, FILLED, ON_NVME};
use crate::index::list_id::Position;
use crate::index::sweep::Sweep;
use crate::store::Store;

impl Store {
    /// Whether the budget allows a page to be written that nobody insists on.
    pub(super) fn budget_allows(&mut self, index: u32) -> bool {
        let bytes = self.pages.page_bytes(&self.slots, index);
        self.nvme.budget_allows(bytes, self.tally.dirty_bytes, self.call.now())
    }

    /// Whether little waits to be written, a page more included.
    fn backlog_allows(&self, index: u32) -> bool {
        self.nvme.backlog_allows(self.pages.page_bytes(&self.slots, index), self.tally.dirty_bytes)
    }

    /// A new page became visible: it goes to NVMe, or stays off it for now. Parents are asked before their
    /// children.
    pub(super) fn admit_new(&mut self, index: u32) {
        if !self.nvme.is_alive() {
            return;
        }
        let parent = self.pages[index].parent;
        let wanted = self.nvme.admits_all() && (parent == NONE || !self.nvme.is_off(&self.pages, parent));
        // A page of several shards that recovery or a lease completed may be there in part.
        let begun = self.pages.cells(index).iter().any(|cell| cell.has(ON_NVME));
        let in_time = self.backlog_allows(index);
        if begun || (wanted && in_time && self.budget_allows(index)) {
            self.queue_write(index);
            return;
        }
        self.pages.move_last(index);
        self.tally.kept_off += 1;
        if wanted && !in_time {
            self.nvme.leave_behind();
        }
    }

    /// NVMe gives up a page that DRAM keeps. It is found again, unless it is one that would not have been
    /// written unasked.
    pub(super) fn note_let_go(&mut self, index: u32) {
        self.tally.let_go += u64::from(self.pages[index].has(COUNTED_NVME));
        self.nvme.note_let_go();
    }

    /// Sends some of what a burst left behind to the write queue, parents first, once what waits there has
    /// become little.
    pub(super) fn catch_up(&mut self) {
        let Some(mut sweep) = self.nvme.begin_catch_up(self.tally.dirty_bytes) else { return };
        let slice = self.call.half_slice();
        let done = self.admit_off(&mut sweep, slice, |store, index| {
            // Where NVMe is small, what it has alone is worth more than copies of what DRAM has.
            let worth = store.nvme.is_large(store.slots.dram_bytes())
                || store.nvme.has_room_again(store.tally.dirty_bytes);
            let allowed = worth && store.backlog_allows(index) && store.budget_allows(index);
            if allowed {
                store.insist(index);
            }
            allowed
        });
        self.nvme.end_catch_up(sweep, done);
    }

    /// Somebody uses the page again, or its session will: it is worth a write.
    pub(crate) fn admit(&mut self, index: u32) {
        let parent = self.pages[index].parent;
        let reachable = parent == NONE || !self.nvme.is_off(&self.pages, parent);
        if self.nvme.is_off(&self.pages, index)
            && reachable
            && self.backlog_allows(index)
            && self.budget_allows(index)
        {
            self.queue_write(index);
            self.refresh(index, Position::Hot);
        }
    }

    /// The page must be on NVMe whatever that costs. Its parent is on its way already.
    pub(crate) fn insist(&mut self, index: u32) {
        if self.nvme.is_off(&self.pages, index) {
            self.queue_write(index);
            self.refresh(index, Position::Hot);
        }
    }

    /// Every shard that is not on NVMe goes to the write queue.
    fn queue_write(&mut self, index: u32) {
        for shard in 0..self.pages.shards(index) {
            let cell = self.pages.cell(index, shard);
            if cell.has(FILLED) && !cell.has(ON_NVME) {
                self.set_dirty(index, shard);
            }
        }
    }

    /// Goes through what is off NVMe, parents first, and lets `admit` send each page there. True: that is
    /// all. It ends before, to go on there later, with its slice or when `admit` says that no more goes.
    pub(crate) fn admit_off(
        &mut self,
        sweep: &mut Sweep,
        slice: Slice,
        admit: impl Fn(&mut Store, u32) -> bool,
    ) -> bool {
        while sweep.at < self.pages.end() || !sweep.waiting.is_empty() {
            let next = sweep.waiting.pop();
            let index = match next {
                Some(page) => self.pages.resolve(page),
                None => Some(sweep.at).filter(|index| self.pages.is_live(*index)),
            };
            // A page whose parent is off comes after it: the walk finds the parent, and goes down from there.
            let reachable = |store: &Store, index: u32| {
                let parent = store.pages[index].parent;
                parent == NONE || !store.nvme.is_off(&store.pages, parent)
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
                    child = self.pages.next_sibling(child);
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
}
