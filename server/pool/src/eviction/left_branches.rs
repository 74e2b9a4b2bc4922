//! Branches that sessions left. Owns: which of them are still to be marked, and how far each is. Must not know: why
//! a session left them, what a mark means.

use crate::index::tips::TipId;
use std::collections::VecDeque;

/// Branches to mark, the first of them under way.
#[derive(Default)]
pub(crate) struct LeftBranches(VecDeque<LeftBranch>);

/// The end of a path that a session had.
pub(crate) struct LeftBranch {
    pub(crate) tip: TipId,
    /// Pages from the root that the session has still.
    pub(crate) keep: u32,
    /// Only partial tails go: the session may come back to the others.
    pub(crate) tails: bool,
    /// How far it is marked.
    pub(crate) stage: MarkStage,
}

/// How far a branch is marked.
#[derive(Clone, Copy)]
pub(crate) enum MarkStage {
    /// Pages from the root that were not looked at.
    Up(u32),
    /// Pages from the root that are where they belong.
    Down(u32),
}

impl LeftBranches {
    /// One more branch is to be marked.
    pub(crate) fn push(&mut self, branch: LeftBranch) {
        self.0.push_back(branch);
    }

    /// Takes the branch that is marked first.
    pub(crate) fn pop(&mut self) -> Option<LeftBranch> {
        self.0.pop_front()
    }

    /// A branch that was taken is not marked to its end: it stays the first.
    pub(crate) fn put_back(&mut self, branch: LeftBranch) {
        self.0.push_front(branch);
    }

    /// Branches to mark.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.capacity() * size_of::<LeftBranch>()
    }
}
