//! Chances of return by age, learned. Owns: the weights of what is known of a wait, and the index that
//! follows from them. Must not know: pages, sessions, what a value means.
//!
//! Ages are in buckets of half an octave. The chance that what reached a bucket comes back in it is a
//! logistic sum: one weight for the bucket, one for its octave, one for each value of the class at any age,
//! and for some values one more in that octave; all of the whole pool and of the namespace. Sessions and
//! pages by themselves are learned apart. So what many waits, or all ages of one, have in common is learned
//! from all of them, and a new namespace begins with what the others know. At first the chance is the same in
//! all buckets, which makes the rate of return fall with age: least recently used.
//!
//! The Gittins index of an age is the best rate of return a second that keeping from there on, up to the best
//! moment to give up, can have.

use crate::eviction::policy::class::{KINDS, TRAITS, TRAITS_BY_AGE, VALUES, WaitClass};
use crate::ids::Now;
use crate::numbers::{Reader, Writer};

#[cfg(test)]
mod tests;

/// Half octaves from 256 ms to about two days.
pub(crate) const BUCKETS: usize = 40;
const OCTAVES: usize = BUCKETS / 2;
/// Milliseconds of the first bucket.
const FIRST_MS: u64 = 256;
/// Logit of the chance of return in a bucket before anything was seen: one in ten.
const PRIOR_LOGIT: f32 = -2.2;
/// Evidence that stands against moving a weight before anything was seen: of a bucket, of a value at any age,
/// of a value in an octave, of anything in one namespace.
const BUCKET_RESTS: f32 = 1.0;
const VALUE_RESTS: f32 = 1.0;
const OCTAVE_RESTS: f32 = 2.0;
const OWN_RESTS: f32 = 4.0;
/// Evidence beyond which a weight does not settle further, so that it follows what changes.
const EVIDENCE_MAX: f32 = 200.0;
/// Evidence that no weight rests on, however many came at once.
const WEIGHT_RESTS_MAX: f32 = 1e12;
/// The least evidence that one observation is.
const EVIDENCE_MIN: f32 = 0.002;
/// How far one observation moves the sum, of the way that its weights would go by themselves.
const STEP: f32 = 1.0;
/// Weights stay within this.
const WEIGHT_MAX: f32 = 12.0;
/// What is left of a wait that need not be looked at further.
const LEFT_MIN: f32 = 1e-3;

/// Cells of sessions: buckets, then octaves, then values by octave, then values at any age. Those of pages by
/// themselves come after them, likewise.
const BY_VALUE: usize = BUCKETS + OCTAVES;
const ANY_AGE: usize = BY_VALUE + values_before(TRAITS_BY_AGE) * OCTAVES;
const OF_PAGES: usize = ANY_AGE + values_before(TRAITS);
const ANY_AGE_OF_PAGES: usize = OF_PAGES + BY_VALUE + KINDS * OCTAVES;
const CELLS: usize = ANY_AGE_OF_PAGES + KINDS;

/// Values of the first so many traits.
const fn values_before(traits: usize) -> usize {
    let (mut at, mut values) = (0, 0);
    while at < traits {
        values += VALUES[at];
        at += 1;
    }
    values
}

/// A weight, and the evidence it rests on.
#[derive(Clone, Copy)]
struct Weight {
    is: f32,
    rests: f32,
}

/// Some cells of a class.
struct Cells {
    cells: [usize; TRAITS],
    count: usize,
}

impl Cells {
    /// Those that count in one bucket: its own and its octave's first.
    fn in_bucket(class: &WaitClass, bucket: usize) -> Cells {
        let octave = bucket / 2;
        let mut cells = [0; TRAITS];
        let first = if class.is_session() { 0 } else { OF_PAGES };
        (cells[0], cells[1]) = (first + bucket, first + BUCKETS + octave);
        match class {
            WaitClass::Session(values) => {
                for (at, value) in values[..TRAITS_BY_AGE].iter().enumerate() {
                    cells[2 + at] = BY_VALUE + (values_before(at) + usize::from(*value)) * OCTAVES + octave;
                }
                Cells { cells, count: 2 + TRAITS_BY_AGE }
            }
            WaitClass::Pages(kind) => {
                cells[2] = first + BY_VALUE + usize::from(*kind) * OCTAVES + octave;
                Cells { cells, count: 3 }
            }
        }
    }

    /// Those that count at any age.
    fn at_any_age(class: &WaitClass) -> Cells {
        let mut cells = [0; TRAITS];
        match class {
            WaitClass::Session(values) => {
                for (at, value) in values.iter().enumerate() {
                    cells[at] = ANY_AGE + values_before(at) + usize::from(*value);
                }
                Cells { cells, count: TRAITS }
            }
            WaitClass::Pages(kind) => {
                cells[0] = ANY_AGE_OF_PAGES + usize::from(*kind);
                Cells { cells, count: 1 }
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = usize> {
        self.cells[..self.count].iter().copied()
    }
}

/// The weights of a pool and of its namespaces.
pub(crate) struct Chances {
    pool: Vec<Weight>,
    own: Vec<Vec<Weight>>,
    /// The last bucket that a session was seen in, and one that pages by themselves were.
    seen: [usize; 2],
}

impl Chances {
    pub(crate) fn new() -> Chances {
        let mut pool = vec![Weight { is: 0.0, rests: VALUE_RESTS }; CELLS];
        for (first, end) in [(BUCKETS, ANY_AGE), (OF_PAGES + BUCKETS, ANY_AGE_OF_PAGES)] {
            pool[first..end].fill(Weight { is: 0.0, rests: OCTAVE_RESTS });
        }
        for first in [0, OF_PAGES] {
            pool[first..first + BUCKETS].fill(Weight { is: PRIOR_LOGIT, rests: BUCKET_RESTS });
        }
        Chances { pool, own: Vec::new(), seen: [0; 2] }
    }

    /// Something of a class left a bucket (`returned` false), or came back in it; `weight`: so many at one
    /// time.
    pub(crate) fn observe(&mut self, ns: u16, class: &WaitClass, bucket: usize, returned: bool, weight: f32) {
        let ns = usize::from(ns);
        if ns >= self.own.len() {
            self.own.resize_with(ns + 1, Vec::new);
        }
        if self.own[ns].is_empty() {
            self.own[ns] = vec![Weight { is: 0.0, rests: OWN_RESTS }; CELLS];
        }
        self.reach(class, bucket);
        let (here, always) = (Cells::in_bucket(class, bucket), Cells::at_any_age(class));
        let chance = logistic(self.sum(ns, &here) + self.sum(ns, &always));
        let surprise = (f32::from(u8::from(returned)) - chance) * weight;
        let evidence = (chance * (1.0 - chance)).max(EVIDENCE_MIN) * weight;
        let step = STEP / (2.0 * (here.count + always.count) as f32).sqrt();
        for weights in [&mut self.pool, &mut self.own[ns]] {
            for cell in here.iter().chain(always.iter()) {
                let this = &mut weights[cell];
                this.rests = (this.rests + evidence).min(EVIDENCE_MAX.max(evidence));
                this.is = (this.is + step * surprise / this.rests).clamp(-WEIGHT_MAX, WEIGHT_MAX);
            }
        }
    }

    /// Something of a class ended in a bucket: it stays away in that one and in all after it.
    pub(crate) fn observe_end(&mut self, ns: u16, class: &WaitClass, from: usize) {
        for bucket in from..=self.seen[usize::from(class.is_session())] {
            self.observe(ns, class, bucket, false, 1.0);
        }
    }

    /// The rate of return a second, of a class at an age.
    pub(crate) fn index(&self, ns: u16, class: &WaitClass, from: usize) -> f32 {
        let (mut left, mut returns, mut time, mut best) = (1.0f32, 0.0f32, 0.0f32, 0.0f32);
        let (ns, seen) = (usize::from(ns), self.seen[usize::from(class.is_session())]);
        let always = self.sum(ns, &Cells::at_any_age(class));
        for bucket in from..BUCKETS {
            let chance = logistic(always + self.sum(ns, &Cells::in_bucket(class, bucket.min(seen))));
            // All ages below the first half octave are taken for one half octave: wider, they would seem to
            // return less.
            let like = bucket.max(1);
            let width = (starts(like + 1) - starts(like)) as f32 / 1000.0;
            returns += left * chance;
            time += left * width * (1.0 - chance / 2.0);
            left *= 1.0 - chance;
            best = best.max(returns / time);
            // Were all that is left to come back at once, it would be no better.
            if left < LEFT_MIN || (returns + left) / time < best {
                break;
            }
        }
        best
    }

    /// What was learned of one namespace by itself is forgotten.
    pub(crate) fn forget(&mut self, ns: u16) {
        if let Some(own) = self.own.get_mut(usize::from(ns)) {
            *own = Vec::new();
        }
    }

    /// An age that nobody had reached begins as what was learned of the one before.
    fn reach(&mut self, class: &WaitClass, bucket: usize) {
        let of = usize::from(class.is_session());
        let (first, end) = if of == 1 { (0, ANY_AGE) } else { (OF_PAGES, ANY_AGE_OF_PAGES) };
        for next in self.seen[of] + 1..=bucket {
            for weights in self.own.iter_mut().chain([&mut self.pool]).filter(|weights| !weights.is_empty()) {
                weights[first + next].is = weights[first + next - 1].is;
                for values in weights[first + BUCKETS..end].chunks_mut(OCTAVES).filter(|_| next % 2 == 0) {
                    values[next / 2].is = values[next / 2 - 1].is;
                }
            }
            self.seen[of] = next;
        }
    }

    /// Writes the weights of the pool (none), or of one namespace by itself.
    pub(crate) fn write(&self, ns: Option<u16>, into: &mut Writer) {
        let weights = match ns {
            None => {
                self.seen.iter().for_each(|bucket| into.count(*bucket));
                &self.pool
            }
            Some(ns) => self.own.get(usize::from(ns)).unwrap_or(const { &Vec::new() }),
        };
        into.count(weights.len());
        for Weight { is, rests } in weights {
            into.f32(*is);
            into.f32(*rests);
        }
    }

    /// Takes weights as they were written. None: they are not of this form, and nothing changes.
    pub(crate) fn read(&mut self, ns: Option<u16>, from: &mut Reader<'_>) -> Option<()> {
        let seen = match ns {
            None => [from.count(BUCKETS - 1)?, from.count(BUCKETS - 1)?],
            Some(_) => self.seen,
        };
        let count = from.count(CELLS)?;
        let weight = |_| {
            let (is, rests) = (from.f32()?, from.f32()?);
            let fits = is.abs() <= WEIGHT_MAX && rests > 0.0 && rests <= WEIGHT_RESTS_MAX;
            fits.then_some(Weight { is, rests })
        };
        let weights: Vec<Weight> = (0..count).map(weight).collect::<Option<_>>()?;
        match ns {
            None if count == CELLS => (self.pool, self.seen) = (weights, seen),
            Some(ns) if count == CELLS || count == 0 => {
                let ns = usize::from(ns);
                if ns >= self.own.len() {
                    self.own.resize_with(ns + 1, Vec::new);
                }
                self.own[ns] = weights;
            }
            _ => return None,
        }
        Some(())
    }

    /// Whether weights are within their bounds: every `step`th is looked at.
    pub(crate) fn check(&self, step: usize) -> Result<(), String> {
        for (at, weights) in [&self.pool].into_iter().chain(&self.own).enumerate() {
            if !weights.is_empty() && weights.len() != CELLS {
                return Err(format!("weights {at} are {} of {CELLS}", weights.len()));
            }
            let fits = |weight: &Weight| weight.is.abs() <= WEIGHT_MAX && weight.rests > 0.0;
            if let Some(cell) = (0..weights.len()).step_by(step).find(|cell| !fits(&weights[*cell])) {
                let Weight { is, rests } = weights[cell];
                return Err(format!("weights {at}: cell {cell} is {is}, rests on {rests}"));
            }
        }
        Ok(())
    }

    fn sum(&self, ns: usize, cells: &Cells) -> f32 {
        let of = |weights: &[Weight]| cells.iter().map(|cell| weights[cell].is).sum::<f32>();
        of(&self.pool) + self.own.get(ns).filter(|own| !own.is_empty()).map_or(0.0, |own| of(own))
    }
}

fn logistic(sum: f32) -> f32 {
    1.0 / (1.0 + (-sum).exp())
}

/// The age at which a bucket begins.
fn starts(bucket: usize) -> u64 {
    match bucket {
        0 => 0,
        bucket => {
            let octave = FIRST_MS << ((bucket - 1) / 2);
            if bucket % 2 == 1 { octave } else { octave + octave * 53 / 128 }
        }
    }
}

/// When something that waits since `since` leaves the bucket.
pub(crate) fn next_change(since: Now, bucket: usize) -> Now {
    since.saturating_add(starts(bucket + 1))
}
