//! Write-behind: which pages go to NVMe next, and what became of them.
//! Owns: the write queue. Must not know: who waits for a write; segments, files.

use crate::call::Call;
use crate::ids::{NONE, NamespaceIndex, Now, NvmePlace, PageKey, SlotKey};
use crate::index::arena::Pages;
use crate::index::flags::{DIRTY, FILLED, MOVING, ON_NVME, PageMarks, QUEUED, URGENT, WRITING};
use crate::index::list_id::Position;
use crate::limits::{LEAVING_PER_WRITE_MAX, SIFTED_PER_WRITE_MAX, WRITE_QUEUE_SLACK};
use crate::namespaces::table::Namespaces;
use crate::nvme::Nvme;
use crate::store::Store;
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
    /// Its namespace in this store.
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
    urgent: Lane,
    usual: Lane,
}

/// Pages in the order in which they are written. Which of them are stale is found out by and by, from the
/// front on: those looked at stay in front of those that were not.
#[derive(Default)]
struct Lane {
    sifted: VecDeque<PageKey>,
    rest: VecDeque<PageKey>,
}

impl Lane {
    fn len(&self) -> usize {
        self.sifted.len() + self.rest.len()
    }

    fn front(&self) -> Option<PageKey> {
        self.sifted.front().or(self.rest.front()).copied()
    }

    fn pop(&mut self) {
        if self.sifted.pop_front().is_none() {
            self.rest.pop_front();
        }
    }

    /// Looks at the next entry, which stays if it is needed; after the last one begins anew.
    fn sift(&mut self, is_needed: impl Fn(PageKey) -> bool) {
        if self.rest.is_empty() {
            std::mem::swap(&mut self.rest, &mut self.sifted);
        }
        self.sifted.extend(self.rest.pop_front().filter(|page| is_needed(*page)));
    }
}

impl WriteQueue {
    pub(crate) fn len(&self) -> usize {
        self.urgent.len() + self.usual.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        let lanes = [&self.urgent.sifted, &self.urgent.rest, &self.usual.sifted, &self.usual.rest];
        lanes.iter().map(|lane| lane.capacity()).sum::<usize>() * size_of::<PageKey>()
    }

    /// The page to write next, and the mark of its lane.
    fn front(&self) -> Option<(PageKey, PageMarks)> {
        let urgent = self.urgent.front().map(|page| (page, URGENT));
        urgent.or_else(|| Some((self.usual.front()?, QUEUED)))
    }

    fn pop(&mut self) {
        if self.urgent.len() > 0 { self.urgent.pop() } else { self.usual.pop() }
    }
}

impl Nvme {
    /// A page with dirty bytes waits to be written, unless it does already.
    pub(crate) fn queue(&mut self, pages: &mut Pages, index: u32) {
        if !pages[index].has(QUEUED) {
            pages.set_waiting(index, QUEUED, true);
            self.writes.usual.rest.push_back(pages.key(index));
            self.writes_ready = true;
        }
    }

    /// Writes a page before all that are not urgent.
    pub(super) fn write_first(&mut self, pages: &mut Pages, call: &mut Call, index: u32) {
        if !pages[index].has(URGENT) {
            pages.set_waiting(index, URGENT, true);
            self.writes.urgent.rest.push_back(pages.key(index));
        }
        self.writes_ready = true; // also if it waits already: somebody waits for it
        self.sift_writes(pages, call, SIFTED_PER_WRITE_MAX);
    }

    /// Keeps the queue's length within sight of the pages there are: a page is in each of its lanes once, so
    /// what is beyond that is stale.
    pub(crate) fn sift_writes(&mut self, pages: &Pages, call: &mut Call, looks: u64) {
        let enough = 2 * pages.len() as usize + WRITE_QUEUE_SLACK;
        let is_dirty = |key: PageKey| {
            let index = pages.resolve(key);
            index.is_some_and(|index| pages.cells(index).iter().any(|cell| cell.has(DIRTY)))
        };
        let mut looked = 0;
        while looked < looks && self.writes.len() > enough {
            looked += 1;
            self.writes.urgent.sift(is_dirty);
            self.writes.usual.sift(is_dirty);
        }
        call.pass(looked);
    }
}

impl Store {
    /// Takes writes from the queue, parents before children, while they fit `bytes_max`, and as many as one
    /// call may: ask again while there are any. One that is larger than `bytes_max` is given out alone, when
    /// nothing is being written.
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
        while let Some((key, lane)) = self.nvme.writes.front().filter(|_| !self.call.is_over(slice)) {
            self.call.step();
            let Some(index) = self.pages.resolve(key) else {
                self.nvme.writes.pop();
                continue;
            };
            for shard in 0..self.pages.shards(index) {
                if !self.pages.is_writable(index, shard) {
                    continue;
                }
                let bytes = self.slots.shard_bytes_of(self.pages[index].ns);
                let alone = self.tally.writing == 0 && bytes_max > 0;
                if bytes > left && !alone {
                    return writes;
                }
                left = left.saturating_sub(bytes);
                self.call.step();
                writes.push(self.start_write(namespaces, index, shard));
            }
            self.nvme.writes.pop();
            self.pages.set_waiting(index, lane, false);
        }
        writes
    }

    /// The write is done. False: nobody needs the extent any more, forget it.
    pub(crate) fn written(&mut self, page: PageKey, shard: u16, place: NvmePlace, now: Now) -> bool {
        self.tick(now);
        let Some(index) = self.end_write(page, shard) else { return false };
        if !self.nvme.alive || self.nvme.is_unwanted(&self.pages, index) {
            self.refresh(index, Position::Hot);
            return false;
        }
        if !self.pages.cell(index, shard).has(ON_NVME) {
            self.nvme.count_arrival(self.slots.shard_bytes_of(self.pages[index].ns));
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
        let (mark, lane) = match self.pages[index].has(QUEUED) {
            true => (URGENT, &mut self.nvme.writes.urgent),
            false => (QUEUED, &mut self.nvme.writes.usual),
        };
        if dirty && !self.pages[index].has(mark) {
            self.pages.set_waiting(index, mark, true);
            lane.sifted.push_front(page);
        }
        self.refresh(index, Position::Hot);
    }

    /// The bytes were not those of the page's checksum when they had been written: somebody else wrote to the
    /// slot after the commit. The slot is given up, and with it the page, unless NVMe has an older copy of
    /// it. False: the page had gone already.
    pub(crate) fn write_changed(&mut self, page: PageKey, shard: u16, now: Now) -> bool {
        self.tick(now);
        let index = self.end_write(page, shard);
        index.inspect(|index| self.lose_slot(*index, shard)).is_some()
    }

    /// A slot that was to be read does not hold the page's bytes any more. False: the page had left it
    /// already.
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
    pub(crate) fn lose_slot(&mut self, index: u32, shard: u16) {
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
        let bytes = self.slots.shard_bytes_of(self.pages[index].ns);
        self.tally.written_bytes += bytes;
        self.nvme.spend_budget(bytes);
        if moves {
            self.nvme.count_move(bytes);
        }
        let entry = &self.pages[index];
        let (ns, hash, tail_tokens) =
            (namespaces.index(entry.ns), entry.hash, u32::from(entry.cell.tail_tokens));
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
