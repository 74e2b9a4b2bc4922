//! Least recently used. Owns: the ends of its lists. Must not know: tiers. Callers touch tails before heads, so a
//! prefix outlives its suffixes.

use crate::arena::Pages;
use crate::entry::NONE;
use crate::policy::{EvictionPolicy, ListId, Position};

#[derive(Clone, Copy)]
struct Ends {
    cold: u32,
    hot: u32,
}

/// The lists: the one of NVMe first, then one a namespace.
#[derive(Default)]
pub(crate) struct Lru {
    lists: Vec<Ends>,
}

impl Lru {
    fn ends(&mut self, list: ListId) -> &mut Ends {
        let at = number(list);
        if at >= self.lists.len() {
            self.lists.resize(at + 1, Ends { cold: NONE, hot: NONE });
        }
        &mut self.lists[at]
    }
}

impl EvictionPolicy for Lru {
    fn insert(&mut self, pages: &mut Pages, list: ListId, page: u32, at: Position) {
        let ends = self.ends(list);
        let (colder, warmer) = match at {
            Position::Hot => (ends.hot, NONE),
            Position::Cold => (NONE, ends.cold),
            Position::ColderThan(other) => (pages[other].colder, other),
        };
        (pages[page].colder, pages[page].warmer) = (colder, warmer);
        match colder {
            NONE => ends.cold = page,
            colder => pages[colder].warmer = page,
        }
        match warmer {
            NONE => ends.hot = page,
            warmer => pages[warmer].colder = page,
        }
    }

    fn touch(&mut self, pages: &mut Pages, list: ListId, page: u32) {
        if self.ends(list).hot != page {
            self.remove(pages, list, page);
            self.insert(pages, list, page, Position::Hot);
        }
    }

    fn remove(&mut self, pages: &mut Pages, list: ListId, page: u32) {
        let (colder, warmer) = (pages[page].colder, pages[page].warmer);
        let ends = self.ends(list);
        match colder {
            NONE => ends.cold = warmer,
            colder => pages[colder].warmer = warmer,
        }
        match warmer {
            NONE => ends.hot = colder,
            warmer => pages[warmer].colder = colder,
        }
        (pages[page].colder, pages[page].warmer) = (NONE, NONE);
    }

    fn victim(&self, list: ListId) -> Option<u32> {
        self.lists.get(number(list)).map(|ends| ends.cold).filter(|page| *page != NONE)
    }

    fn next_victim(&self, pages: &Pages, page: u32) -> Option<u32> {
        Some(pages[page].warmer).filter(|page| *page != NONE)
    }
}

fn number(list: ListId) -> usize {
    match list {
        ListId::Nvme => 0,
        ListId::Dram(ns) => 1 + usize::from(ns),
    }
}
