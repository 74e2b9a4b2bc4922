//! Paths: the way from the root to a page, told by its last page. Owns: how a path is cut, followed,
//! compared. Must not know: whose a path is.

use crate::ids::NONE;
use crate::index::arena::Pages;
use crate::index::path_end::PathEnd;
use turnkv_proto::BlockHash;

impl Pages {
    /// The pages of a path after the first so many, in order.
    pub(crate) fn between(&self, end: PathEnd, after: u32) -> Vec<u32> {
        let count = end.pages.saturating_sub(after) as usize;
        let mut some = Vec::with_capacity(count);
        some.extend(self.upward(end.page).take(count));
        some.reverse();
        some
    }

    /// The first so many pages of a path.
    pub(crate) fn cut(&self, end: PathEnd, keep: u32) -> PathEnd {
        debug_assert!(keep <= end.pages, "a path is cut to fewer pages than it has");
        PathEnd { page: self.ancestor(end.page, keep), pages: keep }
    }

    /// Leading pages that two paths share.
    pub(crate) fn shared(&self, one: PathEnd, two: PathEnd) -> u32 {
        self.depth(self.common(one.page, two.page))
    }

    /// The part of a path that ends at a page, if the page is on it.
    pub(crate) fn end_within(&self, path: PathEnd, page: u32) -> Option<PathEnd> {
        let pages = if page == NONE { 0 } else { self.depth(page) };
        (pages <= path.pages && self.ancestor(path.page, pages) == page).then_some(PathEnd { page, pages })
    }

    /// Follows the pages named, each the child of the one before, until one is not here.
    pub(crate) fn follow(&self, ns: u16, from: PathEnd, hashes: &[BlockHash]) -> PathEnd {
        let mut end = from;
        for hash in hashes {
            let found = self.find(ns, hash);
            let child = |index: &u32| self[*index].parent == end.page;
            let Some(index) = found.filter(child) else { break };
            end = PathEnd { page: index, pages: end.pages + 1 };
        }
        end
    }

    /// Where the visible part of a path ends: what is visible hangs on what is.
    pub(crate) fn visible_end(&self, end: PathEnd) -> PathEnd {
        let page = self.last_that(end.page, |entry| entry.is_visible());
        PathEnd { page, pages: self.depth(page) }
    }

    /// The entry of a page that readers can see.
    pub(crate) fn find_visible(&self, ns: u16, hash: &BlockHash) -> Option<u32> {
        self.find(ns, hash).filter(|index| self[*index].is_visible())
    }

    /// The partial tail that a path ends with, and its tokens.
    pub(crate) fn tail_of(&self, end: PathEnd) -> Option<(BlockHash, u32)> {
        let last = self.upward(end.page).next().map(|index| &self[index]);
        last.filter(|last| last.cell.tail_tokens() > 0).map(|last| (last.hash, last.cell.tail_tokens()))
    }

    /// The leading pages of a path that fill chunks of so many.
    pub(crate) fn whole_chunks(&self, end: PathEnd, chunk_pages: u32) -> PathEnd {
        self.cut(end, end.pages - end.pages % chunk_pages)
    }

    /// The hashes of the pages of a path after those of a shorter one, in order.
    pub(crate) fn hashes_between(&self, base: PathEnd, end: PathEnd) -> Vec<BlockHash> {
        let pages = self.upward(end.page).take((end.pages - base.pages) as usize);
        let mut hashes: Vec<BlockHash> = pages.map(|index| self[index].hash).collect();
        hashes.reverse();
        hashes
    }
}

#[cfg(test)]
mod tests;
