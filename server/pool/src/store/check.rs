//! The store's invariants, checked from scratch. Owns: what must hold of pages, slots, lists and books between any
//! two calls. Must not know: production paths: tests call it after every step.

use crate::ensure::ensure;
use crate::ids::NONE;
use crate::index::entry::Cell;
use crate::index::flags::{
    COUNTED_DRAM, COUNTED_NVME, CellFlags, DIRTY, DURABLE, FILLED, LEAVING, Line, ON_NVME, PROMOTING,
    PROTECTED, QUEUED, UNFINISHED, URGENT, WRITING,
};
use crate::index::list_id::ListId;
use crate::index::path_end::PathEnd;
use crate::memory::slots::SlotState;
use crate::store::Store;
use crate::store::going::Search;
use std::collections::{HashMap, HashSet};

#[derive(Default)]
struct Sums {
    live: u32,
    in_table: usize,
    visible: u64,
    dram_pages: u64,
    nvme_pages: u64,
    nvme_bytes: u64,
    dirty_bytes: u64,
    writing: u64,
    unfinished: u64,
    kept_bytes: u64,
    kept: HashMap<u16, u64>,
    owned: HashMap<u32, (u32, u16)>,
    /// Slots that a page, or what is left of it, reads or writes.
    ios: HashMap<u32, u32>,
}

impl Store {
    /// Checks every invariant; an error names the first that does not hold. `leases`: how many each slot has.
    pub(crate) fn check(&self, leases: HashMap<u32, u32>) -> Result<(), String> {
        let mut sums = Sums::default();
        for index in 0..self.pages.end() {
            if self.pages[index].is_used() {
                self.check_entry(index, &mut sums)?;
            }
        }
        self.check_sums(&sums)?;
        self.check_slots(&sums, leases)?;
        self.check_lists()?;
        self.policy.check(&self.pages)?;
        self.check_protections()?;
        ensure!(self.nvme.strangers_add_up(), "the strangers do not add up");
        Ok(())
    }

    fn check_entry(&self, index: u32, sums: &mut Sums) -> Result<(), String> {
        let entry = &self.pages[index];
        sums.live += 1;
        for (shard, cell) in self.pages.cells(index).iter().enumerate() {
            self.check_cell(index, shard as u16, cell, sums)?;
        }
        if entry.is_gone() {
            ensure!(!entry.is_visible(), "page {index} is gone and visible");
            ensure!(entry.parent == NONE && entry.is_leaf(), "page {index} is gone and in the tree");
            let busy = self.pages.cells(index).iter().any(|cell| cell.has(PROMOTING | WRITING));
            ensure!(busy, "page {index} is gone, and nothing keeps its entry");
            return Ok(());
        }
        sums.in_table += 1;
        sums.visible += u64::from(entry.is_visible());
        let waits = !entry.is_visible() && self.pages.cells(index).iter().any(Cell::committed);
        ensure!(entry.has(UNFINISHED) == waits, "page {index} waits for shards: {waits}");
        sums.unfinished += u64::from(waits);
        sums.dram_pages += u64::from(entry.has(COUNTED_DRAM));
        sums.nvme_pages += u64::from(entry.has(COUNTED_NVME));
        ensure!(self.pages.find(entry.ns, &entry.hash) == Some(index), "page {index} is not in the table");
        let cells = self.pages.cells(index);
        let all = |bits: CellFlags| entry.is_visible() && cells.iter().all(|cell| cell.has(bits));
        ensure!(entry.has(COUNTED_DRAM) == all(FILLED), "page {index} is miscounted in DRAM");
        ensure!(entry.has(COUNTED_NVME) == all(ON_NVME), "page {index} is miscounted on NVMe");
        let parent = (entry.parent != NONE).then(|| &self.pages[entry.parent]);
        if entry.is_visible() {
            ensure!(cells.iter().all(Cell::committed), "page {index} is visible and incomplete");
            ensure!(
                parent.is_none_or(|parent| parent.is_visible()),
                "page {index} is visible, its parent is not"
            );
        } else {
            let reachable = parent.is_none_or(|parent| parent.is_visible());
            ensure!(!reachable || !cells.iter().all(Cell::committed), "page {index} should be visible");
            let used = !entry.is_leaf() || cells.iter().any(|cell| cell.slot != NONE || cell.committed());
            ensure!(used, "page {index} is hollow");
        }
        if entry.has(DURABLE) {
            ensure!(all(ON_NVME), "page {index} is durable and not on NVMe");
            ensure!(
                parent.is_none_or(|parent| parent.has(DURABLE)),
                "page {index} is durable, its parent is not"
            );
        }
        if entry.has(LEAVING) {
            let alone = cells.iter().all(|cell| cell.slot == NONE);
            ensure!(
                all(ON_NVME) && alone && entry.list().is_none(),
                "page {index} leaves NVMe and is elsewhere"
            );
        }
        self.check_links(index)
    }

    fn check_cell(&self, index: u32, shard: u16, cell: &Cell, sums: &mut Sums) -> Result<(), String> {
        let entry = &self.pages[index];
        let bytes = self.slots.shard_bytes_of(self.pages[index].ns);
        let slot = cell.slot;
        sums.nvme_bytes += if cell.has(ON_NVME) { bytes } else { 0 };
        if cell.has(ON_NVME) && !entry.has(LEAVING) {
            sums.kept_bytes += self.nvme.extent_bytes(self.slots.shard_bytes_of(self.pages[index].ns));
            *sums.kept.entry(cell.place().segment).or_default() +=
                self.nvme.extent_bytes(self.slots.shard_bytes_of(self.pages[index].ns));
        }
        sums.dirty_bytes += if cell.has(DIRTY) { bytes } else { 0 };
        sums.writing += u64::from(cell.has(WRITING));
        ensure!(
            !(cell.has(PROMOTING) && cell.has(FILLED | WRITING)),
            "page {index} is read into and used at once"
        );
        ensure!(
            !cell.has(FILLED | PROMOTING | WRITING) || slot != NONE,
            "page {index} has bytes and no slot"
        );
        ensure!(!cell.has(DIRTY) || cell.has(FILLED), "page {index} is dirty and has no bytes");
        if self.nvme.is_off(&self.pages, index) {
            ensure!(cell.has(FILLED), "page {index} is neither on NVMe nor in DRAM");
        } else if entry.parent != NONE && self.nvme.is_off(&self.pages, entry.parent) {
            ensure!(!cell.has(ON_NVME | DIRTY), "page {index} is on NVMe, and what it hangs on is not");
        }
        if cell.has(DIRTY) && !cell.has(WRITING) {
            ensure!(entry.has(QUEUED | URGENT), "page {index} is dirty and not in the write queue");
        }
        ensure!(self.nvme.is_alive() || !cell.has(DIRTY | ON_NVME), "page {index} believes in NVMe");
        if slot == NONE {
            return Ok(());
        }
        if cell.has(PROMOTING | WRITING) {
            *sums.ios.entry(slot).or_default() += 1;
        }
        if entry.is_gone() {
            ensure!(
                self.slots.meta(slot).state() == SlotState::Doomed,
                "slot {slot} of a gone page is not doomed"
            );
            return Ok(());
        }
        ensure!(sums.owned.insert(slot, (index, shard)).is_none(), "slot {slot} has two pages");
        let meta = self.slots.meta(slot);
        ensure!(meta.state() == SlotState::Used, "slot {slot} has a page and is {:?}", meta.state());
        let shard_of_it = self.pages.shard_in(index, slot);
        ensure!((meta.owner, shard_of_it) == (index, Some(shard)), "slot {slot} believes in another page");
        ensure!(
            !cell.granted() || meta.leases() == 1,
            "slot {slot} is granted under {} leases",
            meta.leases()
        );
        Ok(())
    }

    fn check_links(&self, index: u32) -> Result<(), String> {
        let mut child = self.pages[index].first_child;
        let mut prev = NONE;
        let mut sunk = false;
        while child != NONE {
            let entry = &self.pages[child];
            ensure!(entry.is_used() && !entry.is_gone(), "page {index} has a child that is gone");
            let linked = entry.parent == index && (prev == NONE || self.pages.prev_sibling(child) == prev);
            let deep = (self.pages.depth(index) + 1, self.pages.jump_below(index));
            ensure!((entry.depth, entry.jump) == deep, "page {child} does not know how deep it is");
            ensure!(linked, "page {child} is linked wrongly");
            if entry.is_visible() && self.nvme.is_alive() {
                let bound = self.pages.is_bound_for_nvme(child);
                ensure!(!bound || !sunk, "page {child} is behind those that NVMe lost");
                sunk |= !bound;
            }
            (prev, child) = (child, self.pages.next_sibling(child));
        }
        let first = self.pages[index].first_child;
        ensure!(
            first == NONE || self.pages.prev_sibling(first) == prev,
            "page {index} does not know its last child"
        );
        Ok(())
    }

    fn check_sums(&self, sums: &Sums) -> Result<(), String> {
        let tally = self.tally;
        ensure!(sums.live == self.pages.len(), "{} entries, {} counted", sums.live, self.pages.len());
        ensure!(sums.in_table == self.pages.table_len(), "the table has {}", self.pages.table_len());
        ensure!(sums.visible == tally.visible, "{} pages, {} counted", sums.visible, tally.visible);
        ensure!(sums.dram_pages == tally.dram_pages, "{} pages in DRAM", sums.dram_pages);
        ensure!(sums.nvme_pages == tally.nvme_pages, "{} pages on NVMe", sums.nvme_pages);
        ensure!(sums.nvme_bytes == tally.nvme_bytes, "{} bytes on NVMe", sums.nvme_bytes);
        ensure!(
            sums.dirty_bytes == tally.dirty_bytes,
            "{} dirty, {} counted",
            sums.dirty_bytes,
            tally.dirty_bytes
        );
        let (kept_bytes, by_segment) = self.nvme.kept();
        ensure!(sums.kept_bytes == kept_bytes, "{} bytes are to stay on NVMe", sums.kept_bytes);
        for (segment, bytes) in by_segment.iter().enumerate() {
            let counted = sums.kept.get(&(segment as u16)).copied().unwrap_or(0);
            ensure!(counted == *bytes, "segment {segment} keeps {counted} bytes, {bytes} counted");
        }
        ensure!(
            sums.unfinished == self.going().unfinished_pages,
            "{} pages wait for shards, {} counted",
            sums.unfinished,
            self.going().unfinished_pages
        );
        ensure!(sums.writing == tally.writing, "{} being written, {} counted", sums.writing, tally.writing);
        ensure!(self.pages.len() <= self.limits().pages_max, "more pages than pages_max");
        Ok(())
    }

    fn check_slots(&self, sums: &Sums, mut leases: HashMap<u32, u32>) -> Result<(), String> {
        let (mut used_bytes, mut leased_bytes, mut pinned_bytes) = (0, 0, 0);
        for (slab, this) in self.slots.slabs().iter().enumerate() {
            let (mut used, mut leased) = (0, 0);
            for (at, meta) in this.metas.iter().enumerate() {
                let slot = self.slots.number(slab as u32, at as u32);
                let (held, ios) =
                    (leases.remove(&slot).unwrap_or(0), sums.ios.get(&slot).copied().unwrap_or(0));
                let owned = sums.owned.contains_key(&slot);
                ensure!(owned == (meta.state() == SlotState::Used), "slot {slot} is {:?}", meta.state());
                if meta.state() == SlotState::Free {
                    ensure!(held == 0 && ios == 0, "slot {slot} is free and held");
                    continue;
                }
                ensure!(
                    meta.state() != SlotState::Reserved || (held == 1 && ios == 0),
                    "slot {slot} is reserved and has {held} leases"
                );
                used += 1;
                leased += u32::from(held > 0);
                let bytes = self.slots.slot_bytes(slot);
                used_bytes += bytes;
                leased_bytes += if held > 0 { bytes } else { 0 };
                pinned_bytes += if held > 0 || ios > 0 { bytes } else { 0 };
                ensure!(meta.leases() == held, "slot {slot} has {held} leases, {} counted", meta.leases());
                ensure!(meta.ios() == ios, "slot {slot} has {ios} operations, {} counted", meta.ios());
                let has_bytes = matches!(meta.state(), SlotState::Used | SlotState::Found);
                ensure!(has_bytes || held > 0 || ios > 0, "slot {slot} is lost");
                ensure!(
                    meta.state() != SlotState::Found || ios == 0,
                    "slot {slot} is found and has operations"
                );
            }
            ensure!(used == this.used, "slab {slab} has {used} slots in use, {} counted", this.used);
            ensure!(leased == this.leased, "slab {slab} has {leased} leased slots, {} counted", this.leased);
            let empty = self.slots.empty().contains(&(slab as u32));
            let aside = self.slots.is_aside(slab as u32);
            ensure!(empty == (used == 0 && !this.retired && !aside), "slab {slab} is in the wrong place");
        }
        self.check_leaving()?;
        ensure!(leases.is_empty(), "leases hold slots that do not exist");
        let gauges = self.slots.gauges();
        ensure!(used_bytes == gauges.used_bytes, "{used_bytes} bytes in use, {} counted", gauges.used_bytes);
        ensure!(leased_bytes == gauges.leased_bytes, "{leased_bytes} bytes leased");
        ensure!(pinned_bytes == gauges.pinned_bytes, "{pinned_bytes} bytes pinned");
        Ok(())
    }

    fn check_leaving(&self) -> Result<(), String> {
        let (mut idle, mut absent): (HashMap<u32, u64>, u32) = (HashMap::new(), 0);
        for (slab, this) in self.slots.slabs().iter().enumerate() {
            let on_its_way = self.slots.leaving().iter().any(|leaving| leaving.slab == slab as u32);
            ensure!(on_its_way == this.is_leaving(), "slab {slab} does not know whether it leaves");
            let gone = self.slots.is_absent(slab as u32);
            ensure!(!gone || this.retired && this.used == 0, "slab {slab} is absent and in use");
            absent += u32::from(gone);
            if on_its_way {
                let class = this.class_number();
                let free = self.slots.class_at(class as u16).per_slab - this.used;
                *idle.entry(class).or_default() += u64::from(free);
            }
        }
        ensure!(
            self.slots.present() + absent == self.slots.slabs().len() as u32,
            "{absent} slabs are absent"
        );
        for ns in 0..self.pages.namespaces() {
            let (counted, found) = (self.slots.class_at(ns).idle, idle.remove(&u32::from(ns)).unwrap_or(0));
            ensure!(counted == found, "namespace {ns} has {found} idle slots, {counted} counted");
        }
        ensure!(
            self.slots.leaving().len() <= self.slots.surplus() as usize,
            "more slabs leave than are too many"
        );
        Ok(())
    }

    fn check_lists(&self) -> Result<(), String> {
        let mut listed = HashSet::new();
        let lists = (0..self.pages.namespaces()).map(ListId::Dram).chain([ListId::Nvme]);
        for list in lists {
            for index in self.policy.order(&self.pages, list) {
                ensure!(listed.insert(index), "page {index} is in two lists");
                ensure!(self.pages[index].list() == Some(list), "page {index} is in the wrong list");
                let in_slots = self.pages.cells(index).iter().any(|cell| cell.slot != NONE);
                ensure!(list == ListId::Nvme || in_slots, "page {index} is in DRAM's list and not in DRAM");
            }
        }
        for index in (0..self.pages.end()).filter(|index| self.pages[*index].is_used()) {
            let parked = self.pages[index].is_parked();
            let deferred = self.pages[index].line() == Line::Deferred;
            ensure!(
                !parked || deferred || self.evictable(index, Search::NONE).is_none(),
                "page {index} is parked and could go"
            );
            ensure!(
                self.pages[index].list().is_some() == listed.contains(&index),
                "page {index} is lost from its list"
            );
        }
        Ok(())
    }

    fn check_protections(&self) -> Result<(), String> {
        let (mut bytes, mut pages) = (0, 0);
        let mut counts: HashMap<u32, u32> = HashMap::new();
        for owner in self.protections.owners() {
            let end = self.protections.end_of(owner, &self.pages);
            self.check_path(end).map_err(|error| format!("what {owner:?} protects {error}"))?;
            *counts.entry(end.page).or_default() += 1;
        }
        for tip in self.protections.unowned() {
            *counts.entry(self.pages.tip_end(tip).page).or_default() += 1;
        }
        for index in (0..self.pages.end()).filter(|index| self.pages.is_live(*index)) {
            if self.pages[index].has(PROTECTED) && self.pages[index].parent != NONE {
                *counts.entry(self.pages[index].parent).or_default() += 1;
            }
        }
        for index in (0..self.pages.end()).filter(|index| self.pages.is_live(*index)) {
            let counted = counts.get(&index).copied().unwrap_or(0);
            let held = self.protections.holds(index);
            ensure!(held == counted, "page {index} is protected {counted} times, {held} counted");
            ensure!(self.pages[index].has(PROTECTED) == (held > 0), "page {index} has the wrong mark");
            if held > 0 {
                (bytes, pages) = (bytes + self.pages.page_bytes(&self.slots, index), pages + 1);
            }
        }
        let held = &self.protections;
        ensure!(held.recount_pins() == held.pins(), "{} pins counted", held.pins());
        ensure!(
            (bytes, pages) == (held.protected_bytes(), held.pages()),
            "{pages} pages of {bytes} bytes are protected"
        );
        // What was protected when DRAM was larger stays so until it ends.
        let budget = self.slots.largest_dram_bytes() * u64::from(self.limits().protected_percent) / 100;
        ensure!(held.fullest_bytes() <= budget, "a tenant protects more than {budget} bytes");
        Ok(())
    }

    /// A path is of pages that are here, as many as it says.
    pub(crate) fn check_path(&self, end: PathEnd) -> Result<(), String> {
        let pages = self.pages.upward(end.page).count();
        ensure!(pages == end.pages as usize, "has {pages} pages of {}", end.pages);
        ensure!(
            self.pages.upward(end.page).all(|index| self.pages.is_live(index)),
            "has a page that is gone"
        );
        Ok(())
    }
}
