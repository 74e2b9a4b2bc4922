//! Where a page's shards are, and what follows from it: lists, gauges, visibility, removal.
//! Owns: what follows from every change of the state of cells and pages (the index's `transitions` change it).
//! Must not know: leases, sessions, verbs.

use crate::ids::{NONE, NvmePlace, PlaceNote};
use crate::index::entry::Cell;
use crate::index::flags::{
    COUNTED_DRAM, COUNTED_NVME, CellFlags, DIRTY, FILLED, LEAVING, Line, MOVING, ON_NVME, PROMOTING,
    UNFINISHED, VICTIM, WRITING,
};
use crate::index::list_id::Position;
use crate::limits::TOUCH_ANCESTORS_MAX;
use crate::memory::slots::SlotState;
use crate::store::Store;
use crate::store::going::{Eviction, Removal, Search};
use crate::store::presence::PageTier;

impl Store {
    /// Whether the page may give up its slots now, and what that means for it.
    pub(crate) fn evictable(&self, index: u32, search: Search) -> Option<Eviction> {
        let entry = &self.pages[index];
        let cells = self.pages.cells(index);
        // What was read back to be written elsewhere is here until it is: to evict it would be to read it
        // again.
        let kept = |cell: &Cell| entry.has(MOVING) || cell.has(DIRTY | WRITING | PROMOTING);
        let busy = |cell: &Cell| cell.slot != NONE && (kept(cell) || self.slots.is_held(cell.slot));
        if entry.is_gone() || index == search.page || cells.iter().any(busy) {
            return None;
        }
        if !self.is_last_copy(index) {
            return Some(Eviction::Demote);
        }
        entry.is_leaf().then_some(Eviction::Drop)
    }

    /// Whether the page is gone without its slots: NVMe has not all of it.
    pub(super) fn is_last_copy(&self, index: u32) -> bool {
        let is_there = self.nvme.is_alive() && self.pages[index].is_visible();
        !(is_there && self.pages.cells(index).iter().all(|cell| cell.has(ON_NVME)))
    }

    /// Carries out what `evictable` allowed.
    pub(crate) fn evict(&mut self, index: u32, eviction: Eviction, search: Search) {
        match eviction {
            Eviction::Drop => self.remove_tail(index, Removal::Evicted, search),
            Eviction::Demote => {
                for shard in 0..self.pages.shards(index) {
                    self.let_go(index, shard);
                }
                self.tally.demoted += 1;
                self.refresh(index, Position::Hot);
                self.leave_if_left(index, search);
            }
        }
    }

    /// The cell gives up its slot; what it held of the page's bytes there is gone.
    pub(super) fn let_go(&mut self, index: u32, shard: u16) {
        let (slot, dirty) = self.pages.let_go(index, shard);
        self.tally.dirty_bytes -= if dirty { self.shard_bytes(index) } else { 0 };
        if slot != NONE {
            self.slots.disown(slot);
        }
    }

    /// The shard is on NVMe at a place; an earlier place of it is dead.
    pub(super) fn set_place(&mut self, index: u32, shard: u16, place: NvmePlace) {
        let before = self.pages.is_bound_for_nvme(index);
        self.forget_place(index, shard, PlaceNote::Moved);
        self.pages.set_place(index, shard, place);
        self.tally.nvme_bytes += self.shard_bytes(index);
        if !self.pages[index].has(LEAVING) {
            self.nvme.keep(place, self.extent_bytes(index), self.pages.is_promised(index));
        }
        if self.pages[index].has(LEAVING | VICTIM) {
            self.nvme.note(place, PlaceNote::Leaving(true));
        }
        if !before {
            self.pages.move_first(index);
        }
    }

    /// The shard is not on NVMe any more; its place is dead.
    pub(super) fn clear_place(&mut self, index: u32, shard: u16) {
        if self.forget_place(index, shard, PlaceNote::Dead) {
            self.pages.sink(index);
        }
    }

    fn forget_place(&mut self, index: u32, shard: u16, note: impl FnOnce(u64) -> PlaceNote) -> bool {
        let Some(place) = self.pages.clear_place(index, shard) else { return false };
        let bytes = self.shard_bytes(index);
        self.tally.nvme_bytes -= bytes;
        if !self.pages[index].has(LEAVING) {
            self.nvme.keep_no_more(place, self.extent_bytes(index), self.pages.is_promised(index));
        }
        if self.nvme.is_alive() {
            self.nvme.note(place, note(bytes));
        }
        true
    }

    /// The slot's bytes must reach NVMe before the slot may be given up.
    pub(super) fn set_dirty(&mut self, index: u32, shard: u16) {
        if self.pages.set_dirty(index, shard) {
            self.tally.dirty_bytes += self.shard_bytes(index);
        }
        self.nvme.queue(&mut self.pages, index);
    }

    pub(super) fn clear_dirty(&mut self, index: u32, shard: u16) {
        if self.pages.clear_dirty(index, shard) {
            self.tally.dirty_bytes -= self.shard_bytes(index);
        }
    }

    /// Bytes of one shard of a page.
    pub(super) fn shard_bytes(&self, index: u32) -> u64 {
        self.slots.shard_bytes_of(self.pages[index].ns)
    }

    /// Bytes of NVMe that one shard of a page takes.
    pub(super) fn extent_bytes(&self, index: u32) -> u64 {
        self.nvme.extent_bytes(self.shard_bytes(index))
    }

    /// Puts a page into the list and the gauges that its cells call for.
    pub(super) fn refresh(&mut self, index: u32, at: Position) {
        self.refresh_during(Search::NONE, index, at);
    }

    /// The same while room is made for a page: that one stays parked.
    fn refresh_during(&mut self, search: Search, index: u32, at: Position) {
        self.call.step();
        if self.pages[index].has(LEAVING) && self.pages.cells(index).iter().any(|cell| cell.slot != NONE) {
            self.unmark_leaving(index);
        }
        let entry = &self.pages[index];
        let cells = self.pages.cells(index);
        let visible = entry.is_visible();
        let in_slots = cells.iter().any(|cell| cell.slot != NONE);
        let line = entry.line();
        let busy = cells.iter().any(|cell| cell.has(DIRTY | WRITING));
        let readable = cells.iter().any(|cell| cell.has(FILLED | PROMOTING));
        let all_dram = visible && cells.iter().all(|cell| cell.has(FILLED));
        let all_nvme = visible && cells.iter().all(|cell| cell.has(ON_NVME));
        let parked = entry.is_parked()
            && (self.evictable(index, search).is_none() || line == Line::Deferred && in_slots);
        let line = match line {
            line if parked => line,
            _ if entry.is_gone() || entry.has(LEAVING) => Line::Out,
            Line::Nvme if entry.has(MOVING) => Line::Nvme,
            Line::Dram if entry.has(MOVING) && in_slots => Line::Dram,
            _ if in_slots && !busy && readable => Line::Dram,
            _ if !in_slots && visible => Line::Nvme,
            _ => Line::Out,
        };
        let at = if entry.has(VICTIM) { Position::Cold } else { at };
        self.relist(index, line, at);
        if self.pages.set_counted(index, COUNTED_DRAM, all_dram) {
            count(&mut self.tally.dram_pages, all_dram);
            self.note_presence(index, PageTier::Dram, all_dram);
        }
        if self.pages.set_counted(index, COUNTED_NVME, all_nvme) {
            count(&mut self.tally.nvme_pages, all_nvme);
            self.note_presence(index, PageTier::Nvme, all_nvme);
        }
    }

    /// Moves a page to a line, unless it stands there already.
    fn relist(&mut self, index: u32, line: Line, at: Position) {
        if self.pages[index].line() == line {
            return;
        }
        if let Some(old) = self.pages[index].list() {
            self.policy.remove(&mut self.pages, old, index);
        }
        self.pages.stand_in(index, line);
        if let Some(new) = self.pages[index].list() {
            let at = match at {
                Position::ColderThan(other) if other == NONE || self.pages[other].list() != Some(new) => {
                    Position::Hot
                }
                at => at,
            };
            self.policy.insert(&mut self.pages, new, index, at);
        }
    }

    /// Takes a page out of its list that cannot go now.
    pub(super) fn park(&mut self, index: u32) {
        self.call.step();
        if let Some(list) = self.pages[index].list() {
            self.policy.remove(&mut self.pages, list, index);
            self.pages.stand_in(index, Line::Parked);
        }
    }

    /// Something that kept a page here ended: if it can go now, it is among the first.
    pub(super) fn unpark(&mut self, index: u32) {
        self.unpark_during(Search::NONE, index);
    }

    /// The same while room is made for a page: that one stays parked.
    pub(super) fn unpark_during(&mut self, search: Search, index: u32) {
        if self.pages[index].is_parked() {
            self.refresh_during(search, index, Position::Cold);
        }
    }

    /// A page out of its list is used: it goes back, or the list would not know that it is recent.
    pub(super) fn relist_parked(&mut self, index: u32) {
        if self.pages[index].is_parked() {
            self.pages.stand_in(index, Line::Out);
            self.refresh(index, Position::Hot);
        }
    }

    /// A hold on a slot ends.
    pub(crate) fn unlease(&mut self, slot: u32) {
        self.slots.unlease(slot);
        let meta = self.slots.meta(slot);
        if meta.state() == SlotState::Used {
            self.unpark(meta.owner);
        }
    }

    /// The page was used. Callers touch tails before heads.
    pub(crate) fn touch(&mut self, index: u32) {
        if self.pages[index].has(MOVING) {
            self.pages.set_moving(index, false);
            self.refresh(index, Position::Hot);
        }
        self.make_recent(index);
        self.note_use(index);
    }

    /// The page goes last from now on.
    pub(crate) fn make_recent(&mut self, index: u32) {
        self.call.step();
        self.clear_victim(index);
        self.stay(index);
        self.relist_parked(index);
        self.policy.touch(&mut self.pages, index);
        self.touch_slots(index);
    }

    /// Whoever keeps a table of slots learns that a page in DRAM was used.
    pub(super) fn note_use(&mut self, index: u32) {
        let first = self.pages.cells(index).first().map(|cell| cell.slot).filter(|slot| *slot != NONE);
        if let Some(slot) = first {
            self.slots.note_use(slot, self.pages[index].cell.uses());
        }
    }

    pub(super) fn touch_slots(&mut self, index: u32) {
        for cell in self.pages.cells(index) {
            if cell.slot != NONE {
                self.slots.touch(cell.slot);
            }
        }
    }

    /// A page cannot be used without its ancestors: they are not cold, up to the first known not to be.
    pub(crate) fn touch_ancestors(&mut self, index: u32) {
        let mut ancestor = self.pages[index].parent;
        for _ in 0..TOUCH_ANCESTORS_MAX {
            if ancestor == NONE || !self.pages[ancestor].has(LEAVING | VICTIM) {
                return;
            }
            self.clear_victim(ancestor);
            self.stay(ancestor);
            ancestor = self.pages[ancestor].parent;
        }
    }

    /// Makes a page visible once all its shards are committed and its parent is visible; then its children.
    pub(super) fn settle(&mut self, index: u32) {
        let (mut next, mut waiting) = (Some(index), Vec::new());
        while let Some(index) = next.take().or_else(|| waiting.pop()) {
            let parent = self.pages[index].parent;
            let reachable = parent == NONE || self.pages[parent].is_visible();
            let complete = self.pages.cells(index).iter().all(Cell::committed);
            if !reachable || !complete || self.pages[index].is_visible() {
                self.refresh(index, Position::Hot);
                continue;
            }
            self.pages.show(index);
            self.finish(index);
            self.tally.visible += 1;
            self.tally.shown += 1;
            if !self.pages.cells(index).iter().all(|cell| cell.has(ON_NVME)) {
                self.admit_new(index);
            }
            // What a start found on NVMe was used with what leads to it, not after it.
            let found = self.pages.cells(index).iter().all(|cell| cell.slot == NONE);
            self.refresh(index, if found { Position::ColderThan(parent) } else { Position::Hot });
            let mut child = self.pages[index].first_child;
            while child != NONE {
                waiting.push(child);
                child = self.pages.next_sibling(child);
            }
        }
    }

    /// Removes a page that nothing hangs on, and parents that were only there for it.
    pub(super) fn remove_tail(&mut self, index: u32, removal: Removal, search: Search) {
        let parent = self.pages[index].parent;
        self.remove_leaf(index, removal, search);
        if parent != NONE {
            self.prune(parent, search);
        }
    }

    /// Removes an invisible page that holds nothing, and its parents likewise.
    pub(super) fn prune(&mut self, mut index: u32, search: Search) {
        while index != NONE && index != search.page {
            let entry = &self.pages[index];
            let hollow = |cell: &Cell| cell.slot == NONE && !cell.committed();
            let used = entry.is_visible() || entry.is_gone() || !entry.is_leaf();
            if used || !self.pages.cells(index).iter().all(hollow) {
                return;
            }
            let parent = entry.parent;
            self.remove_leaf(index, Removal::Dropped, search);
            index = parent;
        }
    }

    /// Removes one entry from the index. Operations in flight keep its entry until they end.
    pub(crate) fn remove_leaf(&mut self, index: u32, removal: Removal, search: Search) {
        self.call.step();
        for shard in 0..self.pages.shards(index) {
            self.clear_dirty(index, shard);
            self.clear_place(index, shard);
            let cell = *self.pages.cell(index, shard);
            if cell.has(PROMOTING | WRITING) {
                self.slots.disown(cell.slot);
            } else {
                self.let_go(index, shard);
            }
        }
        if self.pages[index].has(UNFINISHED) {
            self.unfinished.count_dropped();
        }
        if self.pages[index].is_visible() {
            self.tally.visible -= 1;
            self.tally.evicted += u64::from(removal == Removal::Evicted);
            self.tally.dropped += u64::from(removal == Removal::Dropped);
        }
        self.finish(index);
        self.protections.forget(&mut self.pages, &self.slots, index);
        self.pages.bury(index);
        self.refresh(index, Position::Cold);
        self.policy.gone(&mut self.pages, index);
        let parent = self.pages[index].parent;
        self.pages.detach(index);
        if parent != NONE {
            self.unpark_during(search, parent);
        }
        self.pages.release_if_idle(index);
    }

    /// An operation in flight on the cell ended: its hold on the slot does too. True: the page is still in
    /// the index.
    pub(super) fn end_io(&mut self, index: u32, shard: u16, operation: CellFlags) -> bool {
        let cell = *self.pages.cell(index, shard);
        debug_assert!(cell.has(operation), "callers checked that the operation is in flight");
        self.pages.end_operation(index, shard, operation);
        let slot = cell.slot;
        let gone = self.pages[index].is_gone();
        if gone {
            self.pages.abandon(index, shard);
        }
        self.slots.end_io(slot);
        self.call.note_freed();
        if gone {
            self.pages.release_if_idle(index);
        } else {
            self.unpark(index);
        }
        !gone
    }
}

/// One more, or one fewer.
fn count(gauge: &mut u64, more: bool) {
    *gauge = if more { *gauge + 1 } else { *gauge - 1 };
}
