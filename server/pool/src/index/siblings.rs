//! Links between pages that hang on one page together. Owns: where they are. Must not know: entries, the order of siblings.
//!
//! Most pages are the only one that hangs on the page before them and need no links: these are in a table beside the
//! entries, for pages with siblings alone.

use crate::ids::NONE;
use crate::limits::CHUNK_ROWS;

/// The links of one page with siblings.
#[derive(Clone, Copy)]
pub(super) struct Links {
    /// Next sibling; of a free row, the next free one.
    pub(super) next: u32,
    /// The sibling before; of the first one, the last.
    pub(super) prev: u32,
}

/// The links of all pages with siblings, in chunks that never move.
pub(super) struct Siblings {
    chunks: Vec<Box<[Links]>>,
    free: u32,
}

impl Siblings {
    pub(super) fn new() -> Siblings {
        Siblings { chunks: Vec::new(), free: NONE }
    }

    pub(super) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK_ROWS * size_of::<Links>()
    }

    pub(super) fn row(&self, row: u32) -> &Links {
        &self.chunks[row as usize / CHUNK_ROWS][row as usize % CHUNK_ROWS]
    }

    pub(super) fn row_mut(&mut self, row: u32) -> &mut Links {
        &mut self.chunks[row as usize / CHUNK_ROWS][row as usize % CHUNK_ROWS]
    }

    pub(super) fn take(&mut self, links: Links) -> u32 {
        if self.free == NONE {
            let first = (self.chunks.len() * CHUNK_ROWS) as u32;
            let end = first + CHUNK_ROWS as u32;
            let next = |row: u32| if row + 1 == end { NONE } else { row + 1 };
            self.chunks.push((first..end).map(|row| Links { next: next(row), prev: NONE }).collect());
            self.free = first;
        }
        let row = self.free;
        self.free = std::mem::replace(self.row_mut(row), links).next;
        row
    }

    pub(super) fn give_back(&mut self, row: u32) {
        *self.row_mut(row) = Links { next: self.free, prev: NONE };
        self.free = row;
    }
}
