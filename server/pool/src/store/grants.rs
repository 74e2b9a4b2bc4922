//! Slots under leases: how they are filled and given up. Owns: these steps. Must not know: whose a lease is, and
//! what it is for.

use crate::ids::{ClientId, NONE};
use crate::index::flags::FILLED;
use crate::index::list_id::Position;
use crate::memory::leases::LeaseItem;
use crate::store::Store;
use crate::store::going::Search;
use turnkv_proto::{BlockHash, Shards};

impl Store {
    /// Adds an entry for a page that comes.
    pub(crate) fn insert(&mut self, ns: u16, hash: BlockHash, parent: u32) -> u32 {
        self.pages.insert(ns, hash, parent)
    }

    /// Tokens of a page that is a partial tail; 0: it is a full one.
    pub(crate) fn set_tail_tokens(&mut self, index: u32, tokens: u32) {
        self.pages.set_tail_tokens(index, tokens);
        for cell in self.pages.cells(index).iter().filter(|cell| cell.has(FILLED)) {
            self.slots.note_change(cell.slot);
        }
    }

    /// A lease holds a slot.
    pub(crate) fn lease(&mut self, slot: u32) {
        self.slots.lease(slot);
    }

    /// Takes a slot that a lease is to fill for a page's shard. None: there is none, and the page goes if that
    /// was all there would have been of it.
    pub(crate) fn grant(&mut self, index: u32, shard: u16) -> Option<u32> {
        let Some(slot) = self.allocate(index, None) else {
            self.prune(index, Search::NONE);
            return None;
        };
        self.pages.grant(index, shard, slot);
        self.slots.lease(slot);
        self.refresh(index, Position::Hot);
        Some(slot)
    }

    /// A reserved slot has the bytes of a page's shard.
    pub(crate) fn fill_reserved(&mut self, index: u32, shard: u16, slot: u32, checksum: u64) {
        self.slots.adopt(slot, index);
        self.pages.grant(index, shard, slot);
        self.pages.fill(index, shard, checksum);
        self.slots.note_change(slot);
        self.settle(index);
        self.await_shards(index);
    }

    /// Commits one shard of a page. False: it is gone, or the page before it is not committed.
    pub(crate) fn commit_shard(&mut self, item: &LeaseItem, shards: Shards, checksum: u64) -> bool {
        let Some(index) = self.pages.granted(item.page, item.shard(shards), item.slot) else { return false };
        let shard = item.shard(shards);
        let parent = self.pages[index].parent;
        if parent != NONE && !self.pages[parent].is_visible() && !self.pages.cell(parent, shard).committed() {
            return false;
        }
        self.pages.fill(index, shard, checksum);
        self.slots.note_change(item.slot);
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

    /// A client may write these slots from now on, as long as its lease on them lasts.
    pub(crate) fn note_writer(&mut self, items: &[LeaseItem], client: ClientId) {
        items.iter().for_each(|item| self.slots.note_writer(item.slot, client));
    }

    /// A client has these slots mapped once more from now on, or once less.
    pub(crate) fn map_slots(&mut self, items: &[LeaseItem], client: ClientId, mapped: bool) {
        items.iter().for_each(|item| self.slots.map(item.slot, client, mapped));
    }

    /// A slot that was reserved when its server ended is again.
    pub(crate) fn reserve_again(&mut self, slot: u32) {
        self.slots.reserve_again(slot);
    }

    /// The same for slots that were reserved for a lease whose slots are mapped.
    pub(crate) fn map_reserved(&mut self, slots: &[u32], client: ClientId) {
        slots.iter().for_each(|slot| self.slots.map(*slot, client, true));
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
