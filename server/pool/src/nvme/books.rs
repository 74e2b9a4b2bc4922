//! The books of NVMe. Owns: what is written and what is not, what was found there, what became of extents. Must not
//! know: pages' slots, which segment is emptied.

use crate::config::{Admit, PoolConfig};
use crate::ids::{NONE, Now, NvmePlace, PlaceNote};
use crate::index::arena::Pages;
use crate::index::flags::{DIRTY, ON_NVME, WRITING};
use crate::index::sweep::Sweep;
use crate::limits::{BACKLOG_SHARE, STRANGERS_PER_CALL};
use crate::nvme::budget::WriteBudget;
use crate::nvme::left_behind::LeftBehind;
use crate::nvme::space::NvmeSpace;
use crate::nvme::strangers::{Forgotten, Stranger, Strangers};
use crate::nvme::thin::thin;
use crate::nvme::write_queue::WriteQueue;
use std::collections::BTreeMap;
use std::sync::Arc;
use turnkv_proto::NamespaceId;

/// The books of NVMe.
pub(crate) struct Nvme {
    /// There is an NVMe tier, and it works.
    pub(super) alive: bool,
    /// Bytes of pages that the tier can have.
    pub(super) bytes: u64,
    bytes_per_day: u64,
    admit: Admit,
    pub(super) writes: WriteQueue,
    budget: WriteBudget,
    behind: LeftBehind,
    pub(super) space: NvmeSpace,
    /// Pages came to wait to be written since somebody asked.
    pub(super) writes_ready: bool,
    /// What became of extents, for whoever keeps the bytes.
    pub(super) place_notes: Vec<(NvmePlace, PlaceNote)>,
    /// What is on NVMe of namespaces that are not open.
    strangers: Strangers,
}

/// Gauges of the books.
pub(crate) struct NvmeGauges {
    pub(crate) waiting_writes: u64,
    /// Memory of the books themselves.
    pub(crate) memory_bytes: usize,
    pub(crate) stranger_namespaces: u64,
    pub(crate) stranger_extents: u64,
    pub(crate) stranger_bytes: u64,
    /// Pages wait, off NVMe, until it has time or room for them.
    pub(crate) behind: bool,
}

impl Nvme {
    /// The books of an empty tier.
    pub(crate) fn new(config: &PoolConfig) -> Nvme {
        Nvme {
            alive: config.nvme_bytes > 0,
            bytes: config.nvme_bytes,
            bytes_per_day: config.nvme_bytes_per_day,
            admit: config.nvme_admit,
            writes: WriteQueue::default(),
            budget: WriteBudget::new(config.nvme_bytes_per_day),
            behind: LeftBehind::default(),
            space: NvmeSpace::new(config.nvme_bytes),
            writes_ready: false,
            place_notes: Vec::new(),
            strangers: Strangers::default(),
        }
    }

    /// Whether there is an NVMe tier that works.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive
    }

    /// Bytes of pages that the tier can have; 0: it does not work.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        if self.alive { self.bytes } else { 0 }
    }

    /// The device is gone: nothing goes there any more, and what was there is of no use.
    pub(crate) fn lose(&mut self) {
        self.alive = false;
        self.place_notes.clear();
        self.strangers = Strangers::default();
        self.writes = WriteQueue::default();
        self.writes_ready = false;
    }

    /// What became of extents since the last time, in order, and whether pages came to wait to be written.
    pub(crate) fn take_effects(&mut self) -> (Vec<(NvmePlace, PlaceNote)>, bool) {
        (std::mem::take(&mut self.place_notes), std::mem::take(&mut self.writes_ready))
    }

    /// Something became of an extent, for whoever keeps the bytes.
    pub(crate) fn note(&mut self, place: NvmePlace, note: PlaceNote) {
        self.place_notes.push((place, note));
    }

    /// So many bytes at a place are of no use any more.
    fn note_dead(&mut self, place: NvmePlace, bytes: u64) {
        self.note(place, PlaceNote::Dead(bytes));
    }

    /// Gauges now.
    pub(crate) fn gauges(&self) -> NvmeGauges {
        NvmeGauges {
            waiting_writes: self.writes.len() as u64,
            memory_bytes: self.writes.bytes() + self.strangers.memory(),
            stranger_namespaces: self.strangers.families() as u64,
            stranger_extents: self.strangers.sums().0,
            stranger_bytes: self.strangers.sums().1,
            behind: self.behind.is_any(),
        }
    }

    /// Whether the strangers add up, for the check of invariants.
    pub(crate) fn strangers_add_up(&self) -> bool {
        self.strangers.sums() == self.strangers.recount()
    }

    /// Whether a page is in DRAM only, and not on its way to NVMe.
    pub(crate) fn is_off(&self, pages: &Pages, index: u32) -> bool {
        self.alive
            && pages[index].is_visible()
            && pages.cells(index).iter().any(|cell| !cell.has(ON_NVME | DIRTY))
    }

    /// Whether nobody waits any more for a write that is done: the page is off NVMe, or what it hangs on is.
    pub(crate) fn is_unwanted(&self, pages: &Pages, index: u32) -> bool {
        let parent = pages[index].parent;
        let left = pages.cells(index).iter().any(|cell| !cell.has(ON_NVME | DIRTY | WRITING));
        left || (parent != NONE && self.is_off(pages, parent))
    }

    /// Whether the budget allows so many bytes to be written that nobody insists on, beside those that are
    /// queued.
    pub(crate) fn budget_allows(&mut self, bytes: u64, dirty_bytes: u64, now: Now) -> bool {
        self.budget.allows(bytes, dirty_bytes, self.bytes_per_day, now)
    }

    /// Whether what waits to be written, and so many bytes more, is little beside NVMe. A small tier could
    /// not take more in time, and pages that wait for it hold their slots in DRAM.
    pub(crate) fn backlog_allows(&self, bytes: u64, dirty_bytes: u64) -> bool {
        dirty_bytes + bytes <= self.bytes / BACKLOG_SHARE
    }

    /// A write of so many bytes was started.
    pub(crate) fn spend_budget(&mut self, bytes: u64) {
        if self.bytes_per_day > 0 {
            self.budget.spend(bytes);
        }
    }

    /// Whether all new pages are to be written, as far as there is time and room.
    pub(crate) fn admits_all(&self) -> bool {
        self.admit == Admit::All
    }

    /// A page could not be written in time: it is found again.
    pub(crate) fn leave_behind(&mut self) {
        self.behind.find_again();
    }

    /// NVMe gave up a page that DRAM keeps: it is found again once there is room, unless it is one that would
    /// not have been written unasked.
    pub(crate) fn note_let_go(&mut self) {
        if self.admits_all() {
            self.behind.wait_for_room();
        }
    }

    /// The walk that finds what was left behind, once little waits to be written.
    pub(crate) fn begin_catch_up(&mut self, dirty_bytes: u64) -> Option<Sweep> {
        if dirty_bytes > self.bytes / (2 * BACKLOG_SHARE) || !self.alive {
            return None;
        }
        let has_room = self.has_room_again(dirty_bytes);
        self.behind.take_walk(has_room)
    }

    /// That walk came so far. `done`: to its end.
    pub(crate) fn end_catch_up(&mut self, walk: Sweep, done: bool) {
        self.behind.put_walk(walk, done);
    }

    /// Whether extents of a namespace wait for it to be opened.
    pub(crate) fn has_strangers(&self, id: &NamespaceId) -> bool {
        self.strangers.wait_for(id)
    }

    /// The extent at a place is not kept for anybody who may come. It is dead from now on, also where its
    /// segment is not emptied after all. Returns how many extents went for which somebody could still have
    /// come.
    pub(crate) fn forget_stranger(&mut self, id: &NamespaceId, place: NvmePlace) -> u64 {
        let waits = self.has_strangers(id); // else nobody would have asked for it
        let Some(old) = self.strangers.take_at(id, place) else { return 0 };
        self.note_dead(old.place, old.bytes.into());
        u64::from(waits)
    }

    /// Takes what was found at a start; what is more than so many pages goes (`thin`). Returns how many pages
    /// that are.
    pub(crate) fn keep_strangers(
        &mut self,
        found: impl Iterator<Item = (NamespaceId, Stranger)>,
        pages_max: usize,
    ) -> u64 {
        let mut families: BTreeMap<NamespaceId, Vec<Stranger>> = BTreeMap::new();
        for (id, stranger) in found {
            families.entry(id).or_default().push(stranger);
        }
        let mut gone = 0;
        let all = families.values().flatten().filter(|stranger| stranger.shard == 0).count(); // one a page
        if all > pages_max {
            let thinned = thin(&mut families, pages_max);
            thinned.extents.iter().for_each(|old| self.note_dead(old.place, old.bytes.into()));
            gone = thinned.pages;
        }
        families.into_iter().for_each(|(id, extents)| self.strangers.keep(id, extents));
        gone
    }

    /// Forgets some of those that nobody will ask for. `all`: that is so of all there are. True: there are
    /// more. The ids are of namespaces of which nothing is left.
    pub(crate) fn forget_strangers(&mut self, all: bool) -> (bool, Vec<NamespaceId>) {
        if all {
            self.strangers.doom_all();
        }
        let Forgotten { dead, gone, more } = self.strangers.forget_some(STRANGERS_PER_CALL);
        dead.iter().for_each(|old| self.note_dead(old.place, old.bytes.into()));
        (more, gone)
    }

    /// What waits for a namespace to be opened. None: nothing.
    pub(crate) fn strangers_of(&self, id: &NamespaceId) -> Option<Arc<[Stranger]>> {
        self.strangers.extents_of(id)
    }

    /// Whether one of them is still there.
    pub(crate) fn has_stranger(&self, id: &NamespaceId, at: usize) -> bool {
        self.strangers.is_alive(id, at)
    }

    /// One of them is a stranger no more.
    pub(crate) fn take_stranger(&mut self, id: &NamespaceId, at: usize) -> Option<Stranger> {
        self.strangers.take(id, at)
    }

    /// Nobody will ask for what is left of a namespace's.
    pub(crate) fn doom_strangers(&mut self, id: &NamespaceId) {
        self.strangers.doom(id);
    }
}
