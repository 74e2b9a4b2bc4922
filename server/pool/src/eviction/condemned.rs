//! Pages that are to go with all that hangs on them. Owns: what is still to go, and where the walk through it is.
//! Must not know: why they go, and how.

use crate::ids::PageKey;
use crate::index::sweep::SubtreeWalk;
use crate::limits::CONDEMNED_MAX;
use std::collections::VecDeque;

/// Pages to go, the first of them under way.
#[derive(Default)]
pub(crate) struct Condemned {
    tops: VecDeque<PageKey>,
    walk: Option<SubtreeWalk>,
}

impl Condemned {
    /// One more page is to go, where not too many are already.
    pub(crate) fn push(&mut self, top: PageKey) {
        if self.tops.len() < CONDEMNED_MAX {
            self.tops.push_back(top);
        }
    }

    /// The page that goes now, and how far its removal came.
    pub(crate) fn front(&mut self) -> Option<(PageKey, Option<SubtreeWalk>)> {
        let top = self.tops.front().copied()?;
        Some((top, self.walk.take().filter(|walk| walk.top == top)))
    }

    /// The removal of the first page goes on another time.
    pub(crate) fn pause(&mut self, walk: Option<SubtreeWalk>) {
        self.walk = walk;
    }

    /// The first page is gone.
    pub(crate) fn pop(&mut self) {
        self.tops.pop_front();
    }

    /// Pages to go.
    pub(crate) fn len(&self) -> usize {
        self.tops.len()
    }
}
