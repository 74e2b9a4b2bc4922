//! Classes whose chances of return are learned apart. Owns: which class a wait belongs to. Must not know: pages, counts.

use crate::limits::SESSION_CLASSES_TURN_MAX;

/// Bounds of what the owner said it expects, milliseconds; nothing said is a group of its own, as is what is beyond.
const EXPECTED_MS: [u64; 5] = [4_000, 16_000, 64_000, 256_000, 1_024_000];
/// Bounds of the gap before, milliseconds; a first turn is a group of its own, as is what is beyond.
const GAPS_MS: [u64; 4] = [4_000, 16_000, 64_000, 256_000];
const HINTS: usize = EXPECTED_MS.len() + 2;
const TURNS: usize = SESSION_CLASSES_TURN_MAX as usize;
const GAPS: usize = GAPS_MS.len() + 2;
/// Doublings of uses told apart.
const USES: usize = 8;

/// Classes of sessions: all, by hint, by turn of these, by gap of these.
const BY_HINT: usize = 1;
const BY_TURN: usize = BY_HINT + HINTS;
const BY_GAP: usize = BY_TURN + HINTS * TURNS;
/// Classes of pages: all, then by uses, of the first turn of a session and of later ones.
const OF_PAGES: usize = BY_GAP + HINTS * TURNS * GAPS;
const BY_USES: usize = OF_PAGES + 1;

/// For each class the one that stands in for what it has not seen.
pub(crate) fn parents() -> Vec<usize> {
    let mut parents = vec![0];
    parents.extend((0..HINTS).map(|_| 0));
    parents.extend((0..HINTS * TURNS).map(|at| BY_HINT + at / TURNS));
    parents.extend((0..HINTS * TURNS * GAPS).map(|at| BY_TURN + at / GAPS));
    parents.push(OF_PAGES);
    parents.extend((0..2 * USES).map(|_| OF_PAGES));
    parents
}

/// The class of a session that waits.
pub(crate) fn of_session(turn: u32, gap_ms: Option<u64>, expected_return_ms: u64) -> usize {
    let hint = match expected_return_ms {
        0 => 0,
        expected => 1 + EXPECTED_MS.iter().take_while(|bound| expected > **bound).count(),
    };
    let turn = turn.clamp(1, 1 << (TURNS - 1)).next_power_of_two().ilog2() as usize;
    let gap = gap_ms.map_or(0, |gap| 1 + GAPS_MS.iter().take_while(|bound| gap > **bound).count());
    BY_GAP + (hint * TURNS + turn) * GAPS + gap
}

/// The class of pages that no single session waits for.
pub(crate) fn of_page(uses: u16, later_turn: bool) -> usize {
    let uses = (u32::from(uses) + 1).ilog2().min(USES as u32 - 1) as usize;
    BY_USES + usize::from(later_turn) * USES + uses
}
