//! What a seed stands for: how many members, how much goes wrong. Must not know: how a run goes.

use crate::random::Random;

/// One run, as its seed says. Chances are in a thousand.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) steps: u32,
    pub(crate) members: u64,
    pub(crate) sessions: u64,
    /// Pages that one pool holds.
    pub(crate) pool_pages: usize,
    /// Of messages: lost, doubled, and milliseconds that one takes at most.
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) delay_ms_max: u64,
    /// Of pages on the wire: damaged.
    pub(crate) damaged: u64,
    /// Of steps: a fault begins, or one ends.
    pub(crate) faults: u64,
}

/// Steps of one seed; each is some milliseconds to some rounds.
pub(crate) const STEPS: u32 = 250;

impl Plan {
    pub(crate) fn of(seed: u64, steps: u32) -> Plan {
        let mut random = Random::new(seed ^ 0xC1A5);
        // Every eighth seed is calm: there every session is found, whole.
        let calm = seed.is_multiple_of(8);
        let worse = |random: &mut Random, most: u64| if calm { 0 } else { random.below(most) };
        Plan {
            seed,
            steps,
            members: 3 + random.below(5),
            sessions: 2 + random.below(10),
            pool_pages: if calm { 100_000 } else { 50 + random.below(400) as usize },
            lost: worse(&mut random, 150),
            doubled: worse(&mut random, 100),
            delay_ms_max: if calm { 3 } else { 1 + random.below(60) },
            damaged: worse(&mut random, 30),
            faults: if calm { 0 } else { 20 + random.below(200) },
        }
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.faults == 0
    }
}
