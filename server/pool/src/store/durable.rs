//! Durability: pages that somebody waits for until they are on NVMe, with all that they depend on. Owns:
//! which pages these are, found and hurried in parts that one call may take. Must not know: who waits;
//! segments, files.
//!
//! ```text
//!   FIND (from each page named up, to one known to be durable and promised) -> HURRY (from the roots down: promised, and
//!   written first) -> over
//! ```
//! A page found that goes meanwhile is told of like the others: whoever waits for it learns that it is lost.

use crate::ids::{NONE, PageKey};
use crate::index::flags::DURABLE;
use crate::limits::DURABLE_PAGES_PER_WRITE_MAX;
use crate::store::Store;
use std::collections::BTreeSet;

/// Pages that are to be on NVMe with their ancestors, as far as these are found.
#[derive(Debug)]
pub struct Durable {
    /// Pages named whose way up is still to be gone, the next one last.
    named: Vec<PageKey>,
    seen: BTreeSet<PageKey>,
    /// What was found, way after way, each from the root down but for the last, which is under way from `way`
    /// on.
    found: Vec<PageKey>,
    way: usize,
    /// The page that is next on it.
    next: Option<PageKey>,
    /// Pages found that were hurried, if all were found.
    hurried: Option<usize>,
}

impl Store {
    /// Begins to have pages written, with those they depend on: then `hurry_some` until it says so.
    pub(crate) fn begin_durable(&self, pages: &[PageKey]) -> Durable {
        let named = pages.iter().copied().filter(|page| self.pages.resolve(*page).is_some()).collect();
        let (seen, found) = (BTreeSet::new(), Vec::new());
        Durable { named, seen, found, way: 0, next: None, hurried: None }
    }

    /// Writes some more of these pages before all others.
    pub(crate) fn hurry_some(&mut self, durable: &mut Durable) -> (Vec<PageKey>, bool) {
        self.call.begin();
        let slice = self.call.slice();
        let mut missing = Vec::new();
        while !self.call.is_over(slice) {
            self.call.step();
            let Some(hurried) = durable.hurried else {
                self.find_next(durable);
                continue;
            };
            let Some(page) = durable.found.get(hurried).copied() else { return (missing, true) };
            durable.hurried = Some(hurried + 1);
            if self.hurry(page) {
                missing.push(page);
            }
        }
        (missing, false)
    }

    /// Whether all shards of the page are on NVMe.
    pub(crate) fn is_on_nvme(&self, page: PageKey) -> Option<bool> {
        let index = self.pages.resolve(page).filter(|index| !self.nvme.is_off(&self.pages, *index))?;
        Some(self.pages.is_written(index))
    }

    /// Goes one page further up.
    fn find_next(&self, durable: &mut Durable) {
        let index = durable.next.take().and_then(|page| self.pages.resolve(page));
        let fresh =
            index.filter(|index| !(self.pages[*index].has(DURABLE) && self.pages.is_promised(*index)));
        if let Some(index) = fresh.filter(|index| durable.seen.insert(self.pages.key(*index))) {
            durable.found.push(self.pages.key(index));
            let parent = self.pages[index].parent;
            durable.next = (parent != NONE).then(|| self.pages.key(parent));
        }
        if durable.next.is_some() {
            return;
        }
        durable.found[durable.way..].reverse();
        durable.way = durable.found.len();
        durable.next = durable.named.pop();
        if durable.next.is_none() {
            durable.hurried = Some(0);
        }
    }

    /// Has one page written first, whose parent was seen to. False: it is on NVMe.
    fn hurry(&mut self, page: PageKey) -> bool {
        let Some(index) = self.pages.resolve(page) else { return true };
        self.promise(index);
        if self.pages.is_written(index) {
            self.pages.mark_durable(index);
            return false;
        }
        let parent = self.pages[index].parent;
        if parent == NONE || !self.nvme.is_off(&self.pages, parent) {
            self.insist(index);
        }
        if (0..self.pages.shards(index)).any(|shard| self.pages.is_writable(index, shard)) {
            self.nvme.write_first(&mut self.pages, &mut self.call, index);
        }
        true
    }

    /// A page came to NVMe: it, and some of what hangs on it, may be durable now. What is not marked here is
    /// when somebody asks.
    pub(super) fn settle_durable(&mut self, index: u32) {
        let mut waiting = vec![index];
        for _ in 0..DURABLE_PAGES_PER_WRITE_MAX {
            let Some(index) = waiting.pop() else { return };
            self.call.step();
            if !self.pages.mark_durable(index) {
                continue;
            }
            let mut child = self.pages[index].first_child;
            while child != NONE && waiting.len() < DURABLE_PAGES_PER_WRITE_MAX {
                waiting.push(child);
                child = self.pages.next_sibling(child);
            }
        }
    }
}
