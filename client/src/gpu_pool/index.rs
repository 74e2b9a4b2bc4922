//! Which page is at which place of a GPU page pool. Owns: names, prefixes, pins, who gives way. Must not know: memory, devices,
//! clocks. Pure.
//!
//! A page that is used is used with all pages before it, so these are never older than it. Only leaves give way, the longest
//! unused first: so a conversation goes tail first, and a prefix that others share goes after all of them.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use turnkv_proto::BlockHash;

/// Parts of a page that hold bytes; none: all of it.
pub(super) type Filled = Option<Arc<[Range<usize>]>>;

#[derive(Debug)]
struct Entry {
    hash: BlockHash,
    /// The place of the page before it, if that is here.
    parent: Option<u32>,
    children: u32,
    pins: u32,
    /// When it was last used, in uses of the pool.
    used: u64,
    filled: Filled,
}

#[derive(Debug)]
pub(super) struct Index {
    places: Vec<Option<Entry>>,
    by_hash: HashMap<BlockHash, u32>,
    free: Vec<u32>,
    /// Pages that may give way: no page hangs on them, nobody looks at them. In the order in which they do.
    leaves: BTreeSet<(u64, u32)>,
    uses: u64,
    pub(super) evicted: u64,
}

impl Index {
    pub(super) fn new(places: u32) -> Index {
        Index {
            places: (0..places).map(|_| None).collect(),
            by_hash: HashMap::new(),
            free: (0..places).rev().collect(),
            leaves: BTreeSet::new(),
            uses: 0,
            evicted: 0,
        }
    }

    /// Pages that are here.
    pub(super) fn len(&self) -> usize {
        self.by_hash.len()
    }

    /// Pages that somebody looks at.
    pub(super) fn pinned(&self) -> usize {
        self.places.iter().flatten().filter(|entry| entry.pins > 0).count()
    }

    pub(super) fn find(&self, hash: &BlockHash) -> Option<u32> {
        self.by_hash.get(hash).copied()
    }

    /// The places of the leading pages that are here.
    pub(super) fn prefix(&self, hashes: &[BlockHash]) -> Vec<u32> {
        hashes.iter().map_while(|hash| self.find(hash)).collect()
    }

    pub(super) fn filled(&self, place: u32) -> Filled {
        self.places[place as usize].as_ref().and_then(|entry| entry.filled.clone())
    }

    /// Whether pages hang on it, or somebody looks at it: its bytes must stay as they are.
    pub(super) fn is_used(&self, place: u32) -> bool {
        self.places[place as usize].as_ref().is_some_and(|entry| entry.children > 0 || entry.pins > 0)
    }

    /// A page was used, and with it all before it.
    pub(super) fn touch(&mut self, place: u32) {
        self.uses += 1;
        self.set_used(place, self.uses);
    }

    /// A page's session will not come back: it gives way first, and all before it that nobody else uses.
    pub(super) fn retire(&mut self, place: u32) {
        let mut at = Some(place);
        // The page itself may have none hanging on it, those before it only the one we came from.
        let mut children_max = 0;
        while let Some(place) = at {
            let Some(entry) = &self.places[place as usize] else { return };
            if entry.children > children_max {
                return;
            }
            at = entry.parent;
            children_max = 1;
            self.change(place, |entry| entry.used = 0);
        }
    }

    /// A free place, made by letting a page go if need be; `None`: all are in use.
    pub(super) fn reserve(&mut self) -> Option<u32> {
        if let Some(place) = self.free.pop() {
            return Some(place);
        }
        let (_, place) = self.leaves.first().copied()?;
        self.remove(place);
        self.evicted += 1;
        self.free.pop()
    }

    /// A reserved place is not needed.
    pub(super) fn give_back(&mut self, place: u32) {
        debug_assert!(self.places[place as usize].is_none() && !self.free.contains(&place));
        self.free.push(place);
    }

    /// Names the page at a reserved place. False: it is here already, and the place is given back.
    pub(super) fn insert(
        &mut self,
        place: u32,
        hash: BlockHash,
        parent: Option<&BlockHash>,
        filled: Filled,
    ) -> bool {
        if self.by_hash.contains_key(&hash) {
            self.give_back(place);
            return false;
        }
        let parent = parent.and_then(|hash| self.find(hash));
        if let Some(parent) = parent {
            self.change(parent, |entry| entry.children += 1);
        }
        self.uses += 1;
        let entry = Entry { hash, parent, children: 0, pins: 0, used: self.uses, filled };
        self.places[place as usize] = Some(entry);
        self.by_hash.insert(hash, place);
        self.leaves.insert((self.uses, place));
        true
    }

    /// A page that nobody else uses is another one now: bytes were added to it.
    pub(super) fn rename(&mut self, place: u32, hash: BlockHash, filled: Filled) {
        debug_assert!(!self.is_used(place) && !self.by_hash.contains_key(&hash));
        if let Some(entry) = self.places[place as usize].as_mut() {
            self.by_hash.remove(&entry.hash);
            (entry.hash, entry.filled) = (hash, filled);
            self.by_hash.insert(hash, place);
        }
        self.touch(place);
    }

    /// Drops a page on which none hangs; its place is free.
    pub(super) fn remove(&mut self, place: u32) {
        let Some(entry) = self.places[place as usize].take() else { return };
        debug_assert!(entry.children == 0 && entry.pins == 0, "only leaves go");
        self.leaves.remove(&(entry.used, place));
        self.by_hash.remove(&entry.hash);
        if let Some(parent) = entry.parent {
            self.change(parent, |entry| entry.children -= 1);
        }
        self.free.push(place);
    }

    /// The name of the page before the one at a place.
    pub(super) fn parent(&self, place: u32) -> Option<BlockHash> {
        let parent = self.places[place as usize].as_ref()?.parent?;
        self.places[parent as usize].as_ref().map(|entry| entry.hash)
    }

    pub(super) fn pin(&mut self, place: u32) {
        self.change(place, |entry| entry.pins += 1);
    }

    pub(super) fn unpin(&mut self, place: u32) {
        self.change(place, |entry| entry.pins -= 1);
    }

    fn set_used(&mut self, place: u32, used: u64) {
        let mut at = Some(place);
        while let Some(place) = at {
            self.change(place, |entry| entry.used = used);
            at = self.places[place as usize].as_ref().and_then(|entry| entry.parent);
        }
    }

    /// Changes an entry, and its standing among the leaves with it.
    fn change(&mut self, place: u32, change: impl FnOnce(&mut Entry)) {
        let Some(entry) = self.places[place as usize].as_mut() else { return };
        self.leaves.remove(&(entry.used, place));
        change(entry);
        if entry.children == 0 && entry.pins == 0 {
            self.leaves.insert((entry.used, place));
        }
    }
}

#[cfg(test)]
impl Index {
    /// Checks what must always hold.
    pub(super) fn check(&self) {
        let mut children = vec![0u32; self.places.len()];
        for (place, entry) in self.places.iter().enumerate() {
            let Some(entry) = entry else { continue };
            assert_eq!(self.by_hash.get(&entry.hash), Some(&(place as u32)));
            let leaf = entry.children == 0 && entry.pins == 0;
            assert_eq!(self.leaves.contains(&(entry.used, place as u32)), leaf);
            if let Some(parent) = entry.parent {
                children[parent as usize] += 1;
                assert!(self.places[parent as usize].is_some(), "a page outlives the one before it");
            }
        }
        for (place, entry) in self.places.iter().enumerate() {
            assert_eq!(entry.as_ref().map_or(0, |entry| entry.children), children[place]);
            assert!(entry.is_none() || !self.free.contains(&(place as u32)));
        }
        assert_eq!(self.by_hash.len(), self.places.iter().flatten().count());
    }
}

#[cfg(test)]
mod tests;
