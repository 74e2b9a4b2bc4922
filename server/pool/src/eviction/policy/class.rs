//! What is known of a wait, in few values whose chances of return are learned. Owns: which values describe a
//! wait, and what is remembered of a session from one wait to the next. Must not know: pages, chances.

use crate::ids::Now;

/// Values that describe a session's wait, and how many each can be.
pub(crate) const TRAITS: usize = 6;
pub(crate) const VALUES: [usize; TRAITS] = [TURNS, TIMES, TIMES, TIMES, SIZES, GROWTHS];
/// The first so many of them say more about some ages than about others.
pub(crate) const TRAITS_BY_AGE: usize = 4;
/// Doublings of turns told apart.
const TURNS: usize = 6;
/// Doublings of a time told apart, from half a second on; nothing known is one more.
const TIMES: usize = 20;
const TIME_MS: u64 = 512;
/// Doublings of pages told apart.
const SIZES: usize = 14;
/// The same of pages that a turn added; those of first turns stand apart.
const GROWTHS: usize = 2 * SIZES;
/// Doublings of uses told apart.
const USES: usize = 8;
/// Kinds of pages by themselves: by uses, of first turns and of later ones; those that their session left.
pub(crate) const KINDS: usize = 2 * USES + 1;
const LEFT: u8 = 2 * USES as u8;
/// Gaps of a session that are remembered.
const GAPS: usize = 5;

/// What a wait's chances are learned by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitClass {
    /// A session waits: turn, last gap, usual gap, expected return, pages, pages that the turn added.
    Session([u8; TRAITS]),
    /// Pages that no single session waits for, of one kind.
    Pages(u8),
}

/// What is remembered of a session from one wait to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Habits {
    /// The last gaps, as values, the newest first; 0: none.
    gaps: [u8; GAPS],
    /// Pages of the last turn.
    pages: u32,
    /// What the owner said it expected.
    expected_return_ms: u64,
}

impl WaitClass {
    /// Pages that their session left.
    pub(crate) const LEFT: WaitClass = WaitClass::Pages(LEFT);

    /// Whether it is a session that waits.
    pub(crate) fn is_session(&self) -> bool {
        matches!(self, WaitClass::Session(_))
    }

    /// Pages that no single session waits for.
    pub(crate) fn of_page(uses: u8, later_turn: bool) -> WaitClass {
        let uses = (u32::from(uses) + 1).ilog2().min(USES as u32 - 1) as u8;
        WaitClass::Pages(u8::from(later_turn) * USES as u8 + uses)
    }
}

impl Habits {
    /// The class of the wait that begins when a turn of so many pages ends.
    pub(crate) fn class(&self, turn: u32, pages: u32, expected_return_ms: u64) -> WaitClass {
        let size = doublings(u64::from(pages), SIZES);
        let growth = match turn {
            0 | 1 => size,
            _ => SIZES as u8 + doublings(u64::from(pages.saturating_sub(self.pages)), SIZES),
        };
        let turn = doublings(u64::from(turn.max(1)) - 1, TURNS);
        let known = self.gaps.iter().take_while(|gap| **gap > 0).count();
        let mut gaps = self.gaps;
        gaps[..known].sort_unstable();
        let median = gaps[known / 2];
        WaitClass::Session([turn, self.gaps[0], median, time(expected_return_ms), size, growth])
    }

    /// The class of the wait that a running turn is likely to end in: as the one before was expected to be.
    pub(crate) fn likely_class(&self, turn: u32, pages: u32) -> WaitClass {
        self.class(turn, pages, self.expected_return_ms)
    }

    /// A turn ended.
    pub(crate) fn note_turn(&mut self, pages: u32, expected_return_ms: u64) {
        (self.pages, self.expected_return_ms) = (pages, expected_return_ms);
    }

    /// The session came back.
    pub(crate) fn note_gap(&mut self, gap_ms: Now) {
        self.gaps.rotate_right(1);
        self.gaps[0] = time(gap_ms.max(1));
    }
}

/// 0 for nothing known, then doublings.
fn time(ms: u64) -> u8 {
    match ms {
        0 => 0,
        ms => 1 + doublings(ms / TIME_MS, TIMES - 1),
    }
}

fn doublings(count: u64, values: usize) -> u8 {
    (u64::BITS - count.leading_zeros()).min(values as u32 - 1) as u8
}
