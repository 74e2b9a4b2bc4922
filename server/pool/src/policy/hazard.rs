//! Chances of return by age, learned. Owns: counts by class and age, and the index that follows from them.
//! Must not know: pages, sessions, what a class means.
//!
//! Ages are in buckets of half an octave. In each bucket a class has seen so many pages at risk, and so many return.
//! The Gittins index of an age is the best rate of return a second that keeping from there on, up to the best moment
//! to give up, can have. Where nothing was seen the chance is that of the bucket before, at
//! first the same in all, which makes the rate fall with age: least recently used.

use crate::ids::Now;

/// Half octaves from 256 ms to about two days.
pub(crate) const BUCKETS: usize = 40;
/// Milliseconds of the first bucket.
const FIRST_MS: u64 = 256;
/// Chance of return in a bucket before anything was seen.
const PRIOR_CHANCE: f32 = 0.1;
/// How much the prior weighs against what all classes have seen, in pages at risk.
const PRIOR_WEIGHT: f32 = 4.0;
/// How much what all classes have seen weighs against what one has.
const POOLED_WEIGHT: f32 = 8.0;
/// Pages at risk after which a bucket's past counts half.
const FORGET_AT: f32 = 512.0;
/// Observations after which the indexes are computed again.
const REFRESH_MIN: u32 = 64;
const REFRESH_MAX: u32 = 4096;

#[derive(Clone, Copy, Default)]
struct Count {
    at_risk: f32,
    returned: f32,
}

/// The counts and indexes of some classes.
pub(crate) struct Hazards {
    counts: Vec<[Count; BUCKETS]>,
    indexes: Vec<[f32; BUCKETS]>,
    parents: Vec<usize>,
    /// Observations that the indexes take account of, and those that they do not yet.
    seen: u32,
    unseen: u32,
}

/// The age at which a bucket begins.
pub(crate) fn starts(bucket: usize) -> u64 {
    match bucket {
        0 => 0,
        bucket => {
            let octave = FIRST_MS << ((bucket - 1) / 2);
            if bucket % 2 == 1 { octave } else { octave + octave * 53 / 128 }
        }
    }
}

impl Hazards {
    /// So many classes; `parents` names for each the class whose counts stand in for what it has not seen (itself: none).
    pub(crate) fn new(parents: Vec<usize>) -> Hazards {
        let classes = parents.len();
        let mut hazards = Hazards {
            counts: vec![[Count::default(); BUCKETS]; classes],
            indexes: vec![[0.0; BUCKETS]; classes],
            parents,
            seen: 0,
            unseen: 0,
        };
        hazards.compute();
        hazards
    }

    /// Something of a class reached a bucket (`returned` false), or came back in it. What is counted when a bucket is
    /// reached, not when it is left, takes nobody's part: those that wait for long could not yet have left.
    pub(crate) fn observe(&mut self, class: usize, bucket: usize, returned: bool, weight: f32) {
        let mut class = class;
        loop {
            let count = &mut self.counts[class][bucket];
            match returned {
                true => count.returned = (count.returned + weight).min(count.at_risk),
                false => count.at_risk += weight,
            }
            if count.at_risk > FORGET_AT {
                count.at_risk *= 0.5;
                count.returned *= 0.5;
            }
            let parent = self.parents[class];
            if parent == class {
                break;
            }
            class = parent;
        }
        self.unseen += 1;
    }

    /// The rate of return a second, of a class at an age.
    pub(crate) fn index(&self, class: usize, bucket: usize) -> f32 {
        self.indexes[class][bucket]
    }

    /// Takes account of what was seen, when it is enough. True: the indexes changed.
    pub(crate) fn refresh(&mut self) -> bool {
        let due = self.unseen >= (self.seen / 8).clamp(REFRESH_MIN, REFRESH_MAX);
        if due {
            self.compute();
            self.seen = self.seen.saturating_add(self.unseen);
            self.unseen = 0;
        }
        due
    }

    fn compute(&mut self) {
        let mut chances = vec![[0.0f32; BUCKETS]; self.parents.len()];
        // Parents come before their children.
        for class in 0..self.parents.len() {
            let parent = self.parents[class];
            let mut before = PRIOR_CHANCE;
            for bucket in 0..BUCKETS {
                if bucket > 0 {
                    before = chances[class][bucket - 1];
                }
                let (prior, weight) = match parent == class {
                    true => (before, PRIOR_WEIGHT),
                    false => (chances[parent][bucket], POOLED_WEIGHT),
                };
                let count = self.counts[class][bucket];
                chances[class][bucket] = (count.returned + weight * prior) / (count.at_risk + weight);
            }
            // What has seen nothing of its own is like its parent.
            let own = parent == class || self.counts[class].iter().any(|count| count.at_risk > 0.0);
            self.indexes[class] = if own { indexes(&chances[class]) } else { self.indexes[parent] };
        }
    }
}

/// The best rate from each bucket on.
fn indexes(chances: &[f32; BUCKETS]) -> [f32; BUCKETS] {
    let mut indexes = [0.0; BUCKETS];
    for (from, index) in indexes.iter_mut().enumerate() {
        let (mut left, mut returns, mut time, mut best) = (1.0f32, 0.0f32, 0.0f32, 0.0f32);
        for (bucket, chance) in chances.iter().enumerate().skip(from) {
            let width = (starts(bucket + 1) - starts(bucket)) as f32 / 1000.0;
            returns += left * chance;
            time += left * width * (1.0 - chance / 2.0);
            left *= 1.0 - chance;
            best = best.max(returns / time);
        }
        *index = best;
    }
    indexes
}

/// When something that waits since `since` leaves the bucket.
pub(crate) fn next_change(since: Now, bucket: usize) -> Now {
    since.saturating_add(starts(bucket + 1))
}
