//! Write-behind: which pages go to NVMe next, and what became of them.
//! Owns: when a write begins, and what follows its end. Must not know: who waits for a write; segments, files.

use crate::ids::{NONE, NamespaceIndex, Now, NvmePlace, PageKey, SlotKey};
use crate::index::flags::{DIRTY, FILLED, MOVING, ON_NVME, WRITING};
use crate::index::list_id::Position;
use crate::limits::LEAVING_PER_WRITE_MAX;
use crate::namespaces::table::Namespaces;
use crate::store::Store;
use turnkv_proto::{BlockHash, NamespaceId};

/// A write to start: a slot's bytes to NVMe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteBehind {
    /// The page.
    pub page: PageKey,
    /// Which shard of it.
    pub shard: u16,
    /// Shards of a page in this namespace.
    pub shards: u16,
    /// Its namespace in this pool.
    pub ns: NamespaceIndex,
    /// Its namespace everywhere.
    pub namespace: NamespaceId,
    /// Its hash.
    pub hash: BlockHash,
    /// The page before it.
    pub parent: Option<BlockHash>,
    /// Where its bytes are; pinned until `written` or `write_failed`.
    pub slot: SlotKey,
    /// Bytes of the shard.
    pub bytes: u64,
    /// CRC-64/NVME of its bytes.
    pub checksum: u64,
    /// Above 0: a partial tail of so many tokens.
    pub tail_tokens: u32,
    /// It is on NVMe already and moves: reclaim asked for it.
    pub moves: bool,
}

impl Store {
    /// Takes writes from the queue, parents before children, while they fit `bytes_max`, and as many as one
    /// call may: ask again while there are any.
    pub(crate) fn next_writes(
        &mut self,
        namespaces: &Namespaces,
        bytes_max: u64,
        now: Now,
    ) -> Vec<WriteBehind> {
        self.tick(now);
        let slice = self.call.slice();
        self.catch_up();
        let mut writes = Vec::new();
        let mut left = bytes_max;
        while let Some((key, lane)) = self.nvme.first_write().filter(|_| !self.call.is_over(slice)) {
            self.call.step();
            let Some(index) = self.pages.resolve(key) else {
                self.nvme.pop_write();
                continue;
            };
            for shard in 0..self.pages.shards(index) {
                if !self.pages.is_writable(index, shard) {
                    continue;
                }
                let bytes = self.shard_bytes(index);
                let alone = self.tally.writing == 0 && bytes_max > 0;
                if bytes > left && !alone {
                    return writes;
                }
                left = left.saturating_sub(bytes);
                self.call.step();
                writes.push(self.start_write(namespaces, index, shard));
            }
            self.nvme.pop_write();
            self.pages.set_waiting(index, lane, false);
        }
        writes
    }

    /// The write is done.
    pub(crate) fn written(&mut self, page: PageKey, shard: u16, place: NvmePlace, now: Now) -> bool {
        self.tick(now);
        let Some(index) = self.end_write(page, shard) else { return false };
        if !self.nvme.is_alive() || self.nvme.is_unwanted(&self.pages, index) {
            self.refresh(index, Position::Hot);
            return false;
        }
        if !self.pages.cell(index, shard).has(ON_NVME) {
            self.nvme.count_arrival(self.shard_bytes(index));
        }
        self.set_place(index, shard, place);
        self.clear_dirty(index, shard);
        self.tally.written += 1;
        let parent = self.pages[index].parent;
        self.refresh(index, Position::ColderThan(parent));
        self.settle_durable(index);
        let moved =
            self.pages[index].has(MOVING) && !self.pages.cells(index).iter().any(|cell| cell.has(DIRTY));
        if moved {
            self.end_move(index);
        }
        self.choose_leaving(LEAVING_PER_WRITE_MAX);
        true
    }

    /// The write failed: the page is dirty again, first in the queue.
    pub(crate) fn write_failed(&mut self, page: PageKey, shard: u16, now: Now) {
        self.tick(now);
        let Some(index) = self.end_write(page, shard) else { return };
        let dirty = self.pages.cell(index, shard).has(DIRTY);
        self.nvme.write_again(&mut self.pages, index, dirty);
        self.refresh(index, Position::Hot);
    }

    /// The bytes were not those of the page's checksum when they had been written: somebody else wrote to the
    /// slot after the commit.
    pub(crate) fn write_changed(&mut self, page: PageKey, shard: u16, now: Now) -> bool {
        self.tick(now);
        let index = self.end_write(page, shard);
        index.inspect(|index| self.lose_slot(*index, shard)).is_some()
    }

    /// A slot that was to be read does not hold the page's bytes any more.
    pub(crate) fn slot_changed(&mut self, page: PageKey, shard: u16, slot: SlotKey, now: Now) -> bool {
        self.tick(now);
        let index = self.pages.resolve(page).filter(|index| shard < self.pages.shards(*index));
        let held = |index: &u32| {
            let cell = self.pages.cell(*index, shard);
            cell.has(FILLED) && self.slots.key(cell.slot) == slot
        };
        let index = index.filter(held);
        index.inspect(|index| self.lose_slot(*index, shard)).is_some()
    }

    /// A slot's bytes are wrong: only NVMe's copy of the page counts, where there is one.
    pub(super) fn lose_slot(&mut self, index: u32, shard: u16) {
        let cell = self.pages.cell(index, shard);
        if cell.has(ON_NVME) && !cell.has(WRITING) {
            self.let_go(index, shard);
            self.pages.set_moving(index, false);
            self.refresh(index, Position::Hot);
        } else {
            self.condemn(index);
        }
    }

    fn start_write(&mut self, namespaces: &Namespaces, index: u32, shard: u16) -> WriteBehind {
        let cell = self.pages.begin_write(index, shard);
        let (slot, checksum, moves) = (cell.slot, cell.checksum(), cell.has(ON_NVME));
        self.slots.begin_io(slot);
        self.tally.writing += 1;
        let bytes = self.shard_bytes(index);
        self.tally.written_bytes += bytes;
        self.nvme.spend_budget(bytes);
        if moves {
            self.nvme.count_move(bytes);
        }
        let entry = &self.pages[index];
        let (ns, hash, tail_tokens) = (namespaces.index(entry.ns), entry.hash, entry.cell.tail_tokens());
        let parent = (entry.parent != NONE).then(|| self.pages[entry.parent].hash);
        let (page, shards) = (self.pages.key(index), self.pages.shards(index));
        let (namespace, slot) = (namespaces.id(ns), self.slots.key(slot));
        WriteBehind {
            page,
            shard,
            shards,
            ns,
            namespace,
            hash,
            parent,
            slot,
            bytes,
            checksum,
            tail_tokens,
            moves,
        }
    }

    /// A write ended. None: its page is gone, or no such write was in flight.
    fn end_write(&mut self, page: PageKey, shard: u16) -> Option<u32> {
        let index = self.pages.in_flight(page, shard, WRITING)?;
        self.tally.writing -= 1;
        self.end_io(index, shard, WRITING).then_some(index)
    }
}
