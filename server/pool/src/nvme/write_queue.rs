//! The write queue. Owns: which pages wait to be written, and in which order. Must not know: what is written, who
//! waits for it.

use crate::ids::PageKey;
use crate::index::flags::{PageMarks, QUEUED, URGENT};
use std::collections::VecDeque;

/// Pages to write, parents before children. Keys of pages that are gone or clean by now are skipped.
#[derive(Default)]
pub(crate) struct WriteQueue {
    pub(super) urgent: Lane,
    pub(super) usual: Lane,
}

/// Pages in the order in which they are written. Which of them are stale is found out by and by, from the
/// front on: those looked at stay in front of those that were not.
#[derive(Default)]
pub(super) struct Lane {
    sifted: VecDeque<PageKey>,
    rest: VecDeque<PageKey>,
}

impl Lane {
    fn len(&self) -> usize {
        self.sifted.len() + self.rest.len()
    }

    fn front(&self) -> Option<PageKey> {
        self.sifted.front().or(self.rest.front()).copied()
    }

    /// A page comes after all others.
    pub(super) fn push(&mut self, page: PageKey) {
        self.rest.push_back(page);
    }

    /// A page comes before all others.
    pub(super) fn push_front(&mut self, page: PageKey) {
        self.sifted.push_front(page);
    }

    fn pop(&mut self) {
        if self.sifted.pop_front().is_none() {
            self.rest.pop_front();
        }
    }

    /// Looks at the next entry, which stays if it is needed; after the last one begins anew.
    pub(super) fn sift(&mut self, is_needed: impl Fn(PageKey) -> bool) {
        if self.rest.is_empty() {
            std::mem::swap(&mut self.rest, &mut self.sifted);
        }
        self.sifted.extend(self.rest.pop_front().filter(|page| is_needed(*page)));
    }
}

impl WriteQueue {
    pub(super) fn len(&self) -> usize {
        self.urgent.len() + self.usual.len()
    }

    pub(super) fn bytes(&self) -> usize {
        let lanes = [&self.urgent.sifted, &self.urgent.rest, &self.usual.sifted, &self.usual.rest];
        lanes.iter().map(|lane| lane.capacity()).sum::<usize>() * size_of::<PageKey>()
    }

    /// The page to write next, and the mark of its lane.
    pub(super) fn front(&self) -> Option<(PageKey, PageMarks)> {
        let urgent = self.urgent.front().map(|page| (page, URGENT));
        urgent.or_else(|| Some((self.usual.front()?, QUEUED)))
    }

    /// The first page is not to be written any more, or is written.
    pub(super) fn pop(&mut self) {
        if self.urgent.len() > 0 { self.urgent.pop() } else { self.usual.pop() }
    }
}

#[cfg(test)]
mod tests;
