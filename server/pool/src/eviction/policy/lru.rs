//! Least recently used. Owns: its lists. Must not know: tiers. Callers touch tails before heads, so a prefix
//! outlives its suffixes.

use crate::eviction::policy::eviction_policy::{EvictionPolicy, row};
use crate::index::arena::Pages;
use crate::index::list_id::{ListId, Position};
use crate::index::lists::PageList;

/// The lists: the one of NVMe first, then one a namespace.
#[derive(Default)]
pub(crate) struct Lru {
    lists: Vec<PageList>,
}

impl EvictionPolicy for Lru {
    fn insert(&mut self, pages: &mut Pages, list: ListId, page: u32, at: Position) {
        let list = row(&mut self.lists, list);
        match at {
            Position::Hot => list.push_hot(pages, page),
            Position::Cold => list.push_cold(pages, page),
            Position::ColderThan(other) => list.push_colder_than(pages, page, other),
        }
    }

    fn touch(&mut self, pages: &mut Pages, page: u32) {
        let Some(list) = pages[page].list().map(|list| row(&mut self.lists, list)) else { return };
        if list.hot != page {
            list.remove(pages, page);
            list.push_hot(pages, page);
        }
    }

    fn remove(&mut self, pages: &mut Pages, list: ListId, page: u32) {
        row(&mut self.lists, list).remove(pages, page);
    }

    fn victim(&mut self, _pages: &mut Pages, list: ListId) -> (Option<u32>, u64) {
        (row(&mut self.lists, list).coldest(), 0)
    }

    fn order(&self, pages: &Pages, list: ListId) -> Vec<u32> {
        self.lists.get(list.row()).map_or_else(Vec::new, |list| list.pages(pages).collect())
    }
}
