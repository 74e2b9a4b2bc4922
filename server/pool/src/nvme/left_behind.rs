//! Pages off NVMe that are to be there once it has time, or room, for them. Owns: whether there are any, and where
//! the walk is that finds them. Must not know: which pages these are.

use crate::index::sweep::Sweep;

/// What a burst left behind: pages off NVMe that are to be written when what waits has become little.
#[derive(Default)]
pub(crate) struct LeftBehind {
    /// The walk that finds them. None: there are none.
    sweep: Option<Sweep>,
    /// More were left behind since it began.
    again: bool,
    /// Pages that NVMe let go of wait for room there; a walk finds them then.
    let_go: bool,
}

impl LeftBehind {
    /// Whether there are such pages.
    pub(super) fn is_any(&self) -> bool {
        self.sweep.is_some() || self.let_go
    }

    /// Some more were left behind.
    pub(super) fn find_again(&mut self) {
        self.again |= self.sweep.is_some();
        self.sweep.get_or_insert_default();
    }

    /// NVMe let go of pages: they are found again once it has room.
    pub(super) fn wait_for_room(&mut self) {
        self.let_go = true;
    }

    /// Goes on with the walk that finds such pages. `has_room`: whether NVMe has room for what it let go of.
    pub(super) fn take_walk(&mut self, has_room: bool) -> Option<Sweep> {
        if self.let_go && has_room {
            self.let_go = false;
            self.find_again();
        }
        self.sweep.take()
    }

    /// The walk came so far. `done`: to its end.
    pub(super) fn put_walk(&mut self, walk: Sweep, done: bool) {
        self.sweep = match done {
            false => Some(walk),
            true if std::mem::take(&mut self.again) => Some(Sweep::default()),
            true => None,
        };
    }
}

#[cfg(test)]
mod tests;
