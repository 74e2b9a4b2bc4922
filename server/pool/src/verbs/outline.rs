//! What hangs on what: the pages of a namespace, or some of them, each with the page before it. Owns: the answers, in parts that one
//! call may take. Must not know: who wants them, pages' bytes.
//!
//! Between two parts pages may come and go: one that comes meanwhile may be passed, and none is told twice.

use crate::Pool;
use crate::ids::{NONE, NamespaceIndex};
use crate::index::sweep::Sweep;
use turnkv_proto::BlockHash;

/// A page, and what it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageOutline {
    /// Its name.
    pub hash: BlockHash,
    /// The page before it; none at the root.
    pub parent: Option<BlockHash>,
    /// Above 0: it is a partial tail of so many tokens.
    pub tail_tokens: u32,
}

/// The pages of a namespace that are being told.
#[derive(Default)]
pub struct Outlining {
    sweep: Sweep,
    pages: Vec<PageOutline>,
}

impl Outlining {
    /// The pages found, in no order.
    #[must_use]
    pub fn pages(self) -> Vec<PageOutline> {
        self.pages
    }

    /// How many were found so far.
    #[must_use]
    pub fn count(&self) -> usize {
        self.pages.len()
    }
}

impl Pool {
    /// Tells some more pages of a namespace that readers can see. True: that is all. One that has retired meanwhile has none.
    pub fn outline_some(&mut self, ns: NamespaceIndex, outlining: &mut Outlining) -> bool {
        self.store.call.begin();
        let slice = self.store.call.slice();
        if self.namespaces.desc(ns).is_err() {
            return true;
        }
        while outlining.sweep.at < self.store.pages().end() {
            let index = outlining.sweep.at;
            let entry = &self.store.pages()[index];
            if self.store.pages().is_live(index) && entry.ns == ns.0 && entry.is_visible() {
                outlining.pages.push(self.outline(index));
                self.store.call.step();
            }
            if !outlining.sweep.go_on(&mut self.store.call, slice) {
                return false;
            }
        }
        true
    }

    /// Tells the leading ones of these pages that readers can see. Ask for [`HASHES_PER_LOOK_MAX`] at a time where others wait.
    ///
    /// [`HASHES_PER_LOOK_MAX`]: crate::limits::HASHES_PER_LOOK_MAX
    pub fn outline_of(&mut self, ns: NamespaceIndex, hashes: &[BlockHash]) -> Vec<PageOutline> {
        self.store.call.begin();
        self.store.call.add(hashes.len() as u64);
        if self.namespaces.desc(ns).is_err() {
            return Vec::new();
        }
        let found = hashes.iter().map_while(|hash| self.store.pages().find_visible(ns.0, hash));
        found.map(|index| self.outline(index)).collect()
    }

    fn outline(&self, index: u32) -> PageOutline {
        let entry = &self.store.pages()[index];
        let parent = (entry.parent != NONE).then(|| self.store.pages()[entry.parent].hash);
        PageOutline { hash: entry.hash, parent, tail_tokens: entry.cell.tail_tokens() }
    }
}
