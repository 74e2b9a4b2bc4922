//! Which bytes of a region somebody in this process has the right to write.
//!
//! Owns: that no two such rights overlap. Must not know: who has them, what a slot is.

use std::collections::BTreeMap;
use std::ops::Range;

use parking_lot::Mutex;

/// The rights of one mapping. There are never more than slots: none overlap, and none is empty.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Each by its first byte: the byte after its last.
    taken: Mutex<BTreeMap<usize, usize>>,
}

impl Claims {
    /// Takes the right to write these bytes; false if somebody has it for one of them.
    #[must_use]
    pub(crate) fn take(&self, bytes: Range<usize>) -> bool {
        let mut taken = self.taken.lock();
        // None overlap, so the last one that begins before our end is also the last one to end.
        let last = taken.range(..bytes.end).next_back();
        let free = last.is_none_or(|(_, end)| *end <= bytes.start);
        if free {
            taken.insert(bytes.start, bytes.end);
        }
        free
    }

    /// Gives the right back that begins at this byte.
    pub(crate) fn give_back(&self, from: usize) {
        let known = self.taken.lock().remove(&from);
        debug_assert!(known.is_some(), "a right is given back once");
    }
}

#[cfg(test)]
mod tests;
