//! What a page's own state can become, step by step. Owns: every write of a state bit. Must not know: gauges,
//! slots, policies (the store's `residency` sees to what follows).

use crate::ids::{NONE, NvmePlace, PageKey};
use crate::index::arena::Pages;
use crate::index::entry::Cell;
use crate::index::flags::{
    COUNTED_DRAM, COUNTED_NVME, CellFlags, DIRTY, DURABLE, FILLED, LEAVING, Life, Line, MOVING, ON_NVME,
    PROMISED, PROMOTING, PROTECTED, PageMarks, QUEUED, UNFINISHED, URGENT, VICTIM, WRITING,
};

impl Pages {
    /// A write lease has a slot that it is to fill.
    pub(crate) fn grant(&mut self, index: u32, shard: u16, slot: u32) {
        self.cell_mut(index, shard).slot = slot;
    }

    /// The slot of a cell has its bytes.
    pub(crate) fn fill(&mut self, index: u32, shard: u16, checksum: u64) {
        let cell = self.cell_mut(index, shard);
        cell.set(FILLED);
        cell.set_checksum(checksum);
    }

    /// A shard that is on NVMe is being read into a slot. Returns the cell as it is then.
    pub(crate) fn begin_promotion(&mut self, index: u32, shard: u16, slot: u32) -> Cell {
        let cell = self.cell_mut(index, shard);
        cell.slot = slot;
        cell.set(PROMOTING);
        *cell
    }

    /// The read landed: the slot has the bytes.
    pub(crate) fn finish_promotion(&mut self, index: u32, shard: u16) {
        self.cell_mut(index, shard).set(FILLED);
    }

    /// The slot is being written to NVMe. Returns the cell as it is then.
    pub(crate) fn begin_write(&mut self, index: u32, shard: u16) -> Cell {
        let cell = self.cell_mut(index, shard);
        cell.set(WRITING);
        *cell
    }

    /// An operation in flight on a cell ended.
    pub(crate) fn end_operation(&mut self, index: u32, shard: u16, operation: CellFlags) {
        self.cell_mut(index, shard).clear(operation);
    }

    /// The cell gives up its slot (`NONE`: it had none), and what that held of the page's bytes. Returns the slot,
    /// and whether these were still to be written.
    pub(crate) fn let_go(&mut self, index: u32, shard: u16) -> (u32, bool) {
        let cell = self.cell_mut(index, shard);
        debug_assert!(!cell.has(PROMOTING | WRITING), "an operation in flight keeps its slot");
        let slot = std::mem::replace(&mut cell.slot, NONE);
        let dirty = cell.has(DIRTY);
        cell.clear(FILLED | DIRTY);
        if dirty {
            self.sink(index);
        }
        (slot, dirty)
    }

    /// The page is gone and its last operation on a cell has ended: what the slot held is nobody's.
    pub(crate) fn abandon(&mut self, index: u32, shard: u16) {
        let cell = self.cell_mut(index, shard);
        cell.slot = NONE;
        cell.clear(FILLED);
    }

    /// The shard is on NVMe at a place.
    pub(crate) fn set_place(&mut self, index: u32, shard: u16, place: NvmePlace) {
        let cell = self.cell_mut(index, shard);
        cell.set_place(place);
        cell.set(ON_NVME);
    }

    /// The shard is not on NVMe any more. Returns where it was, if it was there.
    pub(crate) fn clear_place(&mut self, index: u32, shard: u16) -> Option<NvmePlace> {
        let cell = self.cell_mut(index, shard);
        let place = cell.has(ON_NVME).then_some(cell.place());
        cell.clear(ON_NVME);
        place
    }

    /// The slot's bytes must reach NVMe before the slot may be given up. False: that was so before.
    pub(crate) fn set_dirty(&mut self, index: u32, shard: u16) -> bool {
        let bound = self.is_bound_for_nvme(index);
        let cell = self.cell_mut(index, shard);
        debug_assert!(cell.has(FILLED), "only bytes that are here can be written");
        let fresh = !cell.has(DIRTY);
        cell.set(DIRTY);
        if !bound {
            self.move_first(index);
        }
        fresh
    }

    /// The slot's bytes need not reach NVMe any more. False: that was so before.
    pub(crate) fn clear_dirty(&mut self, index: u32, shard: u16) -> bool {
        let cell = self.cell_mut(index, shard);
        let dirty = cell.has(DIRTY);
        cell.clear(DIRTY);
        if dirty {
            self.sink(index);
        }
        dirty
    }

    /// Readers see the page from now on.
    pub(crate) fn show(&mut self, index: u32) {
        self[index].flags.become_life(Life::Visible);
    }

    /// The page leaves the index; lists that end at it end at the page before it.
    pub(crate) fn bury(&mut self, index: u32) {
        self.lift_tips(index);
        self[index].flags.become_life(Life::Gone);
        self[index].flags.clear(DURABLE);
    }

    /// The page stands in another line of those that may be evicted, or beside them.
    pub(crate) fn stand_in(&mut self, index: u32, line: Line) {
        self[index].flags.stand_in(line);
    }

    /// The page counts as one of a tier, or does not. False: that was so before.
    pub(crate) fn set_counted(&mut self, index: u32, tier: PageMarks, counted: bool) -> bool {
        debug_assert!(tier == COUNTED_DRAM || tier == COUNTED_NVME, "there are two tiers");
        let changed = counted != self[index].has(tier);
        self.put(index, tier, counted);
        changed
    }

    /// The checksum that the bytes of a shard found on NVMe must have.
    pub(crate) fn expect_checksum(&mut self, index: u32, shard: u16, checksum: u64) {
        self.cell_mut(index, shard).set_checksum(checksum);
    }

    /// Tokens of a page that is a partial tail; 0: it is a full one.
    pub(crate) fn set_tail_tokens(&mut self, index: u32, tokens: u32) {
        self[index].cell.set_tail_tokens(tokens);
    }

    /// Some protection holds a page from now on, or none does.
    pub(crate) fn set_protected(&mut self, index: u32, protected: bool) {
        self.put(index, PROTECTED, protected);
    }

    /// A page waits for more of its shards from now on, or no more.
    pub(crate) fn set_unfinished(&mut self, index: u32, unfinished: bool) {
        self.put(index, UNFINISHED, unfinished);
    }

    /// No session has a page any more, or one uses it again.
    pub(crate) fn set_victim(&mut self, index: u32, victim: bool) {
        self.put(index, VICTIM, victim);
    }

    /// A page is the first to leave NVMe, or stays.
    pub(crate) fn set_leaving(&mut self, index: u32, leaving: bool) {
        self.put(index, LEAVING, leaving);
    }

    /// A page is to be written elsewhere on NVMe, or is not any more.
    pub(crate) fn set_moving(&mut self, index: u32, moving: bool) {
        self.put(index, MOVING, moving);
    }

    /// Somebody counts on a page to be on NVMe as long as it is here.
    pub(crate) fn set_promised(&mut self, index: u32) {
        self.put(index, PROMISED, true);
    }

    /// A page is on NVMe with all its ancestors.
    fn set_durable(&mut self, index: u32) {
        self.put(index, DURABLE, true);
    }

    /// A page is in a lane of the write queue, or was taken from it.
    pub(crate) fn set_waiting(&mut self, index: u32, lane: PageMarks, waits: bool) {
        debug_assert!(lane == QUEUED || lane == URGENT, "the queue has two lanes");
        self.put(index, lane, waits);
    }

    /// A page has no copy on NVMe any more that is, or is to be, written.
    pub(crate) fn give_up_nvme(&mut self, index: u32) {
        self[index].flags.clear(DURABLE | MOVING);
    }

    /// A page waits for no write any more: the device is gone.
    pub(crate) fn give_up_writes(&mut self, index: u32) {
        self[index].flags.clear(QUEUED | URGENT);
    }

    /// A parked page could go, but something else is to go first.
    pub(crate) fn defer(&mut self, index: u32) {
        debug_assert_eq!(self[index].flags.line(), Line::Parked, "it is out of its list");
        self[index].flags.stand_in(Line::Deferred);
    }

    /// Nothing else is to go before a deferred page. False: it was not deferred.
    pub(crate) fn end_deferral(&mut self, index: u32) -> bool {
        let deferred = self[index].flags.line() == Line::Deferred;
        if deferred {
            self[index].flags.stand_in(Line::Parked);
        }
        deferred
    }

    /// The page of a key, if it is in the index and deferred.
    pub(crate) fn deferred(&self, key: PageKey) -> Option<u32> {
        self.resolve(key).filter(|index| self[*index].flags.line() == Line::Deferred)
    }

    /// A page that NVMe lost goes behind its siblings there: so whether one is there is seen at once.
    pub(crate) fn sink(&mut self, index: u32) {
        if self[index].is_visible() && !self.is_bound_for_nvme(index) {
            self.move_last(index);
        }
    }

    /// Frees the entry of a page that is gone, unless an operation in flight keeps it.
    pub(crate) fn release_if_idle(&mut self, index: u32) {
        if !self.cells(index).iter().any(|cell| cell.has(PROMOTING | WRITING)) {
            self.release(index);
        }
    }

    /// Marks a page as durable that is on NVMe with all its ancestors. False: it is not, or is known to be.
    pub(crate) fn mark_durable(&mut self, index: u32) -> bool {
        let entry = &self[index];
        let reachable = entry.parent == NONE || self[entry.parent].has(DURABLE);
        let fresh = reachable && entry.has(COUNTED_NVME) && !entry.has(DURABLE);
        if fresh {
            self.set_durable(index);
        }
        fresh
    }

    fn put(&mut self, index: u32, mark: PageMarks, is: bool) {
        let flags = &mut self[index].flags;
        if is { flags.set(mark) } else { flags.clear(mark) }
    }
}
