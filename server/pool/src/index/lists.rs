//! A list of pages linked through their entries. Owns: the links. Must not know: what its order means.

use crate::ids::NONE;
use crate::index::arena::Pages;

/// The ends of a list, and how many pages are in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageList {
    pub(super) cold: u32,
    pub(crate) hot: u32,
    pub(crate) len: u32,
}

impl Default for PageList {
    fn default() -> PageList {
        PageList { cold: NONE, hot: NONE, len: 0 }
    }
}

impl PageList {
    pub(crate) fn push_hot(&mut self, pages: &mut Pages, page: u32) {
        self.link(pages, page, self.hot, NONE);
    }

    pub(crate) fn push_cold(&mut self, pages: &mut Pages, page: u32) {
        self.link(pages, page, NONE, self.cold);
    }

    /// Puts a page just before another of the list.
    pub(crate) fn push_colder_than(&mut self, pages: &mut Pages, page: u32, other: u32) {
        self.link(pages, page, pages[other].colder, other);
    }

    pub(crate) fn remove(&mut self, pages: &mut Pages, page: u32) {
        let (colder, warmer) = (pages[page].colder, pages[page].warmer);
        match colder {
            NONE => self.cold = warmer,
            colder => pages[colder].warmer = warmer,
        }
        match warmer {
            NONE => self.hot = colder,
            warmer => pages[warmer].colder = colder,
        }
        (pages[page].colder, pages[page].warmer) = (NONE, NONE);
        self.len -= 1;
    }

    pub(crate) fn coldest(&self) -> Option<u32> {
        Some(self.cold).filter(|page| *page != NONE)
    }

    /// Its pages, the coldest first.
    pub(crate) fn pages<'a>(&self, pages: &'a Pages) -> impl Iterator<Item = u32> + use<'a> {
        let some = |page: u32| Some(page).filter(|page| *page != NONE);
        std::iter::successors(some(self.cold), move |page| some(pages[*page].warmer))
    }

    fn link(&mut self, pages: &mut Pages, page: u32, colder: u32, warmer: u32) {
        (pages[page].colder, pages[page].warmer) = (colder, warmer);
        match colder {
            NONE => self.cold = page,
            colder => pages[colder].warmer = page,
        }
        match warmer {
            NONE => self.hot = page,
            warmer => pages[warmer].colder = page,
        }
        self.len += 1;
    }
}
