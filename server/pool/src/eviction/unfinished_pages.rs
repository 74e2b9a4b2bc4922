//! Pages that wait for more of their shards. Owns: which pages do, and since when. Must not know: for how long they
//! may, which ranks there are.

use crate::call::Call;
use crate::ids::{Now, PageKey};
use crate::index::arena::Pages;
use crate::index::flags::UNFINISHED;
use std::collections::VecDeque;

/// Pages of which some shards are committed and that readers do not see, in the order in which that began;
/// some of the rows are whole by now, or gone.
#[derive(Default)]
pub(crate) struct Unfinished {
    rows: VecDeque<(PageKey, Now)>,
    pages: u64,
    /// Pages that went because they waited for too long, or for room, ever.
    dropped: u64,
}

impl Unfinished {
    /// A page waits for its shards from now on, or anew.
    pub(crate) fn push(&mut self, page: PageKey, now: Now) {
        self.rows.push_back((page, now));
    }

    /// The page that waits for longest, and since when; a row in front of it that waits no more goes.
    pub(crate) fn oldest(&mut self, pages: &Pages, call: &mut Call) -> Option<(u32, Now)> {
        loop {
            let (key, since) = *self.rows.front()?;
            let found = pages.resolve(key).filter(|index| pages[*index].has(UNFINISHED));
            if let Some(index) = found {
                return Some((index, since));
            }
            call.step();
            self.rows.pop_front();
        }
    }

    /// Takes the row of the page that waits for longest.
    pub(crate) fn pop(&mut self) {
        self.rows.pop_front();
    }

    /// One more page waits, or one fewer.
    pub(crate) fn count(&mut self, more: bool) {
        self.pages = if more { self.pages + 1 } else { self.pages - 1 };
    }

    /// A page went before it was whole, whatever made it go.
    pub(crate) fn count_dropped(&mut self) {
        self.dropped += 1;
    }

    /// Rows, those of pages that wait no more included.
    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Pages that wait, and pages that went before they were whole, ever.
    pub(crate) fn pages_and_dropped(&self) -> (u64, u64) {
        (self.pages, self.dropped)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.rows.capacity() * size_of::<(PageKey, Now)>()
    }
}
