//! Where walks through the index are between two calls. Owns: the place of a walk. Must not know: what a walk
//! is for.

use crate::call::{Call, Slice};
use crate::ids::PageKey;

/// How far the removal of one page came.
#[derive(Clone, Copy)]
pub(crate) struct SubtreeWalk {
    pub(crate) top: PageKey,
    /// A page of the path down from there.
    pub(crate) at: PageKey,
}

/// How far a walk is.
#[derive(Default)]
pub struct Sweep {
    /// The entry that comes next.
    pub(crate) at: u32,
    /// Within what hangs on it.
    pub(crate) walk: Option<SubtreeWalk>,
    /// Pages still to be looked at before the walk goes on.
    pub(crate) waiting: Vec<PageKey>,
    pub(crate) pages: u64,
}

impl Sweep {
    /// The walk is at the next entry. False: its slice is over.
    pub(crate) fn go_on(&mut self, call: &mut Call, slice: Slice) -> bool {
        self.at += 1;
        if self.at.is_multiple_of(crate::limits::PASSED_PER_STEP as u32) {
            call.step();
        }
        !call.is_over(slice)
    }

    /// Pages that it has changed so far.
    pub fn pages(&self) -> u64 {
        self.pages
    }
}
