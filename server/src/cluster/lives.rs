//! Numbers of lives as others say them. Owns: which can be one. Must not know: who says it, what is believed of it.

use crate::clock::Clock;
use crate::limits::{LIFE_AHEAD_MS_MAX, LIFE_CLOCK_MS_MIN};
use turnkv_cluster::Incarnation;

/// The life of this number, as a member or etcd says it; none: no life has it. One begins at the time, or next to the latest that was heard
/// of: a number that is far beyond the time is nobody's, and whoever believed it would not hear that member again.
pub(super) fn life_numbered(said: u64) -> Option<Incarnation> {
    // A clock that was never set judges nobody.
    let time = Clock::system().unix_ms().max(LIFE_CLOCK_MS_MIN);
    (said <= time.saturating_add(LIFE_AHEAD_MS_MAX)).then_some(Incarnation(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_beyond_the_time_is_no_life_and_one_by_a_clock_that_goes_wrong_is() {
        let now = Clock::system().unix_ms();
        for said in [0, 1, now, now + 365 * 86_400_000, LIFE_CLOCK_MS_MIN + LIFE_AHEAD_MS_MAX] {
            assert_eq!(life_numbered(said), Some(Incarnation(said)));
        }
        for said in [u64::MAX, u64::MAX - 1, 1 << 63, now + 2 * LIFE_AHEAD_MS_MAX] {
            assert_eq!(life_numbered(said), None, "{said}");
        }
    }
}
