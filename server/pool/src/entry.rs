//! One page of the index. Owns: the layout of an entry and what its bits mean. Must not know: lists, tables, slots.
//!
//! A page's shards are cells. The state of one cell:
//!
//! ```text
//!            grant              commit              written
//!   (empty) ------> granted ------> FILLED|DIRTY ------> FILLED|ON_NVME
//!                      | abort, expiry                     | demote    ^ promoted
//!                      v                                   v           |
//!                   (empty)                             ON_NVME --> ON_NVME|PROMOTING
//! ```
//! `WRITING` accompanies `DIRTY` while a write is in flight. Without an NVMe tier a cell stays plain `FILLED`.

use crate::ids::NvmePlace;
use crate::policy::ListId;
use turnkv_proto::BlockHash;

/// No entry, slot or slab.
pub(crate) const NONE: u32 = u32::MAX;

/// The slot holds the page's bytes.
pub(crate) const FILLED: u8 = 1;
/// A read from NVMe into the slot is in flight.
pub(crate) const PROMOTING: u8 = 2;
/// A write of the slot to NVMe is in flight.
pub(crate) const WRITING: u8 = 4;
/// `place` is valid.
pub(crate) const ON_NVME: u8 = 8;
/// The slot's bytes must be written before the slot may be given up.
pub(crate) const DIRTY: u8 = 16;
/// Of the page, in the entry's own cell: somebody was, or may have been, told that it and its ancestors are durable. It is
/// on NVMe as long as it is here.
pub(crate) const PROMISED: u8 = 32;
/// Likewise: some shards are committed, and others are waited for.
pub(crate) const UNFINISHED: u8 = 64;

/// Readers see the page: all shards are committed and its parent is visible.
pub(crate) const VISIBLE: u16 = 1;
/// Gone from the index; the entry waits for its reads and writes in flight.
pub(crate) const ZOMBIE: u16 = 2;
/// The page and all its ancestors are on NVMe.
pub(crate) const DURABLE: u16 = 4;
/// On NVMe alone, and the first to leave it.
pub(crate) const LEAVING: u16 = 8;
/// Superseded: first to go.
pub(crate) const VICTIM: u16 = 16;
/// In the DRAM list of its namespace.
pub(crate) const LISTED_DRAM: u16 = 32;
/// In the list of pages that are on NVMe only.
pub(crate) const LISTED_NVME: u16 = 64;
/// In the write queue.
pub(crate) const QUEUED: u16 = 128;
/// Among those of the write queue that go before all others.
pub(crate) const URGENT: u16 = 256;
/// Counted as a page of the DRAM tier.
pub(crate) const COUNTED_DRAM: u16 = 512;
/// Counted as a page of the NVMe tier.
pub(crate) const COUNTED_NVME: u16 = 1024;
/// The entry is in use.
pub(crate) const LIVE: u16 = 2048;
/// Found in its list while it could not go: out of the list until it can.
pub(crate) const PARKED: u16 = 4096;
/// About to be written elsewhere on NVMe: it keeps its place in its list, and its slots until it is written, used or given
/// up. If it is in DRAM for that only, it leaves it again at once.
pub(crate) const MOVING: u16 = 8192;
/// Parked although it could go: something else is to go first.
pub(crate) const ASIDE: u16 = 1 << 14;

/// Some protection holds the page: it gives way last.
pub(crate) const PROTECTED: u16 = 1 << 15;

/// No session has used a page yet.
pub(crate) const UNUSED: u16 = u16::MAX;

/// One shard of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) place: NvmePlace,
    checksum: [u32; 2],
    /// The slot; of a page with several shards, in the entry itself, the row of the side table.
    pub(crate) slot: u32,
    pub(crate) state: u8,
    /// Of the page, in the entry's own cell (the space would be padding): how often it was read.
    pub(crate) uses: u8,
    /// Likewise: tokens of a partial tail.
    pub(crate) tail_tokens: u16,
}

/// One page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) hash: BlockHash,
    pub(crate) parent: u32,
    pub(crate) first_child: u32,
    /// Next sibling; of a free entry, the next free one.
    pub(crate) next: u32,
    /// The sibling before; of the first one, the last.
    pub(crate) prev: u32,
    /// Neighbours in the policy's list.
    pub(crate) colder: u32,
    pub(crate) warmer: u32,
    pub(crate) generation: u32,
    /// The run of the learned policies that it waits in.
    pub(crate) run: u32,
    /// Pages from the root to here, this one included.
    pub(crate) depth: u32,
    /// An ancestor further up, so that any one is found in few links.
    pub(crate) jump: u32,
    pub(crate) cell: Cell,
    pub(crate) ns: u16,
    /// Stands for the session that uses it, if it is one alone.
    pub(crate) user: u16,
    /// Sessions whose list ends here; full, it stands for more.
    pub(crate) tips: u16,
    pub(crate) flags: u16,
}

const _: () = assert!(size_of::<Entry>() <= 104, "an entry is the price of a page");

impl Cell {
    /// A cell that holds nothing.
    pub(crate) const EMPTY: Cell = Cell {
        place: NvmePlace { segment: 0, generation: 0, block: 0 },
        checksum: [0; 2],
        slot: NONE,
        state: 0,
        uses: 0,
        tail_tokens: 0,
    };

    pub(crate) fn has(&self, bits: u8) -> bool {
        self.state & bits != 0
    }

    /// The shard's bytes are in the pool's keeping, somewhere.
    pub(crate) fn committed(&self) -> bool {
        self.has(FILLED | PROMOTING | ON_NVME)
    }

    /// A write lease fills the slot.
    pub(crate) fn granted(&self) -> bool {
        self.slot != NONE && !self.has(FILLED | PROMOTING)
    }

    pub(crate) fn checksum(&self) -> u64 {
        u64::from(self.checksum[0]) | u64::from(self.checksum[1]) << 32
    }

    pub(crate) fn set_checksum(&mut self, checksum: u64) {
        self.checksum = [checksum as u32, (checksum >> 32) as u32];
    }
}

impl Entry {
    /// An unused entry.
    pub(crate) const EMPTY: Entry = Entry {
        hash: BlockHash([0; 32]),
        parent: NONE,
        first_child: NONE,
        next: NONE,
        prev: NONE,
        colder: NONE,
        warmer: NONE,
        generation: 0,
        run: NONE,
        depth: 0,
        jump: NONE,
        cell: Cell::EMPTY,
        ns: 0,
        user: UNUSED,
        tips: 0,
        flags: 0,
    };

    pub(crate) fn has(&self, bits: u16) -> bool {
        self.flags & bits != 0
    }

    /// The list that it competes in.
    pub(crate) fn list(&self) -> Option<ListId> {
        match self.flags & (LISTED_DRAM | LISTED_NVME) {
            LISTED_DRAM => Some(ListId::Dram(self.ns)),
            LISTED_NVME => Some(ListId::Nvme),
            _ => None,
        }
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.first_child == NONE
    }
}
