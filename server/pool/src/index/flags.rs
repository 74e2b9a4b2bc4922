//! The state of a cell and of a page, packed into bits. Owns: which states there are, and how they are
//! packed. Must not know: when a state changes (`transitions` alone changes them), lists, slots.
//!
//! **A cell** is one shard of a page. `WRITING` accompanies `DIRTY` while a write is in flight. Without an
//! NVMe tier a cell stays plain `FILLED`.
//!
//! ```text
//!            grant              fill                written
//!   (empty) ------> granted ------> FILLED|DIRTY ------> FILLED|ON_NVME
//!                      | abort, expiry                     | demote    ^ promoted
//!                      v                                   v           |
//!                   (empty)                             ON_NVME --> ON_NVME|PROMOTING
//! ```
//!
//! **A page** has a life:
//!
//! ```text
//!         insert            settle: all shards committed, parent visible
//!   Free -------> Hidden ------------------------------------------------> Visible
//!     ^             |                                                         |
//!     |             \--------------------- remove_leaf -----------------------/
//!     |                                        v
//!     \-- release: no operation in flight --  Gone
//! ```
//! It waits in a line of those that may be evicted, or beside it:
//!
//! ```text
//!                 refresh                 park: it cannot go now            defer: it could go, but goes last
//!   Out <---------------------> Dram, Nvme ---------------------> Parked ---------------------------------> Deferred
//!                                   ^                              |  ^                                        |
//!                                   \--- unpark, used again -------/  \------------ end_deferral --------------/
//! ```
//! And it has marks, each for itself: `LEAVING` only of pages that are on NVMe alone and in no line,
//! `DURABLE` only of pages on NVMe whose parent is `DURABLE`, `UNFINISHED` only of hidden pages.

use std::ops::BitOr;

/// A set of a cell's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellFlags(u8);

/// The slot holds the page's bytes.
pub(crate) const FILLED: CellFlags = CellFlags(1);
/// A read from NVMe into the slot is in flight.
pub(crate) const PROMOTING: CellFlags = CellFlags(2);
/// A write of the slot to NVMe is in flight.
pub(crate) const WRITING: CellFlags = CellFlags(4);
/// The cell's place on NVMe is valid.
pub(crate) const ON_NVME: CellFlags = CellFlags(8);
/// The slot's bytes must be written before the slot may be given up.
pub(crate) const DIRTY: CellFlags = CellFlags(16);

/// A set of a page's marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageMarks(u16);

/// The page and all its ancestors are on NVMe.
pub(crate) const DURABLE: PageMarks = mark(0);
/// Somebody was, or may have been, told that the page and its ancestors are durable: it is on NVMe as long as
/// it is here.
pub(crate) const PROMISED: PageMarks = mark(1);
/// On NVMe alone, and the first to leave it.
pub(crate) const LEAVING: PageMarks = mark(2);
/// No session has the page any more: first to go.
pub(crate) const VICTIM: PageMarks = mark(3);
/// Among the usual writes of the write queue.
pub(crate) const QUEUED: PageMarks = mark(4);
/// Among the writes that go before all usual ones.
pub(crate) const URGENT: PageMarks = mark(5);
/// Counted as a page of the DRAM tier.
pub(crate) const COUNTED_DRAM: PageMarks = mark(6);
/// Counted as a page of the NVMe tier.
pub(crate) const COUNTED_NVME: PageMarks = mark(7);
/// About to be written elsewhere on NVMe: the page keeps its place in its line, and its slots until it is
/// written, used or given up. A page that is in DRAM for the move only leaves DRAM at once after it.
pub(crate) const MOVING: PageMarks = mark(8);
/// A pin or a session's priority holds the page: it gives way last.
pub(crate) const PROTECTED: PageMarks = mark(9);
/// Some shards are committed, and others are waited for.
pub(crate) const UNFINISHED: PageMarks = mark(10);

const LIFE_BITS: u32 = 2;
const LINE_BITS: u32 = 3;
const MARKS: u32 = 11;
const LIFE_MASK: u16 = (1 << LIFE_BITS) - 1;
const LINE_MASK: u16 = ((1 << LINE_BITS) - 1) << LIFE_BITS;

const _: () = assert!(LIFE_BITS + LINE_BITS + MARKS == u16::BITS, "a page's state fills 16 bits");

/// Whether there is a page, and who sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Life {
    /// The entry is unused.
    Free,
    /// Readers do not see the page: some shard, or a page before it, is not committed.
    Hidden,
    /// Readers see the page: all shards are committed and its parent is visible.
    Visible,
    /// Gone from the index; the entry waits for its reads and writes in flight.
    Gone,
}

/// Where a page stands among those that may be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Line {
    /// In no list.
    Out,
    /// In the DRAM list of its namespace.
    Dram,
    /// In the list of pages that are on NVMe only.
    Nvme,
    /// Found in its list while it could not go: out of the list until it can.
    Parked,
    /// Out of its list although it could go: something else is to go first.
    Deferred,
}

/// A page's life, its line and its marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageFlags(u16);

const fn mark(at: u32) -> PageMarks {
    assert!(at < MARKS, "a mark has a bit");
    PageMarks(1 << (at + LIFE_BITS + LINE_BITS))
}

impl BitOr for CellFlags {
    type Output = CellFlags;

    fn bitor(self, other: CellFlags) -> CellFlags {
        CellFlags(self.0 | other.0)
    }
}

impl BitOr for PageMarks {
    type Output = PageMarks;

    fn bitor(self, other: PageMarks) -> PageMarks {
        PageMarks(self.0 | other.0)
    }
}

impl CellFlags {
    /// All there are.
    pub(super) const ALL: u8 = 31;

    /// The bits where a cell has them.
    pub(super) fn word(self) -> u32 {
        u32::from(self.0)
    }
}

impl PageFlags {
    /// The state of an unused entry.
    pub(crate) const FREE: PageFlags = PageFlags(Life::Free as u16);
    /// The state of an entry that was just taken.
    pub(in crate::index) const NEW: PageFlags = PageFlags(Life::Hidden as u16);

    /// Whether any of these marks is set.
    pub(crate) fn has(self, any: PageMarks) -> bool {
        self.0 & any.0 != 0
    }

    /// Whether the page is in this stage of its life.
    pub(crate) fn is(self, life: Life) -> bool {
        self.0 & LIFE_MASK == life as u16
    }

    /// Where the page stands among those that may be evicted.
    pub(crate) fn line(self) -> Line {
        match (self.0 & LINE_MASK) >> LIFE_BITS {
            1 => Line::Dram,
            2 => Line::Nvme,
            3 => Line::Parked,
            4 => Line::Deferred,
            _ => Line::Out,
        }
    }

    pub(in crate::index) fn set(&mut self, marks: PageMarks) {
        self.0 |= marks.0;
    }

    pub(in crate::index) fn clear(&mut self, marks: PageMarks) {
        self.0 &= !marks.0;
    }

    pub(in crate::index) fn become_life(&mut self, life: Life) {
        self.0 = self.0 & !LIFE_MASK | life as u16;
    }

    pub(in crate::index) fn stand_in(&mut self, line: Line) {
        self.0 = self.0 & !LINE_MASK | (line as u16) << LIFE_BITS;
    }
}

#[cfg(test)]
mod tests;
