//! Entries in chunks that never move. Owns: their memory. Must not know: which entries are in use, and what for.

use crate::ids::NONE;
use crate::index::entry::Entry;
use crate::limits::CHUNK_PAGES;
use std::ops::{Index, IndexMut};

/// Entries, by number.
#[derive(Default)]
pub(crate) struct Chunks(Vec<Box<[Entry]>>);

impl Chunks {
    /// An entry, if there is one of that number.
    pub(in crate::index) fn get(&self, index: u32) -> Option<&Entry> {
        self.0.get(index as usize / CHUNK_PAGES).map(|chunk| &chunk[index as usize % CHUNK_PAGES])
    }

    /// One past the highest entry number.
    pub(in crate::index) fn end(&self) -> u32 {
        (self.0.len() * CHUNK_PAGES) as u32
    }

    pub(in crate::index) fn bytes(&self) -> usize {
        self.0.len() * CHUNK_PAGES * size_of::<Entry>()
    }

    /// Adds a chunk of free entries, each naming the next one. Returns the first.
    pub(in crate::index) fn grow(&mut self) -> u32 {
        let first = self.end();
        let mut chunk = vec![Entry::EMPTY; CHUNK_PAGES].into_boxed_slice();
        for (entry, next) in chunk.iter_mut().zip(first + 1..) {
            entry.parent = next;
        }
        if let Some(last) = chunk.last_mut() {
            last.parent = NONE;
        }
        self.0.push(chunk);
        first
    }
}

impl Index<u32> for Chunks {
    type Output = Entry;

    fn index(&self, index: u32) -> &Entry {
        &self.0[index as usize / CHUNK_PAGES][index as usize % CHUNK_PAGES]
    }
}

impl IndexMut<u32> for Chunks {
    fn index_mut(&mut self, index: u32) -> &mut Entry {
        &mut self.0[index as usize / CHUNK_PAGES][index as usize % CHUNK_PAGES]
    }
}
