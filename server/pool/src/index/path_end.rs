//! The end of a path, which tells all of it: a page knows its way from the root. Owns: what an end says. Must
//! not know: pages.

use crate::ids::NONE;

/// Where a path ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathEnd {
    /// The entry of its last page; `NONE`: the path is empty.
    pub(crate) page: u32,
    /// Pages from the root to there.
    pub(crate) pages: u32,
}

impl PathEnd {
    /// The end of a path without pages.
    pub(crate) const EMPTY: PathEnd = PathEnd { page: NONE, pages: 0 };
}
