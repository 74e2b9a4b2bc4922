//! Pages that go with all that hangs on them, bit by bit. Owns: the walk through what is still to go. Must not
//! know: why they go.
//!
//! Leaves go first, so the index stays prefix-closed between any two calls: until all that hangs on it is
//! gone, the page itself is still found, and whoever reads it is told what is wrong with it.

use crate::call::Slice;
use crate::ids::{NONE, PageKey};
use crate::index::sweep::SubtreeWalk;
use crate::limits::LEAF_WALK_MAX;
use crate::store::Store;
use crate::store::going::{Removal, Search};

impl Store {
    /// The page goes, with all that hangs on it: as much as one call may now, the rest in the calls that
    /// follow.
    pub(super) fn condemn(&mut self, index: u32) {
        self.condemned.push(self.pages.key(index));
        let slice = self.call.rest();
        self.remove_condemned(slice);
    }

    /// Goes on with what is condemned. True: nothing is left of it.
    pub(crate) fn remove_condemned(&mut self, slice: Slice) -> bool {
        while let Some((top, mut walk)) = self.condemned.front() {
            if !self.remove_some(top, &mut walk, Removal::Dropped, slice, Search::NONE) {
                self.condemned.pause(walk);
                return false;
            }
            self.condemned.pop();
        }
        true
    }

    /// Removes what hangs on a page, leaves first, then the page and parents that were only there for it.
    /// False: the slice is over; `walk` knows where to go on.
    pub(crate) fn remove_some(
        &mut self,
        top: PageKey,
        walk: &mut Option<SubtreeWalk>,
        removal: Removal,
        slice: Slice,
        search: Search,
    ) -> bool {
        let Some(top_index) = self.pages.resolve(top) else { return true };
        let mut index = walk.and_then(|walk| self.pages.resolve(walk.at)).unwrap_or(top_index);
        let parent = self.pages[top_index].parent;
        let mut passed = 0;
        loop {
            while !self.pages[index].is_leaf() && passed < LEAF_WALK_MAX {
                (index, passed) = (self.pages[index].first_child, passed + 1);
            }
            self.call.pass(std::mem::take(&mut passed));
            if self.call.is_over(slice) {
                *walk = Some(SubtreeWalk { top, at: self.pages.key(index) });
                return false;
            }
            if !self.pages[index].is_leaf() {
                continue;
            }
            let up = self.pages[index].parent;
            self.remove_leaf(index, removal, search);
            if index == top_index {
                break;
            }
            index = up;
        }
        if parent != NONE {
            self.prune(parent, search);
        }
        true
    }
}
