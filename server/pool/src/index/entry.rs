//! One page of the index. Owns: the layout of an entry. Must not know: what its state bits mean (`flags`),
//! tables, slots.

use crate::ids::{NONE, NvmePlace};
use crate::index::flags::{CellFlags, FILLED, Life, Line, ON_NVME, PROMOTING, PageFlags, PageMarks};
use crate::index::list_id::ListId;
use turnkv_proto::BlockHash;

/// No session has used a page yet.
pub(crate) const UNUSED: u16 = u16::MAX;

/// One shard of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) place: NvmePlace,
    checksum: [u32; 2],
    /// The slot; of a page with several shards, in the entry itself, the row of the side table.
    pub(crate) slot: u32,
    pub(in crate::index) state: CellFlags,
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
    pub(super) colder: u32,
    pub(super) warmer: u32,
    pub(super) generation: u32,
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
    pub(in crate::index) flags: PageFlags,
}

const _: () = assert!(size_of::<Entry>() <= 104, "an entry is the price of a page");

impl Cell {
    /// A cell that holds nothing.
    pub(crate) const EMPTY: Cell = Cell {
        place: NvmePlace { segment: 0, generation: 0, block: 0 },
        checksum: [0; 2],
        slot: NONE,
        state: CellFlags::EMPTY,
        uses: 0,
        tail_tokens: 0,
    };

    /// Whether any of these bits is set.
    pub(crate) fn has(&self, any: CellFlags) -> bool {
        self.state.has(any)
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

    pub(in crate::index) fn set_checksum(&mut self, checksum: u64) {
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
        flags: PageFlags::FREE,
    };

    /// Whether any of these marks is set.
    pub(crate) fn has(&self, any: PageMarks) -> bool {
        self.flags.has(any)
    }

    /// Whether readers see the page.
    pub(crate) fn is_visible(&self) -> bool {
        self.flags.is(Life::Visible)
    }

    /// Whether the page left the index, and its entry only waits for operations in flight.
    pub(crate) fn is_gone(&self) -> bool {
        self.flags.is(Life::Gone)
    }

    /// Whether the entry is a page's, be it gone.
    pub(crate) fn is_used(&self) -> bool {
        !self.flags.is(Life::Free)
    }

    /// Where the page stands among those that may be evicted.
    pub(crate) fn line(&self) -> Line {
        self.flags.line()
    }

    /// Whether the page is out of its list, because it cannot go or because it goes last.
    pub(crate) fn is_parked(&self) -> bool {
        matches!(self.flags.line(), Line::Parked | Line::Deferred)
    }

    /// The list that it competes in.
    pub(crate) fn list(&self) -> Option<ListId> {
        match self.flags.line() {
            Line::Dram => Some(ListId::Dram(self.ns)),
            Line::Nvme => Some(ListId::Nvme),
            Line::Out | Line::Parked | Line::Deferred => None,
        }
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.first_child == NONE
    }
}
