//! Two servers with the name of one member: lives of it that speak beside one another. Owns: which lives of a member were heard, and
//! when. Must not know: what they say, who is told.
//!
//! A life that is over is heard once more at most, by what was on its way. One that speaks on while a later one does lives.
//!
//! ```text
//!   latest --an earlier life speaks--> doubted --the latest does--> both --a while later the earlier one does--> twice, doubted
//!   any --a later life speaks--> latest
//! ```

use crate::ids::{Incarnation, Life, MemberId, Now};
use crate::limits::{MARKS_MAX, TWICE_MS};
use hashbrown::HashMap;

/// Lives of members, as they were heard.
#[derive(Default)]
pub(crate) struct HeardLives {
    heard: HashMap<MemberId, HeardLife>,
}

struct HeardLife {
    latest: Incarnation,
    /// When the latest one was heard.
    at: Now,
    /// When an earlier one spoke after it, the first time since this was told.
    earlier: Option<Now>,
    /// The latest one spoke again since.
    both: bool,
}

impl HeardLives {
    /// A life spoke. True: two of its member speak beside one another; so again after a while, for as long as they do.
    pub(crate) fn heard(&mut self, life: Life, now: Now) -> bool {
        if self.heard.len() >= MARKS_MAX && !self.heard.contains_key(&life.member) {
            self.heard.retain(|_, known| now.saturating_sub(known.at) < TWICE_MS);
            if self.heard.len() >= MARKS_MAX {
                return false;
            }
        }
        let fresh = HeardLife { latest: life.incarnation, at: now, earlier: None, both: false };
        let known = self.heard.entry(life.member).or_insert(fresh);
        if life.incarnation > known.latest {
            *known = HeardLife { latest: life.incarnation, at: now, earlier: None, both: false };
            return false;
        }
        if life.incarnation == known.latest {
            (known.at, known.both) = (now, known.earlier.is_some());
            return false;
        }
        let Some(since) = known.earlier else {
            known.earlier = Some(now);
            return false;
        };
        let is_twice = known.both && now.saturating_sub(since) >= TWICE_MS;
        if is_twice {
            (known.earlier, known.both) = (Some(now), false);
        }
        is_twice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(incarnation: u64) -> Life {
        Life { member: MemberId(7), incarnation: Incarnation(incarnation) }
    }

    /// So many times two lives speak beside one another, each second in this order.
    fn told(lives: &mut HeardLives, seconds: std::ops::Range<u64>, order: &[u64]) -> usize {
        let words = seconds.flat_map(|second| order.iter().map(move |life| (second * 1_000, *life)));
        words.filter(|(now, speaks)| lives.heard(life(*speaks), *now)).count()
    }

    #[test]
    fn two_lives_that_speak_beside_one_another_are_told_now_and_then() {
        for order in [[5, 9], [9, 5]] {
            let mut lives = HeardLives::default();
            let times = told(&mut lives, 0..60, &order);
            assert!(
                (60_000 / TWICE_MS as usize / 2..=60_000 / TWICE_MS as usize).contains(&times),
                "{times}"
            );
        }
    }

    #[test]
    fn a_restart_is_not_two_lives() {
        let mut lives = HeardLives::default();
        for (second, first) in (0..10).map(|restart| (restart * 20, 10 * restart + 1)) {
            assert_eq!(told(&mut lives, second..second + 10, &[first]), 0);
            // What was on its way comes late, and in a burst.
            assert_eq!(told(&mut lives, second + 10..second + 13, &[first + 5]), 0);
            assert_eq!(told(&mut lives, second + 13..second + 14, &[first, first, first]), 0);
            assert_eq!(told(&mut lives, second + 14..second + 20, &[first + 5]), 0);
        }
    }

    #[test]
    fn a_life_that_begins_too_low_is_not_a_second_one() {
        let mut lives = HeardLives::default();
        assert_eq!(told(&mut lives, 0..10, &[900]), 0);
        assert_eq!(told(&mut lives, 10..30, &[3]), 0, "the one before it is silent");
    }

    #[test]
    fn no_more_members_are_known_than_may_be() {
        let mut lives = HeardLives::default();
        for member in 0..2 * MARKS_MAX as u64 {
            lives.heard(Life { member: MemberId(member), incarnation: Incarnation(1) }, member);
            assert!(lives.heard.len() <= MARKS_MAX);
        }
    }
}
