//! Reclaim: which extents of a segment are still worth their place.
//! Owns: verdicts, rewrites, drops, dead places. Must not know: which segment is chosen, and why.

use crate::Pool;
use crate::entry::{COUNTED_DRAM, FILLED, MOVING, ON_NVME, PROMOTING, PROTECTED, TOUCHED, VICTIM};
use crate::ids::{NamespaceIndex, NvmePlace, PageKey};
use crate::limits::{HOT_DRAM_PERCENT, HOT_NONE_PERCENT};
use crate::policy::{ListId, Position};
use crate::promote::Promotion;
use crate::residency::{Eviction, Removal};
use turnkv_proto::{BlockHash, NamespaceId};

/// What to do with an extent whose segment is reclaimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// Nobody needs it.
    Dead,
    /// Used since it was written: write it again elsewhere.
    Hot(PageKey),
    /// Not used since, or there is no room for it any more: drop the page.
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

impl Pool {
    /// Judges an extent. A hot page loses its second chance by this: if nobody uses it until the next time, it is cold.
    /// The fuller NVMe is with live pages, the less is hot, so that reclaiming always makes room in the end.
    pub fn reclaim_verdict(
        &mut self,
        namespace: &NamespaceId,
        hash: &BlockHash,
        shard: u16,
        place: NvmePlace,
    ) -> Reclaim {
        let found = self.namespace(namespace).and_then(|ns| self.find_visible(ns.0, hash));
        let Some(index) = found.filter(|index| shard < self.pages.shards(*index)) else {
            return Reclaim::Dead;
        };
        let cell = self.pages.cell(index, shard);
        if !cell.has(ON_NVME) || cell.place != place {
            return Reclaim::Dead;
        }
        let full_percent =
            u128::from(self.tally.nvme_bytes) * 100 / u128::from(self.config.nvme_bytes.max(1));
        let used = self.pages[index].flags & (TOUCHED | VICTIM) == TOUCHED;
        // Dropping it would cost DRAM what hangs on it.
        let needed = self.is_needed(index);
        let hot = match full_percent {
            // What is protected is small beside NVMe, and loses its protection in time.
            _ if !self.budget_allows(index) => needed,
            _ if needed || self.pages[index].has(PROTECTED) => true,
            percent if percent >= HOT_NONE_PERCENT => false,
            percent if percent >= HOT_DRAM_PERCENT => used && self.pages[index].has(COUNTED_DRAM),
            _ => used,
        };
        let key = self.pages.key(index);
        if !hot {
            return Reclaim::Cold(key);
        }
        if shard + 1 == self.pages.shards(index) {
            self.pages[index].flags &= !TOUCHED;
        }
        Reclaim::Hot(key)
    }

    /// Whether a page that is on NVMe alone leads to one in DRAM.
    fn is_needed(&self, index: u32) -> bool {
        if self.pages[index].has(COUNTED_DRAM) {
            return false;
        }
        self.child_in_dram(index).is_some()
    }

    /// Starts writing a page again. Its old place stays in use until the new one is written.
    pub fn rewrite(&mut self, page: PageKey, shard: u16) -> Rewrite {
        let index = self.pages.resolve(page).filter(|index| shard < self.pages.shards(*index));
        let Some(index) = index else { return Rewrite::Gone };
        let cell = self.pages.cell(index, shard);
        match () {
            () if !cell.has(ON_NVME) || !self.nvme_alive => Rewrite::Gone,
            () if cell.has(PROMOTING) => Rewrite::Busy,
            () if cell.has(FILLED) => {
                self.set_dirty(index, shard);
                self.refresh(index, Position::Hot);
                Rewrite::Dirty
            }
            () => match self.start_promotion(index, shard) {
                Some(promotion) => {
                    self.pages[index].flags |= MOVING;
                    Rewrite::Promotion(promotion)
                }
                None => Rewrite::NoSlot,
            },
        }
    }

    /// Gives up the place of a cold page, and of all after it. What DRAM has of them stays; the rest is gone by policy.
    /// Slots under leases are free when these end.
    pub fn drop_page(&mut self, page: PageKey) {
        if let Some(index) = self.pages.resolve(page) {
            self.leave_nvme(index);
        }
    }

    /// Extents nobody needs any more, with the bytes of each.
    pub fn take_dead_places(&mut self) -> Vec<(NvmePlace, u64)> {
        std::mem::take(&mut self.dead)
    }

    /// Drops every page of a namespace, or of all. Returns how many readers could see.
    pub fn evict_namespace(&mut self, ns: Option<NamespaceIndex>) -> u64 {
        let before = self.tally.visible;
        for index in 0..self.pages.end() {
            if self.pages.is_live(index) && ns.is_none_or(|ns| ns.0 == self.pages[index].ns) {
                self.remove_subtree(index, Removal::Dropped);
            }
        }
        before - self.tally.visible
    }

    /// Demotes every page that is on NVMe and not in use. Returns how many.
    pub fn demote_all(&mut self, ns: Option<NamespaceIndex>) -> u64 {
        let before = self.tally.demoted;
        for ns in (0..self.namespaces.len() as u16).filter(|at| ns.is_none_or(|ns| ns.0 == *at)) {
            for index in self.policy.order(&self.pages, ListId::Dram(ns)) {
                if self.evictable(index) == Some(Eviction::Demote) {
                    self.evict(index, Eviction::Demote);
                }
            }
        }
        self.tally.demoted - before
    }
}
