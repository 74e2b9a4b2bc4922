//! Reclaim: which extents of a segment are still worth their place.
//! Owns: verdicts, rewrites, drops, dead places. Must not know: which segment is chosen, and why.

use crate::ids::{NONE, NvmePlace, PageKey};
use crate::index::flags::{COUNTED_DRAM, FILLED, LEAVING, Line, MOVING, ON_NVME, PROMOTING, VICTIM};
use crate::index::list_id::Position;
use crate::namespaces::table::Namespaces;
use crate::store::Store;
use crate::store::going::{Eviction, Search};
use crate::store::promote::Promotion;
use turnkv_proto::{BlockHash, NamespaceId};

/// What to do with an extent whose segment is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Nobody needs it.
    Dead,
    /// It is to stay: write it again elsewhere.
    Hot(PageKey),
    /// It leaves NVMe: drop it.
    Cold(PageKey),
}

/// How a hot page is written again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// It is in DRAM and now in the write queue.
    Dirty,
    /// Read it first (`promoted` as usual), then ask again.
    Promotion(Promotion),
    /// Its read is already on its way: ask again when it landed.
    Busy,
    /// No slot to read it into now.
    NoSlot,
    /// The page is gone, or not on NVMe.
    Gone,
}

impl Store {
    /// Judges an extent: cold is what leaves NVMe by the policy's order or was left, or, where DRAM has all
    /// of the rest, what nothing else on NVMe hangs on.
    pub(crate) fn reclaim_verdict(
        &mut self,
        namespaces: &Namespaces,
        namespace: &NamespaceId,
        hash: &BlockHash,
        shard: u16,
        place: NvmePlace,
    ) -> Reclaim {
        let found = namespaces.find(namespace).and_then(|ns| self.pages.find_visible(ns.0, hash));
        let Some(index) = found.filter(|index| shard < self.pages.shards(*index)) else {
            self.tally.strangers_dropped += self.nvme.forget_stranger(namespace, place);
            return Reclaim::Dead;
        };
        let cell = self.pages.cell(index, shard);
        if !cell.has(ON_NVME) || cell.place() != place {
            self.tally.strangers_dropped += self.nvme.forget_stranger(namespace, place);
            return Reclaim::Dead;
        }
        let hot = if self.pages.leads_to_dram(index) {
            true // dropping it would cost DRAM what hangs on it
        } else if !self.budget_allows(index) {
            false
        } else if self.pages[index].has(LEAVING | VICTIM) {
            self.goes_last(index, Search::NONE) || self.pages.staying_child(index).is_some()
        } else {
            let beside = self.pages[index].has(COUNTED_DRAM) && !self.pages.is_promised(index);
            let spare = beside && self.is_crowded();
            let leads_on = self.pages.nvme_child(index).is_some();
            leads_on
                || self.goes_last(index, Search::NONE)
                || !spare && self.nvme.rewrite_allowed(self.slots.shard_bytes_of(self.pages[index].ns), place)
        };
        let key = self.pages.key(index);
        if hot { Reclaim::Hot(key) } else { Reclaim::Cold(key) }
    }

    /// Starts writing a page again.
    pub(crate) fn rewrite(&mut self, page: PageKey, shard: u16) -> Rewrite {
        self.call.begin();
        let index = self.pages.resolve(page).filter(|index| shard < self.pages.shards(*index));
        let Some(index) = index else { return Rewrite::Gone };
        let cell = self.pages.cell(index, shard);
        match () {
            () if !cell.has(ON_NVME) || !self.nvme.is_alive() => Rewrite::Gone,
            () if cell.has(PROMOTING) => Rewrite::Busy,
            () if cell.has(FILLED) => {
                self.begin_move(index);
                self.set_dirty(index, shard);
                self.nvme.write_first(&mut self.pages, &mut self.call, index); // new pages wait for the room that this makes
                self.refresh(index, Position::Hot);
                Rewrite::Dirty
            }
            () => {
                let others_move = self.pages[index].has(MOVING);
                self.begin_move(index);
                match self.start_promotion(index, shard, None) {
                    Some(promotion) => Rewrite::Promotion(promotion),
                    None => {
                        if !others_move {
                            self.end_move(index);
                        }
                        Rewrite::NoSlot
                    }
                }
            }
        }
    }

    /// A page that was to be written again is not: it competes for room like any other.
    pub(crate) fn rewrite_ended(&mut self, page: PageKey) {
        if let Some(index) = self.pages.resolve(page).filter(|index| self.pages[*index].has(MOVING)) {
            self.end_move(index);
        }
    }

    fn begin_move(&mut self, index: u32) {
        self.stay(index);
        self.pages.set_moving(index, true);
    }

    /// The page stays where it is from now on; a slot that it has for the move only is given up.
    pub(super) fn end_move(&mut self, index: u32) {
        let in_slots = self.pages.cells(index).iter().any(|cell| cell.slot != NONE);
        let for_move = in_slots && self.pages[index].line() == Line::Nvme;
        self.pages.set_moving(index, false);
        match self.evictable(index, Search::NONE) {
            Some(eviction @ Eviction::Demote) if for_move => self.evict(index, eviction, Search::NONE),
            _ => self.refresh(index, Position::Hot),
        }
    }

    /// Gives up the place of a cold page, and of all after it.
    pub(crate) fn drop_page(&mut self, page: PageKey) -> bool {
        self.call.begin();
        self.pages.resolve(page).is_none_or(|index| self.leave_nvme(index))
    }
}
