//! Write-behind: which pages go to NVMe next, and what became of them.
//! Owns: the write queue and durability questions. Must not know: segments, files.

use crate::Pool;
use crate::entry::{DIRTY, DURABLE, FILLED, MOVING, NONE, ON_NVME, PROMOTING, QUEUED, WRITING};
use crate::ids::{NamespaceIndex, Now, NvmePlace, PageKey, SlotKey};
use crate::limits::{LEAVING_PER_WRITE_MAX, WRITE_QUEUE_SLACK};
use crate::policy::Position;
use hashbrown::HashSet;
use std::collections::VecDeque;
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

/// Pages to write, parents before children. Keys of pages that are gone or clean by now are skipped.
#[derive(Default)]
pub(crate) struct WriteQueue {
    urgent: VecDeque<PageKey>,
    usual: VecDeque<PageKey>,
}

impl WriteQueue {
    pub(crate) fn push_back(&mut self, page: PageKey) {
        self.usual.push_back(page);
    }

    pub(crate) fn len(&self) -> usize {
        self.urgent.len() + self.usual.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        (self.urgent.capacity() + self.usual.capacity()) * size_of::<PageKey>()
    }

    fn front(&self) -> Option<PageKey> {
        self.urgent.front().or(self.usual.front()).copied()
    }

    fn pop(&mut self) {
        if self.urgent.pop_front().is_none() {
            self.usual.pop_front();
        }
    }
}

impl Pool {
    /// Takes writes from the queue, parents before children, while they fit `bytes_max`. One that is larger than
    /// `bytes_max` is given out alone, when nothing is being written.
    pub fn next_writes(&mut self, bytes_max: u64, now: Now) -> Vec<WriteBehind> {
        self.tick(now);
        let mut writes = Vec::new();
        let mut left = bytes_max;
        while let Some(key) = self.writes.front() {
            let Some(index) = self.pages.resolve(key) else {
                self.writes.pop();
                continue;
            };
            for shard in 0..self.pages.shards(index) {
                if !self.is_writable(index, shard) {
                    continue;
                }
                let bytes = self.shard_bytes(index);
                let alone = self.tally.writing == 0 && bytes_max > 0;
                if bytes > left && !alone {
                    return writes;
                }
                left = left.saturating_sub(bytes);
                writes.push(self.start_write(index, shard));
            }
            self.writes.pop();
            self.pages[index].flags &= !QUEUED;
        }
        writes
    }

    /// The write is done. False: nobody needs the extent any more, forget it.
    pub fn written(&mut self, page: PageKey, shard: u16, place: NvmePlace, now: Now) -> bool {
        self.tick(now);
        let Some(index) = self.end_write(page, shard) else { return false };
        if !self.nvme_alive || self.is_unwanted(index) {
            self.refresh(index, Position::Hot);
            return false;
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
    pub fn write_failed(&mut self, page: PageKey, shard: u16, now: Now) {
        self.tick(now);
        let Some(index) = self.end_write(page, shard) else { return };
        let dirty = self.pages.cell(index, shard).has(DIRTY);
        if dirty && !self.pages[index].has(QUEUED) {
            self.pages[index].flags |= QUEUED;
            self.writes.usual.push_front(page);
        }
        self.refresh(index, Position::Hot);
    }

    /// The bytes were not those of the page's checksum when they had been written: somebody else wrote to the slot after the
    /// commit. The slot is given up, and with it the page, unless NVMe has an older copy of it.
    pub fn write_changed(&mut self, page: PageKey, shard: u16, now: Now) {
        self.tick(now);
        if let Some(index) = self.end_write(page, shard) {
            self.lose_slot(index, shard);
        }
    }

    /// A slot that was to be read does not hold the page's bytes any more.
    pub fn slot_changed(&mut self, page: PageKey, shard: u16, slot: SlotKey, now: Now) {
        self.tick(now);
        let index = self.pages.resolve(page).filter(|index| shard < self.pages.shards(*index));
        let Some(index) = index else { return };
        let cell = self.pages.cell(index, shard);
        if cell.has(FILLED) && self.slots.key(cell.slot) == slot {
            self.lose_slot(index, shard);
        }
    }

    /// A slot's bytes are wrong: only NVMe's copy of the page counts, where there is one.
    pub(crate) fn lose_slot(&mut self, index: u32, shard: u16) {
        let cell = self.pages.cell(index, shard);
        if cell.has(ON_NVME) && !cell.has(WRITING) {
            self.let_go(index, shard);
            self.pages[index].flags &= !MOVING;
            self.refresh(index, Position::Hot);
        } else {
            self.condemn(index);
        }
    }

    /// The pages named and their ancestors that are not on NVMe yet, parents first. Stale pages are left out.
    pub fn durable_chain(&self, pages: &[PageKey]) -> Vec<PageKey> {
        let mut chain = Vec::new();
        let mut seen = HashSet::new();
        for page in pages {
            let from = chain.len();
            let mut index = self.pages.resolve(*page).unwrap_or(NONE);
            while index != NONE && !self.pages[index].has(DURABLE) && seen.insert(index) {
                if !self.is_written(index) {
                    chain.push(self.pages.key(index));
                }
                index = self.pages[index].parent;
            }
            chain[from..].reverse();
        }
        chain
    }

    /// Whether all shards of the page are on NVMe. None: the page is gone, or stays off NVMe as things are.
    pub fn is_on_nvme(&self, page: PageKey) -> Option<bool> {
        let index = self.pages.resolve(page).filter(|index| !self.is_off(*index))?;
        Some(self.is_written(index))
    }

    /// Writes these pages, and those they depend on, before all others.
    pub fn make_urgent(&mut self, pages: &[PageKey]) {
        for key in self.durable_chain(pages) {
            let Some(index) = self.pages.resolve(key) else { continue };
            self.insist(index);
            if (0..self.pages.shards(index)).any(|shard| self.is_writable(index, shard)) {
                self.write_first(index);
            }
        }
    }

    /// Writes a page before all that are not urgent.
    pub(crate) fn write_first(&mut self, index: u32) {
        let key = self.pages.key(index);
        self.writes.urgent.push_back(key);
        self.compact_writes();
    }

    /// Keeps the queue's length within sight of the dirty pages.
    pub(crate) fn compact_writes(&mut self) {
        let dirty_pages = self.pages.len() as usize;
        if self.writes.len() <= 2 * dirty_pages + WRITE_QUEUE_SLACK {
            return;
        }
        let (pages, mut seen) = (&self.pages, HashSet::new());
        let dirty = |key: &PageKey| {
            let index = pages.resolve(*key);
            index.is_some_and(|index| pages.cells(index).iter().any(|cell| cell.has(DIRTY)))
        };
        self.writes.urgent.retain(|key| dirty(key) && seen.insert(*key));
        self.writes.usual.retain(dirty);
    }

    fn is_written(&self, index: u32) -> bool {
        self.pages.cells(index).iter().all(|cell| cell.has(ON_NVME))
    }

    fn is_writable(&self, index: u32, shard: u16) -> bool {
        let cell = self.pages.cell(index, shard);
        cell.has(DIRTY) && !cell.has(WRITING | PROMOTING)
    }

    fn start_write(&mut self, index: u32, shard: u16) -> WriteBehind {
        let cell = self.pages.cell_mut(index, shard);
        cell.state |= WRITING;
        let (slot, checksum, moves) = (cell.slot, cell.checksum(), cell.has(ON_NVME));
        self.slots.begin_io(slot);
        self.tally.writing += 1;
        let bytes = self.shard_bytes(index);
        self.spend_budget(bytes);
        self.count_rewrite(bytes, moves);
        let entry = &self.pages[index];
        let (ns, hash, tail_tokens) =
            (self.namespaces.index(entry.ns), entry.hash, u32::from(entry.cell.tail_tokens));
        let parent = (entry.parent != NONE).then(|| self.pages[entry.parent].hash);
        let (page, shards) = (self.pages.key(index), self.pages.shards(index));
        let (namespace, slot) = (self.namespaces.id(ns), self.slots.key(slot));
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
        let index = self.in_flight(page, shard, WRITING)?;
        self.tally.writing -= 1;
        self.end_io(index, shard, WRITING).then_some(index)
    }
}
