//! Tips: the pages at which lists end, be they sessions' or protected prefixes. Owns: which lists end at one
//! page together, and where they end once that page is gone. Must not know: whose the lists are, why a page
//! goes.
//!
//! The index is a tree of prefixes, so a list of pages is named by its last one and costs the same however
//! long it is. A page leaves the index only when nothing hangs on it; lists that end there end at the page
//! before it from then on. Those that end at one page share one tip, and two tips that meet are joined for
//! ever (a forest, by rank): a page that goes costs the same however many lists end at it.

use crate::ids::NONE;
use crate::index::path_end::PathEnd;
use hashbrown::HashMap;

/// One list's hold on a tip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TipId(u32);

/// What keeps a tip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TipKeeper {
    /// A session's list: it keeps the page from being superseded.
    Session,
    /// A protected prefix.
    Protection,
    /// A branch that a session left.
    Branch,
}

/// A page at which lists end; or, once it met another one, where to ask instead.
#[derive(Clone, Copy, Debug)]
struct Tip {
    end: PathEnd,
    /// Sessions of this tip and of all that joined it.
    sessions: u32,
    /// Lists that hold this very tip, and tips that joined it.
    held: u32,
    /// The tip that this one joined.
    joined: u32,
    /// Joins below it, in levels.
    rank: u8,
}

/// All tips.
#[derive(Default)]
pub(crate) struct Tips {
    table: Vec<Tip>,
    free: Vec<u32>,
    by_page: HashMap<u32, u32>,
}

impl Tips {
    /// One more list ends here. The end is that of a page.
    pub(crate) fn add(&mut self, end: PathEnd, keeper: TipKeeper) -> TipId {
        debug_assert!(end.page != NONE, "an empty list has no tip");
        let at = self.by_page.get(&end.page).copied().unwrap_or_else(|| self.insert(end));
        let tip = &mut self.table[at as usize];
        tip.held += 1;
        tip.sessions += u32::from(keeper == TipKeeper::Session);
        TipId(at)
    }

    /// A list does not end here any more.
    pub(crate) fn drop(&mut self, id: TipId, keeper: TipKeeper) {
        let top = self.top(id.0);
        self.table[top as usize].sessions -= u32::from(keeper == TipKeeper::Session);
        let mut at = id.0;
        while at != NONE {
            let tip = &mut self.table[at as usize];
            tip.held -= 1;
            if tip.held > 0 {
                return;
            }
            let (joined, page) = (tip.joined, tip.end.page);
            if joined == NONE && page != NONE {
                self.by_page.remove(&page);
            }
            self.free.push(at);
            at = joined;
        }
    }

    /// Where the list ends now.
    pub(crate) fn end(&self, id: TipId) -> PathEnd {
        self.table[self.top(id.0) as usize].end
    }

    /// Sessions that end at a page.
    pub(super) fn sessions_at(&self, page: u32) -> u32 {
        self.by_page.get(&page).map_or(0, |at| self.table[*at as usize].sessions)
    }

    /// A page goes: what ended there ends at the page before it (`NONE`: nowhere).
    pub(super) fn lift(&mut self, page: u32, parent: u32) {
        let Some(at) = self.by_page.remove(&page) else { return };
        let end = &mut self.table[at as usize].end;
        *end = if parent == NONE { PathEnd::EMPTY } else { PathEnd { page: parent, pages: end.pages - 1 } };
        if parent == NONE {
            return;
        }
        let top = match self.by_page.get(&parent).copied() {
            Some(other) => self.join(at, other),
            None => at,
        };
        self.by_page.insert(parent, top);
    }

    /// Tips in use.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.len() - self.free.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.table.capacity() * size_of::<Tip>()
            + self.free.capacity() * size_of::<u32>()
            + self.by_page.allocation_size()
    }

    /// Checks the forest; `lists` of them hold a tip.
    pub(crate) fn check(&self, lists: usize) -> Result<(), String> {
        let mut held = vec![0; self.table.len()];
        let live = |at: &u32| self.table[*at as usize].held > 0;
        for at in (0..self.table.len() as u32).filter(live) {
            let tip = &self.table[at as usize];
            if tip.joined != NONE {
                held[tip.joined as usize] += 1;
            } else if tip.end.page != NONE && self.by_page.get(&tip.end.page) != Some(&at) {
                return Err(format!("tip {at} is lost from its page"));
            }
        }
        let joins: u32 = held.iter().sum();
        let holds: u32 = self.table.iter().map(|tip| tip.held).sum();
        if (holds - joins) as usize != lists {
            return Err(format!("{lists} lists hold tips, {} counted", holds - joins));
        }
        let pages = self.by_page.iter().all(|(page, at)| {
            let tip = &self.table[*at as usize];
            tip.held > 0 && tip.joined == NONE && tip.end.page == *page
        });
        if pages { Ok(()) } else { Err("a page has a tip that ends elsewhere".to_owned()) }
    }

    fn insert(&mut self, end: PathEnd) -> u32 {
        let tip = Tip { end, sessions: 0, held: 0, joined: NONE, rank: 0 };
        let at = self.free.pop().unwrap_or_else(|| {
            self.table.push(tip);
            self.table.len() as u32 - 1
        });
        self.table[at as usize] = tip;
        self.by_page.insert(end.page, at);
        at
    }

    /// Joins two tips of one page. By rank, so that no list is more than a few steps from its end.
    fn join(&mut self, one: u32, two: u32) -> u32 {
        let (top, below) = match self.table[one as usize].rank > self.table[two as usize].rank {
            true => (one, two),
            false => (two, one),
        };
        let joined = self.table[below as usize];
        debug_assert_eq!(joined.end, self.table[top as usize].end, "they meet at one page");
        self.table[below as usize].joined = top;
        let tip = &mut self.table[top as usize];
        tip.sessions += joined.sessions;
        tip.held += 1;
        tip.rank = tip.rank.max(joined.rank + 1);
        top
    }

    fn top(&self, mut at: u32) -> u32 {
        while self.table[at as usize].joined != NONE {
            at = self.table[at as usize].joined;
        }
        at
    }
}

#[cfg(test)]
mod tests;
