//! Pages that wait alike, and who waits. Owns: what is kept of a run of pages, and of a session. Must not
//! know: orders, chances.

use crate::eviction::policy::chances;
use crate::eviction::policy::class::{Habits, WaitClass};
use crate::ids::{NONE, Now};
use crate::index::lists::PageList;
use crate::limits::IN_TURN_MS_MAX;

/// Pages used at one moment are judged from this bucket on, after 2 s.
const FRESH_BUCKETS: u8 = 7;

/// What its pages wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not in use.
    Free,
    /// Its class and age say when it comes back.
    Waiting,
    /// Its session's turn runs.
    InTurn,
    /// Its session's turn runs in another pool: it has come back, and is judged like one that waits anew.
    Elsewhere,
    /// Superseded.
    Victims,
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(super) phase: Phase,
    /// What its chances are learned by.
    pub(super) class: WaitClass,
    /// Its age.
    pub(super) bucket: u8,
    /// Its namespace.
    pub(super) ns: u16,
    /// The session that waits; none: pages by themselves.
    pub(super) session: u32,
    /// When its wait began.
    pub(super) since: Now,
    /// Its place in the orders it is in.
    pub(super) key: u32,
    /// Pages of the index in it, listed or not.
    pub(super) members: u32,
    /// Those on NVMe only, those in DRAM.
    pub(super) lists: [PageList; 2],
}

impl Run {
    /// When it is another one by its age: a wait is in its next bucket, or a turn was not ended for too long.
    pub(crate) fn changes_at(&self) -> Now {
        match self.phase {
            Phase::InTurn => self.since.saturating_add(IN_TURN_MS_MAX),
            _ => chances::next_change(self.since, usize::from(self.bucket)),
        }
    }

    /// Pages by themselves that were used just now; a session that left its pages needs them no more.
    pub(crate) fn is_fresh(&self) -> bool {
        self.session == NONE && self.bucket < FRESH_BUCKETS && self.class != WaitClass::LEFT
    }
}

/// What is known of a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(super) run: u32,
    /// The run that it leaves: pages of it are on their way to the other.
    pub(super) left: u32,
    pub(super) habits: Habits,
    /// Turns it had under other names, and its number under the last one: both are of whoever continues it.
    pub(super) turns: u32,
    pub(super) formerly: u32,
}

impl Default for Waiter {
    fn default() -> Waiter {
        Waiter { run: NONE, left: NONE, habits: Habits::default(), turns: 0, formerly: NONE }
    }
}
