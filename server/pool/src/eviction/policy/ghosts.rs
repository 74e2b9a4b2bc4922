//! Pages that were evicted, remembered for a while. Owns: a bounded table from hash to a note. Must not know:
//! policies.

use hashbrown::HashMap;
use std::collections::VecDeque;
use turnkv_proto::BlockHash;

/// The notes, the oldest first to go.
pub(crate) struct Ghosts<T> {
    notes: HashMap<u64, (u64, T)>,
    order: VecDeque<(u64, u64)>,
    next: u64,
}

impl<T> Default for Ghosts<T> {
    fn default() -> Ghosts<T> {
        Ghosts { notes: HashMap::new(), order: VecDeque::new(), next: 0 }
    }
}

impl<T> Ghosts<T> {
    pub(crate) fn len(&self) -> usize {
        self.notes.len()
    }

    /// Remembers a page; of more than `max` the oldest are forgotten. Returns the notes that nobody will ask
    /// for.
    pub(crate) fn insert(&mut self, hash: &BlockHash, note: T, max: usize) -> Vec<T> {
        let key = key_of(hash);
        self.next += 1;
        let mut lost: Vec<T> =
            self.notes.insert(key, (self.next, note)).map(|(_, note)| note).into_iter().collect();
        self.order.push_back((key, self.next));
        while self.notes.len() > max || self.order.len() > 2 * max {
            let Some((key, number)) = self.order.pop_front() else { break };
            if self.notes.get(&key).is_some_and(|(newest, _)| *newest == number) {
                lost.extend(self.notes.remove(&key).map(|(_, note)| note));
            }
        }
        lost
    }

    /// The note on a page that is back.
    pub(crate) fn take(&mut self, hash: &BlockHash) -> Option<T> {
        self.notes.remove(&key_of(hash)).map(|(_, note)| note)
    }
}

/// Hashes are hashes already: eight bytes of one tell pages apart well enough for a hint.
fn key_of(hash: &BlockHash) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&hash.0[..8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests;
