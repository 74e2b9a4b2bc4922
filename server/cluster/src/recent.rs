//! A map that forgets. Owns: two generations of entries. Must not know: what they are.

use hashbrown::HashMap;
use std::hash::Hash;

/// Entries of this generation and the last one. When this one is half of what there may be, or when it is told so, it becomes
/// the last one: what was in that and not put again is gone.
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    entries_max: usize,
}

impl<K: Hash + Eq, V> Recent<K, V> {
    pub(crate) fn new(entries_max: usize) -> Recent<K, V> {
        Recent { young: HashMap::new(), old: HashMap::new(), entries_max }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(crate) fn put(&mut self, key: K, value: V) {
        if self.young.len() >= self.entries_max / 2 && !self.young.contains_key(&key) {
            self.age();
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }

    /// Begins a generation.
    pub(crate) fn age(&mut self) {
        self.old = std::mem::take(&mut self.young);
    }

    pub(crate) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Bytes that the tables take.
    pub(crate) fn bytes(&self) -> usize {
        self.young.allocation_size() + self.old.allocation_size()
    }
}
