//! Repeatable choices: a small generator, shuffles, and draws from a Zipf distribution.
//! Must not know: what is chosen.

/// SplitMix64: enough for shuffles and payloads, and the same on every machine.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// A generator that always gives the same numbers for the same seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.bits()) * bound as u128) >> 64) as usize
    }

    /// A number from 0 to just under 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The numbers below `count` in a random order.
    pub fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        for at in (1..count).rev() {
            order.swap(at, self.below(at + 1));
        }
        order
    }
}

/// Draws items so that the i-th most wanted has weight i^-exponent; which item is which rank is random.
#[derive(Debug)]
pub struct Zipf {
    cumulated: Vec<f64>,
    items: Vec<usize>,
}

impl Zipf {
    /// A distribution over `count` items; exponent 0 is uniform.
    pub fn new(count: usize, exponent: f64, random: &mut Random) -> Zipf {
        let mut total = 0.0;
        let weights = (1..=count).map(|rank| (rank as f64).powf(-exponent));
        let mut cumulated: Vec<f64> = weights
            .map(|weight| {
                total += weight;
                total
            })
            .collect();
        cumulated.iter_mut().for_each(|sum| *sum /= total);
        Zipf { cumulated, items: random.order(count) }
    }

    /// One item.
    pub fn draw(&self, random: &mut Random) -> usize {
        let point = random.unit();
        let rank = self.cumulated.partition_point(|sum| *sum <= point).min(self.items.len() - 1);
        self.items[rank]
    }

    /// Share of the draws that go to the `share` (0 to 1) most wanted items: the best any cache can hit.
    pub fn top(&self, share: f64) -> f64 {
        let ranks = (self.cumulated.len() as f64 * share) as usize;
        ranks.checked_sub(1).and_then(|last| self.cumulated.get(last)).copied().unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::{Random, Zipf};

    #[test]
    fn an_order_holds_every_number_once() {
        let mut order = Random::new(7).order(1000);
        assert_ne!(order[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        order.sort_unstable();
        assert!(order.iter().enumerate().all(|(at, number)| at == *number));
    }

    #[test]
    fn zipf_favours_few_and_uniform_none() {
        let mut random = Random::new(1);
        let skewed = Zipf::new(100, 0.9, &mut random);
        let even = Zipf::new(100, 0.0, &mut random);
        assert!((even.top(0.25) - 0.25).abs() < 1e-9);
        assert!(skewed.top(0.25) > 0.5);
        let mut counts = [0usize; 100];
        (0..100_000).for_each(|_| counts[skewed.draw(&mut random)] += 1);
        counts.sort_unstable();
        let hottest: usize = counts[75..].iter().sum();
        assert!((hottest as f64 / 100_000.0 - skewed.top(0.25)).abs() < 0.02);
    }
}
