//! ARC: pages read once and pages read again share the room; ghosts of both say whose share is too small.
//! Owns: its lists and their balance. Must not know: tiers.

use crate::eviction::policy::eviction_policy::{EvictionPolicy, row};
use crate::eviction::policy::ghosts::Ghosts;
use crate::index::arena::Pages;
use crate::index::list_id::{ListId, Position};
use crate::index::lists::PageList;
use crate::limits::GHOSTS_MIN;

/// Which list a page is in, as its mark says.
const ONCE: u32 = 0;
const AGAIN: u32 = 1;

/// The policy. `Entry::run` is a page's list.
#[derive(Default)]
pub(crate) struct ArcPolicy {
    lists: Vec<[PageList; 2]>,
    /// Pages that those read once should be, at most.
    once_wanted: f64,
    ghosts: [Ghosts<()>; 2],
}

impl ArcPolicy {
    fn pages_listed(&self) -> usize {
        self.lists.iter().flatten().map(|list| list.len as usize).sum()
    }

    /// The list of a page that comes: one that a ghost remembers is read again, and its list was too short.
    fn admit(&mut self, pages: &Pages, page: u32) -> u32 {
        let [once, again] = [self.ghosts[0].len() as f64, self.ghosts[1].len() as f64];
        let hash = &pages[page].hash;
        if self.ghosts[ONCE as usize].take(hash).is_some() {
            let wanted = self.once_wanted + (again / once.max(1.0)).max(1.0);
            self.once_wanted = wanted.min(self.pages_listed() as f64);
        } else if self.ghosts[AGAIN as usize].take(hash).is_some() {
            self.once_wanted = (self.once_wanted - (once / again.max(1.0)).max(1.0)).max(0.0);
        } else {
            return ONCE;
        }
        AGAIN
    }
}

impl EvictionPolicy for ArcPolicy {
    fn insert(&mut self, pages: &mut Pages, list: ListId, page: u32, at: Position) {
        if pages[page].run > AGAIN {
            pages[page].run = self.admit(pages, page);
        }
        let list = &mut row(&mut self.lists, list)[pages[page].run as usize];
        match at {
            Position::Hot => list.push_hot(pages, page),
            Position::Cold => list.push_cold(pages, page),
            Position::ColderThan(other) if pages[other].run == pages[page].run => {
                list.push_colder_than(pages, page, other);
            }
            Position::ColderThan(_) => list.push_hot(pages, page),
        }
    }

    fn touch(&mut self, pages: &mut Pages, page: u32) {
        let Some(list) = pages[page].list() else { return };
        let list = &mut row(&mut self.lists, list)[pages[page].run as usize];
        list.remove(pages, page);
        list.push_hot(pages, page);
    }

    fn remove(&mut self, pages: &mut Pages, list: ListId, page: u32) {
        row(&mut self.lists, list)[pages[page].run as usize].remove(pages, page);
    }

    fn victim(&mut self, _pages: &mut Pages, list: ListId) -> (Option<u32>, u64) {
        let wanted = self.once_wanted;
        let [once, again] = *row(&mut self.lists, list);
        let from_once = again.len == 0 || f64::from(once.len) > wanted;
        let first = if from_once { once } else { again };
        (first.coldest().or(again.coldest()).or(once.coldest()), 0)
    }

    fn order(&self, pages: &Pages, list: ListId) -> Vec<u32> {
        self.lists.get(list.row()).into_iter().flatten().flat_map(|list| list.pages(pages)).collect()
    }

    fn hit(&mut self, pages: &mut Pages, page: u32) {
        if pages[page].run != ONCE {
            return;
        }
        let list = pages[page].list();
        if let Some(list) = list {
            row(&mut self.lists, list)[ONCE as usize].remove(pages, page);
        }
        pages[page].run = AGAIN;
        if let Some(list) = list {
            row(&mut self.lists, list)[AGAIN as usize].push_hot(pages, page);
        }
    }

    fn gone(&mut self, pages: &mut Pages, page: u32) {
        let max = self.pages_listed().max(GHOSTS_MIN);
        if let Some(ghosts) = self.ghosts.get_mut(pages[page].run as usize) {
            ghosts.insert(&pages[page].hash, (), max);
        }
    }
}
