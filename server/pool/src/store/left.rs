//! Branches that sessions left: their pages go first, tails before heads. Owns: how they are marked, bit by
//! bit. Must not know: why a session left them.
//!
//! ```text
//!   UP (marked from the tail, to the first page that still has a use) -> DOWN (to the cold end, from there to the tail) -> over
//! ```
//! A page has a use that another session ends at, that is protected, or that leads to a page which was not
//! left. Between two calls anything may happen to the pages: one that somebody uses loses its mark, and where
//! the tail goes the branch ends before it.

use crate::call::Slice;
use crate::eviction::left_branches::{LeftBranch, MarkStage};
use crate::index::flags::VICTIM;
use crate::index::list_id::Position;
use crate::index::path_end::PathEnd;
use crate::index::tips::TipKeeper;
use crate::limits::{FIND_PAGES_AT_ONCE, LEFT_BRANCHES_MAX};
use crate::store::Store;
use crate::store::going::Search;

impl Store {
    /// A session has no more of a path than its first `keep` pages: the others become first victims, as many
    /// in this call as it may, the rest in the calls that follow. Where too many branches wait, their pages
    /// go by age.
    pub(crate) fn leave_branch(&mut self, end: PathEnd, keep: u32, tails: bool) {
        if end.pages > keep && self.left.len() < LEFT_BRANCHES_MAX {
            let tip = self.pages.add_tip(end, TipKeeper::Branch);
            self.left.push(LeftBranch { tip, keep, tails, stage: MarkStage::Up(end.pages) });
        }
        let slice = self.call.rest();
        self.mark_left(slice);
    }

    /// Goes on with the branches that were left. True: all are marked.
    pub(crate) fn mark_left(&mut self, slice: Slice) -> bool {
        // What was protected for the session that left is let go of first: it would seem to have a use.
        if !self.let_go_some(slice) {
            return false;
        }
        while let Some(mut branch) = self.left.pop() {
            if !self.mark_branch(&mut branch, slice) {
                self.left.put_back(branch);
                return false;
            }
            self.pages.drop_tip(branch.tip, TipKeeper::Branch);
        }
        true
    }

    fn mark_branch(&mut self, branch: &mut LeftBranch, slice: Slice) -> bool {
        let end = self.pages.tip_end(branch.tip);
        if let MarkStage::Up(left) = branch.stage {
            let mut at = self.pages.cut(end, left.min(end.pages));
            while at.pages > branch.keep && self.pages.has_no_use(at.page, branch.tails) {
                if self.call.is_over(slice) {
                    branch.stage = MarkStage::Up(at.pages);
                    return false;
                }
                self.call.step();
                self.pages.set_victim(at.page, true);
                self.nvme.note_leaving(&self.pages, at.page);
                at = PathEnd { page: self.pages[at.page].parent, pages: at.pages - 1 };
            }
            branch.stage = MarkStage::Down(at.pages);
        }
        while let MarkStage::Down(done) = branch.stage
            && done < end.pages
        {
            if self.call.is_over(slice) {
                return false;
            }
            let to = end.pages.min(done + FIND_PAGES_AT_ONCE as u32);
            // Heads first, so that the tail ends up as the very first victim.
            for index in self.pages.between(self.pages.cut(end, to), done) {
                self.make_victim(index);
            }
            branch.stage = MarkStage::Down(to);
        }
        true
    }

    /// Somebody uses a page: it does not go first any more.
    pub(super) fn clear_victim(&mut self, index: u32) {
        if self.pages[index].has(VICTIM) {
            self.pages.set_victim(index, false);
            self.nvme.note_leaving(&self.pages, index);
        }
    }

    fn make_victim(&mut self, index: u32) {
        self.call.step();
        if !self.pages[index].has(VICTIM) {
            return; // somebody used it since
        }
        self.end_deferral(index);
        if let Some(list) = self.pages[index].list() {
            self.policy.remove(&mut self.pages, list, index);
            self.policy.insert(&mut self.pages, list, index, Position::Cold);
        }
        self.leave_if_left(index, Search::NONE);
    }
}
