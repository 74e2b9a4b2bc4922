//! The live miss-ratio curve: what share of the pages that turns need would be found at every size of the
//! pool. Owns: sampling, distances, ageing. Must not know: policies, tiers, who asks.
//!
//! **What is predicted.** The pool is prefix-closed and touches tails before heads, so under LRU a page lies
//! deeper in the order of recency than all its ancestors. Its distance (how many bytes of pages were used
//! after it, when its turn begins) is then at least that of every page before it, and "the leading run that
//! is present" is the same as "the pages whose distance fits": prefix hits need no rule of their own, as long
//! as distances are those of the moment the turn began.
//!
//! **How.** SHARDS: a page is followed if its hash, mixed, is at most a threshold; distances among these,
//! divided by the rate, stand for all. The threshold falls so that never more than `samples_max` pages are
//! followed: below that many every page is, and the curve is exact. Three things make a sample of one in a
//! hundred good enough here:
//! - pages that a large share of all references goes to are followed by themselves (`hot`);
//! - all references are counted, by what became of them (found, stored), and the sampled ones of each kind
//!   stand for that kind;
//! - what is touched in one call is measured before any of it is moved.
//!
//! A reference is a page that a turn found (a reload served it) or had to compute (an offload stores it, or
//! is declined). Old references fade by half every half-life, pages not used for four of them are forgotten.

mod histogram;
mod hot;
mod kept;
mod stack;
mod view;

#[cfg(test)]
mod tests;

use crate::ids::Now;
use crate::limits::{CURVE_SAMPLES_MAX, CURVE_SAMPLES_MIN, CURVE_SAMPLES_TOTAL_MAX};
use hashbrown::HashMap;
use histogram::{Histogram, NEVER, bucket_of};
use hot::Hot;
use stack::Stack;
use std::hash::{BuildHasherDefault, Hasher};
use turnkv_proto::BlockHash;

pub use view::MissRatioCurve;

/// How many steps a half-life has: what is old fades step by step.
const STEPS: u32 = 16;
/// Steps after which a page that was not used is forgotten: four half-lives.
const FORGET_STEPS: u32 = 4 * STEPS;
/// No declined reference of this turn.
const NONE: u16 = u16::MAX;
/// The place of a page that has none yet.
const NOWHERE: u32 = u32::MAX;

/// How curves are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurveTuning {
    /// Pages followed in a namespace, at most; many namespaces share a fixed total. 0: no curve is kept.
    pub samples_max: u32,
    /// Time after which a reference counts half; 0: for ever, for a trace that is looked at as a whole.
    pub half_life_ms: u64,
}

impl Default for CurveTuning {
    fn default() -> CurveTuning {
        CurveTuning { samples_max: CURVE_SAMPLES_MAX, half_life_ms: 6 * 3600 * 1000 }
    }
}

/// What became of a page that a turn used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A reload served it.
    Found,
    /// The engine computed it, and has a slot for it. Who asked.
    Stored(u32),
    /// The engine computed it, and there was no slot: it may ask again. Who asked.
    Declined(u32),
    /// It was used without the pool: no reference, but recent.
    Recent,
}

/// A page that is followed.
struct Sample {
    place: u32,
    /// Whose offload of it was declined last, and in which bucket that was counted.
    asker: u32,
    declined: u16,
    /// When it was used, in steps.
    step: u32,
}

/// One namespace's curve.
pub(crate) struct Curve {
    samples_max: usize,
    half_life_ms: u64,
    /// Keys up to this one are followed.
    threshold: u64,
    samples: HashMap<u64, Sample, BuildHasherDefault<Spread>>,
    stack: Stack,
    hot: Hot,
    found: Histogram,
    stored: Histogram,
    declined: Histogram,
    /// References to hot pages, every one measured.
    followed: Histogram,
    /// Followed pages of the running call that were moved to the top already.
    moved: u64,
    step: u32,
    aged: Option<Now>,
    /// Milliseconds that the references were counted in, aged as they are.
    window_ms: f64,
}

impl Curve {
    pub(crate) fn new(tuning: CurveTuning) -> Curve {
        Curve {
            samples_max: tuning.samples_max as usize,
            half_life_ms: tuning.half_life_ms,
            threshold: u64::MAX,
            samples: HashMap::default(),
            stack: Stack::default(),
            hot: Hot::default(),
            found: Histogram::default(),
            stored: Histogram::default(),
            declined: Histogram::default(),
            followed: Histogram::default(),
            moved: 0,
            step: 0,
            aged: None,
            window_ms: 0.0,
        }
    }

    /// A call begins; its pages follow, tails before heads.
    pub(crate) fn begin(&mut self, now: Now) {
        self.moved = 0;
        self.age(now);
    }

    /// Takes note of one page.
    pub(crate) fn see(&mut self, hash: &BlockHash, seen: Seen) {
        let key = key_of(hash);
        if let Some(at) = self.hot.find(key) {
            return self.see_hot(at, seen);
        }
        let promoted = match seen {
            Seen::Found => {
                self.found.references += 1.0;
                self.hot.note(key)
            }
            Seen::Stored(_) => {
                self.stored.references += 1.0;
                self.hot.note(key)
            }
            Seen::Declined(_) => self.hot.note(key),
            Seen::Recent => false,
        };
        if key <= self.threshold {
            self.see_sample(key, seen);
        }
        if promoted {
            self.follow(key);
        }
    }

    /// Pages of this curve may be no more than so many from now on.
    pub(crate) fn limit(&mut self, samples_max: usize) {
        self.samples_max = samples_max;
        self.shrink();
    }

    /// Memory, for the pool's gauge.
    pub(crate) fn bytes(&self) -> usize {
        let histograms = [&self.found, &self.stored, &self.declined, &self.followed];
        let histograms: usize = histograms.iter().map(|one| one.bytes()).sum();
        size_of::<Curve>()
            + self.samples.allocation_size()
            + self.stack.bytes()
            + self.hot.bytes()
            + histograms
    }

    /// The share of pages that is followed.
    pub(crate) fn rate(&self) -> f64 {
        (self.threshold as f64 + 1.0) / 2f64.powi(64)
    }

    fn see_hot(&mut self, at: usize, seen: Seen) {
        if seen != Seen::Recent {
            let above = self.stack.from(self.hot.pages[at].place);
            let bucket = bucket_above(above, self.moved, self.rate());
            self.followed.references += 1.0;
            self.followed.add(bucket, 1.0);
            self.hot.pages[at].references += 1.0;
        }
        self.hot.pages[at].place = self.stack.next();
    }

    fn see_sample(&mut self, key: u64, seen: Seen) {
        self.make_place();
        let (rate, moved, step) = (self.rate(), self.moved, self.step);
        let weight = 1.0 / rate;
        let fresh = Sample { place: NOWHERE, asker: 0, declined: NONE, step };
        let sample = self.samples.entry(key).or_insert(fresh);
        let known = sample.place != NOWHERE;
        let bucket = (known && seen != Seen::Recent)
            .then(|| bucket_above(self.stack.from(sample.place) - 1, moved, rate));
        match seen {
            // A page that is here and was not known: the pool had it before the curve began. Its distance is
            // unknown.
            Seen::Found => bucket.into_iter().for_each(|bucket| self.found.add(bucket, weight)),
            Seen::Stored(asker) if sample.declined != NONE && sample.asker == asker => {
                // The same turn asked before: it is one reference.
                self.declined.take_back(sample.declined, weight);
                self.declined.references = (self.declined.references - weight).max(0.0);
                self.stored.add(sample.declined, weight);
            }
            Seen::Declined(asker) if sample.declined != NONE && sample.asker == asker => {}
            Seen::Stored(_) => self.stored.add(bucket.unwrap_or(NEVER), weight),
            Seen::Declined(_) => {
                self.declined.references += weight;
                self.declined.add(bucket.unwrap_or(NEVER), weight);
            }
            Seen::Recent => {}
        }
        (sample.asker, sample.declined) = match (seen, sample.declined) {
            (Seen::Declined(asker), NONE) => (asker, bucket.unwrap_or(NEVER)),
            (Seen::Declined(asker), declined) if sample.asker == asker => (asker, declined),
            (Seen::Declined(asker), _) => (asker, bucket.unwrap_or(NEVER)),
            _ => (0, NONE),
        };
        if known {
            self.stack.remove(sample.place);
        }
        sample.place = self.stack.push(key);
        sample.step = step;
        self.moved += 1;
        self.shrink();
    }

    /// A page has become hot: it leaves the sample, if it is in it, and is measured by itself.
    fn follow(&mut self, key: u64) {
        let place = match self.samples.remove(&key) {
            Some(sample) => {
                self.stack.remove(sample.place);
                self.moved = self.moved.saturating_sub(1);
                sample.place
            }
            None => self.stack.next(),
        };
        self.hot.add(key, place);
    }

    /// Makes sure that the stack has a place for one more key.
    fn make_place(&mut self) {
        if !self.stack.is_full() {
            return;
        }
        for page in &mut self.hot.pages {
            page.place = self.stack.below(page.place) as u32;
        }
        let samples = &mut self.samples;
        self.stack.compact(|key, place| {
            if let Some(sample) = samples.get_mut(&key) {
                sample.place = place;
            }
        });
    }

    /// Lowers the threshold until the sample fits its bound again.
    fn shrink(&mut self) {
        while self.samples.len() > self.samples_max {
            self.threshold = self.threshold / 8 * 7;
            let (threshold, stack) = (self.threshold, &mut self.stack);
            self.samples.retain(|key, sample| {
                let stays = *key <= threshold;
                if !stays {
                    stack.remove(sample.place);
                }
                stays
            });
            self.moved = self.moved.min(self.samples.len() as u64);
        }
    }

    /// Lets what is old fade, and forgets pages that were not used for long.
    fn age(&mut self, now: Now) {
        let aged = *self.aged.get_or_insert(now);
        let step_ms = (self.half_life_ms / u64::from(STEPS)).max(1);
        let steps = now.saturating_sub(aged) / step_ms;
        if self.half_life_ms == 0 || steps == 0 {
            return;
        }
        let factor = 0.5f64.powf(steps as f64 / f64::from(STEPS));
        for histogram in [&mut self.found, &mut self.stored, &mut self.declined, &mut self.followed] {
            histogram.scale(factor);
        }
        self.window_ms = (self.window_ms + (steps * step_ms) as f64) * factor;
        self.aged = Some(aged + steps * step_ms);
        self.step = self.step.saturating_add(u32::try_from(steps).unwrap_or(u32::MAX));
        self.hot.age(factor, self.references());
        while let Some(key) = self.stack.bottom() {
            let old = |sample: &Sample| self.step - sample.step > FORGET_STEPS;
            let Some(sample) = self.samples.get(&key).filter(|sample| old(sample)) else { break };
            self.stack.remove(sample.place);
            self.samples.remove(&key);
        }
        if self.threshold < u64::MAX && self.samples.len() * 8 < self.samples_max {
            // What is in use has become small: follow all of it again, from the beginning.
            self.threshold = u64::MAX;
            self.samples.clear();
            self.stack = Stack::default();
            self.hot.pages.iter_mut().for_each(|page| page.place = 0);
        }
    }

    pub(crate) fn references(&self) -> f64 {
        [&self.found, &self.stored, &self.declined, &self.followed].iter().map(|one| one.references).sum()
    }

    /// What must hold between two calls.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.samples.len() != self.stack.len() || self.samples.len() > self.samples_max {
            return Err(format!("{} samples, {} in order", self.samples.len(), self.stack.len()));
        }
        for (key, sample) in &self.samples {
            if *key > self.threshold || self.stack.key(sample.place) != Some(*key) {
                return Err(format!("sample {key:x} is not at its place"));
            }
            if self.hot.find(*key).is_some() {
                return Err(format!("sample {key:x} is followed twice"));
            }
        }
        match [&self.found, &self.stored, &self.declined, &self.followed].iter().all(|one| one.is_sound()) {
            true => Ok(()),
            false => Err("a curve's weights do not add up".to_owned()),
        }
    }
}

/// The bucket of a page with so many followed pages above it. Those of this call that are above it now were
/// not when the turn began: they lie deeper in the same prefix.
fn bucket_above(above: u64, moved: u64, rate: f64) -> u16 {
    bucket_of((above.saturating_sub(moved) as f64 / rate) as u64 + 1)
}

/// Pages that each of so many namespaces may follow.
pub(super) fn samples_share(namespaces: usize, samples_max: u32) -> usize {
    let share = CURVE_SAMPLES_TOTAL_MAX / namespaces.max(1);
    share.clamp(CURVE_SAMPLES_MIN, CURVE_SAMPLES_MAX as usize).min(samples_max as usize)
}

/// Hashes are an engine's own: all their bytes count, and every bit of the key depends on them.
pub(super) fn key_of(hash: &BlockHash) -> u64 {
    let (words, _) = hash.0.as_chunks::<8>();
    let word = |at: usize| u64::from_le_bytes(words[at]);
    let one = fold(word(0) ^ 0xa076_1d64_78bd_642f, word(1) ^ 0xe703_7ed1_a0b4_28db);
    let two = fold(word(2) ^ 0x8ebc_6af0_9c88_c6e3, word(3) ^ 0x5899_65cc_7537_4cc3);
    fold(one ^ 0x1d8e_4e27_c47d_124f, two ^ 0xeb44_acca_b455_d165)
}

fn fold(one: u64, two: u64) -> u64 {
    let product = u128::from(one) * u128::from(two);
    product as u64 ^ (product >> 64) as u64
}

/// Keys are mixed already, but those of a small sample are all small: the table wants every bit.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = fold(self.0 ^ key, 0x9e37_79b9_7f4a_7c15);
    }
}
