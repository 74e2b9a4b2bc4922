//! One page of the index. Owns: the layout of an entry. Must not know: what its state bits mean (`flags`),
//! tables, slots.

use crate::ids::{NONE, NvmePlace};
use crate::index::flags::{CellFlags, FILLED, Life, Line, ON_NVME, PROMOTING, PageFlags, PageMarks};
use crate::index::list_id::ListId;
use crate::limits::{NVME_BLOCK_BITS, PAGE_TOKENS_MAX};
use turnkv_proto::BlockHash;

/// Bits of a word.
#[derive(Clone, Copy)]
struct Bits {
    at: u32,
    max: u32,
}

/// Of a cell's word `place`: which 4 KiB block of the segment; then, of the page, in the entry's own cell (the space would
/// be padding): sessions that end there, and how often it was read.
const BLOCK: Bits = Bits::first(NVME_BLOCK_BITS);
const ENDS: Bits = BLOCK.next(2);
const USES: Bits = ENDS.next(7);
/// Of its word `state`: the state; then, likewise of the page: tokens of a partial tail, and who uses it.
const STATE: Bits = Bits::first(5);
const TAIL: Bits = STATE.next(12);
const USER: Bits = TAIL.next(15);

const _: () = assert!(PAGE_TOKENS_MAX - 1 <= TAIL.max, "a partial tail has fewer tokens than a page");
const _: () = assert!(CellFlags::ALL as u32 <= STATE.max, "a cell's state has its bits");

/// Sessions that a page can count whose list ends there: so many stand for more.
pub(crate) const ENDS_MAX: u32 = ENDS.max;
/// No session has used a page yet.
pub(crate) const UNUSED: u16 = USER.max as u16;

/// One shard of a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    segment: u16,
    generation: u16,
    place: u32,
    checksum: [u32; 2],
    /// The slot; of a page with several shards, in the entry itself, the row of the side table.
    pub(crate) slot: u32,
    state: u32,
}

/// One page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) hash: BlockHash,
    /// What it hangs on; of a free entry, the next free one.
    pub(crate) parent: u32,
    pub(crate) first_child: u32,
    /// Where the links to its siblings are; `NONE`: it has none.
    pub(super) siblings: u32,
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
    pub(in crate::index) flags: PageFlags,
}

const _: () = assert!(size_of::<Entry>() <= 96, "an entry is the price of a page");

impl Bits {
    const fn first(bits: u32) -> Bits {
        Bits { at: 0, max: (1 << bits) - 1 }
    }

    /// So many bits after these.
    const fn next(self, bits: u32) -> Bits {
        let at = self.at + self.max.count_ones();
        assert!(at + bits <= u32::BITS, "they fit the word");
        Bits { at, max: (1 << bits) - 1 }
    }

    fn get(self, word: u32) -> u32 {
        word >> self.at & self.max
    }

    fn put(self, word: &mut u32, value: u32) {
        debug_assert!(value <= self.max, "callers keep to the bound");
        *word = *word & !(self.max << self.at) | (value & self.max) << self.at;
    }
}

impl Cell {
    /// A cell that holds nothing.
    pub(crate) const EMPTY: Cell = Cell {
        segment: 0,
        generation: 0,
        place: 0,
        checksum: [0; 2],
        slot: NONE,
        state: (UNUSED as u32) << USER.at,
    };

    /// Whether any of these bits is set.
    pub(crate) fn has(&self, any: CellFlags) -> bool {
        self.state & any.word() != 0
    }

    pub(in crate::index) fn set(&mut self, bits: CellFlags) {
        self.state |= bits.word();
    }

    pub(in crate::index) fn clear(&mut self, bits: CellFlags) {
        self.state &= !bits.word();
    }

    /// Where the shard is on NVMe, if it is there.
    pub(crate) fn place(&self) -> NvmePlace {
        NvmePlace { segment: self.segment, generation: self.generation, block: BLOCK.get(self.place) }
    }

    pub(in crate::index) fn set_place(&mut self, place: NvmePlace) {
        assert!(place.block <= BLOCK.max, "a segment has no more blocks");
        (self.segment, self.generation) = (place.segment, place.generation);
        BLOCK.put(&mut self.place, place.block);
    }

    /// Of a page: sessions whose list ends there; as many as it can count stands for more.
    pub(crate) fn ends(&self) -> u32 {
        ENDS.get(self.place)
    }

    pub(in crate::index) fn set_ends(&mut self, sessions: u32) {
        ENDS.put(&mut self.place, sessions.min(ENDS_MAX));
    }

    /// Of a page: how often it was read, as far as anybody tells apart.
    pub(crate) fn uses(&self) -> u8 {
        USES.get(self.place) as u8
    }

    pub(crate) fn set_uses(&mut self, uses: u8) {
        USES.put(&mut self.place, u32::from(uses).min(USES.max));
    }

    /// Of a page: tokens of a partial tail; 0: it is a full one.
    pub(crate) fn tail_tokens(&self) -> u32 {
        TAIL.get(self.state)
    }

    pub(in crate::index) fn set_tail_tokens(&mut self, tokens: u32) {
        TAIL.put(&mut self.state, tokens);
    }

    /// Of a page: stands for the session that uses it, if it is one alone.
    pub(crate) fn user(&self) -> u16 {
        USER.get(self.state) as u16
    }

    pub(crate) fn set_user(&mut self, user: u16) {
        USER.put(&mut self.state, u32::from(user));
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
        siblings: NONE,
        colder: NONE,
        warmer: NONE,
        generation: 0,
        run: NONE,
        depth: 0,
        jump: NONE,
        cell: Cell::EMPTY,
        ns: 0,
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

#[cfg(test)]
mod tests;
