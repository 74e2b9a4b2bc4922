//! Pages that wait to be written. Owns: the books' answers about them. Must not know: how they are written.

use crate::call::Call;
use crate::ids::PageKey;
use crate::index::arena::Pages;
use crate::index::flags::{DIRTY, PageMarks, QUEUED, URGENT};
use crate::limits::{SIFTED_PER_WRITE_MAX, WRITE_QUEUE_SLACK};
use crate::nvme::books::Nvme;

impl Nvme {
    /// A page with dirty bytes waits to be written, unless it does already.
    pub(crate) fn queue(&mut self, pages: &mut Pages, index: u32) {
        if !pages[index].has(QUEUED) {
            pages.set_waiting(index, QUEUED, true);
            self.writes.usual.push(pages.key(index));
            self.writes_ready = true;
        }
    }

    /// Writes a page before all that are not urgent.
    pub(crate) fn write_first(&mut self, pages: &mut Pages, call: &mut Call, index: u32) {
        if !pages[index].has(URGENT) {
            pages.set_waiting(index, URGENT, true);
            self.writes.urgent.push(pages.key(index));
        }
        self.writes_ready = true; // also if it waits already: somebody waits for it
        self.sift_writes(pages, call, SIFTED_PER_WRITE_MAX);
    }

    /// Keeps the queue's length within sight of the pages there are: a page is in each of its lanes once, so
    /// what is beyond that is stale.
    pub(crate) fn sift_writes(&mut self, pages: &Pages, call: &mut Call, looks: u64) {
        let enough = 2 * pages.len() as usize + WRITE_QUEUE_SLACK;
        let is_dirty = |key: PageKey| {
            let index = pages.resolve(key);
            index.is_some_and(|index| pages.cells(index).iter().any(|cell| cell.has(DIRTY)))
        };
        let mut looked = 0;
        while looked < looks && self.writes.len() > enough {
            looked += 1;
            self.writes.urgent.sift(is_dirty);
            self.writes.usual.sift(is_dirty);
        }
        call.pass(looked);
    }

    /// A page whose write failed waits before all others of its lane, if it is still to be written.
    pub(crate) fn write_again(&mut self, pages: &mut Pages, index: u32, dirty: bool) {
        let (mark, lane) = match pages[index].has(QUEUED) {
            true => (URGENT, &mut self.writes.urgent),
            false => (QUEUED, &mut self.writes.usual),
        };
        if dirty && !pages[index].has(mark) {
            pages.set_waiting(index, mark, true);
            lane.push_front(pages.key(index));
        }
    }

    /// The page to write next, and the mark of its lane.
    pub(crate) fn first_write(&self) -> Option<(PageKey, PageMarks)> {
        self.writes.front()
    }

    /// It need not wait any more.
    pub(crate) fn pop_write(&mut self) {
        self.writes.pop();
    }
}
