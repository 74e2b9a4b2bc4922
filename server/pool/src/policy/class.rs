//! Classes whose chances of return are learned apart. Owns: which class a wait belongs to. Must not know: pages, counts.

use crate::limits::SESSION_CLASSES_TURN_MAX;

/// Bounds of what the owner said it expects, milliseconds; nothing said is a group of its own, as is what is beyond.
const EXPECTED_MS: [u64; 5] = [4_000, 16_000, 64_000, 256_000, 1_024_000];
/// Bounds of the gap before, milliseconds; what is beyond is a group of its own.
const GAPS_MS: [u64; 4] = [4_000, 16_000, 64_000, 256_000];
const HINTS: usize = EXPECTED_MS.len() + 2;
const TURNS: usize = SESSION_CLASSES_TURN_MAX as usize;
/// Kinds of waits of one turn and hint: by gap, or by size.
const KINDS: usize = GAPS_MS.len() + 2;
/// Pages of the smallest first turn but one; each further size is twice as large.
const SIZE_PAGES: usize = 4;
/// Doublings of uses told apart.
const USES: usize = 8;

/// Classes of sessions: all, by hint, by turn of these, by gap or size of these.
const BY_HINT: usize = 1;
const BY_TURN: usize = BY_HINT + HINTS;
const BY_KIND: usize = BY_TURN + HINTS * TURNS;
/// Classes of pages: all, then by uses, of the first turn of a session and of later ones.
const OF_PAGES: usize = BY_KIND + HINTS * TURNS * KINDS;
/// Pages that their session has left.
pub(crate) const LEFT: usize = OF_PAGES + 1;
const BY_USES: usize = LEFT + 1;

/// For each class the one that stands in for what it has not seen.
pub(crate) fn parents() -> Vec<usize> {
    let mut parents = vec![0];
    parents.extend((0..HINTS).map(|_| 0));
    parents.extend((0..HINTS * TURNS).map(|at| BY_HINT + at / TURNS));
    parents.extend((0..HINTS * TURNS * KINDS).map(|at| BY_TURN + at / KINDS));
    parents.extend([OF_PAGES, OF_PAGES]);
    parents.extend((0..2 * USES).map(|_| OF_PAGES));
    parents
}

/// The class of a session that waits.
pub(crate) fn of_session(turn: u32, gap_ms: Option<u64>, pages: usize, expected_return_ms: u64) -> usize {
    let hint = match expected_return_ms {
        0 => 0,
        expected => 1 + EXPECTED_MS.iter().take_while(|bound| expected > **bound).count(),
    };
    let turn = turn.clamp(1, 1 << (TURNS - 1)).next_power_of_two().ilog2() as usize;
    // A first turn has no gap to go by: what it sent stands in for it.
    let kind = match gap_ms {
        None => (usize::BITS - (pages / SIZE_PAGES).leading_zeros()).min(KINDS as u32 - 1) as usize,
        Some(gap) => 1 + GAPS_MS.iter().take_while(|bound| gap > **bound).count(),
    };
    BY_KIND + (hint * TURNS + turn) * KINDS + kind
}

/// The class of pages that no single session waits for.
pub(crate) fn of_page(uses: u8, later_turn: bool) -> usize {
    let uses = (u32::from(uses) + 1).ilog2().min(USES as u32 - 1) as usize;
    BY_USES + usize::from(later_turn) * USES + uses
}
