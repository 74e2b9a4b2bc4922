//! Slots under leases: how they are filled and given up. Owns: these steps. Must not know: whose a lease is, and
//! what it is for.

use crate::ids::NONE;
use crate::index::flags::FILLED;
use crate::index::list_id::Position;
use crate::memory::leases::LeaseItem;
use crate::store::Store;
use crate::store::going::Search;
use turnkv_proto::Shards;

impl Store {
    /// Commits one shard of a page. False: it is gone, or the page before it is not committed.
    pub(crate) fn commit_shard(&mut self, item: &LeaseItem, shards: Shards, checksum: u64) -> bool {
        let Some(index) = self.pages.granted(item.page, item.shard(shards), item.slot) else { return false };
        let shard = item.shard(shards);
        let parent = self.pages[index].parent;
        if parent != NONE && !self.pages[parent].is_visible() && !self.pages.cell(parent, shard).committed() {
            return false;
        }
        self.pages.fill(index, shard, checksum);
        self.settle(index);
        true
    }

    /// The pages of these grants lose their slots; later pages first, so that what hung on them goes with
    /// them.
    pub(crate) fn give_up_grants(&mut self, items: &[LeaseItem], shards: Shards) {
        for item in items.iter().rev() {
            self.call.step();
            if let Some(index) = self.pages.granted(item.page, item.shard(shards), item.slot) {
                self.let_go(index, item.shard(shards));
                self.refresh(index, Position::Hot);
                self.prune(index, Search::NONE);
            }
        }
    }

    /// A lease's hold on one slot ends; a reserved slot that was not committed is free then.
    pub(crate) fn end_hold(&mut self, item: &LeaseItem) {
        self.call.step();
        self.slots.give_up_reserved(item.slot);
        self.unlease(item.slot);
    }

    /// The bytes of these slots, in the order of their positions, did not verify at the reader. Returns of
    /// how many pages some were dropped.
    pub(crate) fn drop_corrupt(&mut self, items: &[LeaseItem], shards: Shards) -> u64 {
        let (mut pages, mut last) = (0, None);
        for item in items {
            let Some(index) = self.pages.resolve(item.page) else { continue };
            let shard = item.shard(shards);
            let cell = self.pages.cell(index, shard);
            if cell.slot != item.slot || !cell.has(FILLED) {
                continue;
            }
            self.lose_slot(index, shard);
            pages += u64::from(last.replace(item.page) != Some(item.page));
        }
        pages
    }
}
