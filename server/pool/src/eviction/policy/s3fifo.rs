//! S3-FIFO: a small queue for newcomers, a main one for what was read in it, ghosts of what left the small
//! one unread. Owns: its queues. Must not know: tiers. Pages stored in one turn enter with their tails first
//! to go.

use crate::eviction::policy::eviction_policy::{EvictionPolicy, row};
use crate::eviction::policy::ghosts::Ghosts;
use crate::index::arena::Pages;
use crate::index::list_id::{ListId, Position};
use crate::index::lists::PageList;
use crate::limits::{GHOSTS_MIN, POLICY_READS_MAX, VICTIM_MOVES_MAX};

/// Share of a list's pages that are newcomers, percent.
const SMALL_PERCENT: u64 = 10;
/// Which queue a page is in, as its mark says.
const SMALL: u32 = 0;
const MAIN: u32 = 1;

/// The policy. `Entry::run` is a page's queue, `Entry::uses` its reads since it entered it.
#[derive(Default)]
pub(crate) struct S3Fifo {
    queues: Vec<[PageList; 2]>,
    ghosts: Ghosts<()>,
}

impl EvictionPolicy for S3Fifo {
    fn insert(&mut self, pages: &mut Pages, list: ListId, page: u32, at: Position) {
        if pages[page].run > MAIN {
            let known = self.ghosts.take(&pages[page].hash).is_some();
            pages[page].run = if known { MAIN } else { SMALL };
        }
        let queue = &mut row(&mut self.queues, list)[pages[page].run as usize];
        match at {
            Position::Hot => queue.push_hot(pages, page),
            Position::Cold => queue.push_cold(pages, page),
            Position::ColderThan(other) if pages[other].run == pages[page].run => {
                queue.push_colder_than(pages, page, other);
            }
            Position::ColderThan(_) => queue.push_hot(pages, page),
        }
    }

    fn touch(&mut self, pages: &mut Pages, page: u32) {
        // A newcomer's place is that of the turn that stored it; nothing else moves a page in a queue.
        let Some(list) = pages[page].list() else { return };
        if (pages[page].run, pages[page].cell.uses()) == (SMALL, 0) {
            let queue = &mut row(&mut self.queues, list)[SMALL as usize];
            queue.remove(pages, page);
            queue.push_hot(pages, page);
        }
    }

    fn remove(&mut self, pages: &mut Pages, list: ListId, page: u32) {
        row(&mut self.queues, list)[pages[page].run as usize].remove(pages, page);
    }

    fn victim(&mut self, pages: &mut Pages, list: ListId) -> (Option<u32>, u64) {
        let queues = row(&mut self.queues, list);
        let mut first = None;
        for moves in 0..VICTIM_MOVES_MAX {
            let [small, main] = *queues;
            let all = u64::from(small.len) + u64::from(main.len);
            let from_small = main.len == 0 || u64::from(small.len) * 100 > all * SMALL_PERCENT;
            let queue = if from_small && small.len > 0 { SMALL } else { MAIN };
            let coldest = queues[queue as usize].coldest();
            let read = coldest.filter(|page| pages[*page].cell.uses() > 0);
            let Some(page) = read else { return (coldest, moves) };
            // Read since it came here: it goes round once more for each read, in the main queue.
            queues[queue as usize].remove(pages, page);
            let uses = if queue == SMALL { 0 } else { pages[page].cell.uses() - 1 };
            pages[page].cell.set_uses(uses);
            pages[page].run = MAIN;
            queues[MAIN as usize].push_hot(pages, page);
            first = first.or(Some(page));
        }
        // All of them were read: then it is the one that was to go first.
        (first, VICTIM_MOVES_MAX)
    }

    fn order(&self, pages: &Pages, list: ListId) -> Vec<u32> {
        let queues = self.queues.get(list.row());
        queues.into_iter().flatten().flat_map(|queue| queue.pages(pages)).collect()
    }

    fn hit(&mut self, pages: &mut Pages, page: u32) {
        let uses = (pages[page].cell.uses() + 1).min(POLICY_READS_MAX);
        pages[page].cell.set_uses(uses);
    }

    fn gone(&mut self, pages: &mut Pages, page: u32) {
        if pages[page].run == SMALL {
            let max = self.queues.iter().flatten().map(|queue| queue.len as usize).sum::<usize>();
            self.ghosts.insert(&pages[page].hash, (), max.max(GHOSTS_MIN));
        }
    }
}
