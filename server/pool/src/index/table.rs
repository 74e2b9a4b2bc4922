//! The hash table: (namespace, block hash) to entry.
//! Owns: the table. Must not know: what an entry means. It is split so that growing one part stays in the
//! milliseconds when the index holds millions of pages.

use crate::index::chunks::Chunks;
use crate::index::entry::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;
use turnkv_proto::BlockHash;

const PARTS: usize = 256;

/// The table.
pub(crate) struct Table {
    parts: Box<[HashTable<u32>]>,
    hasher: DefaultHashBuilder,
}

impl Table {
    pub(crate) fn new() -> Table {
        Table { parts: (0..PARTS).map(|_| HashTable::new()).collect(), hasher: DefaultHashBuilder::default() }
    }

    pub(crate) fn find(&self, chunks: &Chunks, ns: u16, hash: &BlockHash) -> Option<u32> {
        let code = code(&self.hasher, ns, hash);
        self.parts[part(code)].find(code, |&index| is(&chunks[index], ns, hash)).copied()
    }

    /// Adds an entry that is not in the table.
    pub(crate) fn insert(&mut self, chunks: &Chunks, index: u32) {
        let Table { parts, hasher } = self;
        let code_of = |index: &u32| code(hasher, chunks[*index].ns, &chunks[*index].hash);
        let code = code_of(&index);
        parts[part(code)].insert_unique(code, index, code_of);
    }

    pub(crate) fn remove(&mut self, chunks: &Chunks, index: u32) {
        let code = code(&self.hasher, chunks[index].ns, &chunks[index].hash);
        let found = self.parts[part(code)].find_entry(code, |&other| other == index);
        debug_assert!(found.is_ok(), "a live entry is in the table");
        if let Ok(found) = found {
            found.remove();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.parts.iter().map(HashTable::len).sum()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.allocation_size() + size_of::<HashTable<u32>>()).sum()
    }
}

fn code(hasher: &DefaultHashBuilder, ns: u16, hash: &BlockHash) -> u64 {
    hasher.hash_one((ns, hash.0))
}

/// The table itself uses the top and the bottom bits.
fn part(code: u64) -> usize {
    (code >> 40) as usize % PARTS
}

fn is(entry: &Entry, ns: u16, hash: &BlockHash) -> bool {
    entry.ns == ns && entry.hash == *hash
}
