//! One run: a seed's operations, faults and crashes on the real tier, each outcome held against the model.
//!
//! Owns: what a seed stands for, and what an owner of pages does. The same seed and number of steps give the same run, call by
//! call.
//!
//! - `answers`: what the tier answers; `ends`: ends of its lives, and its starts

mod answers;
mod ends;

use crate::model::{Content, Model};
use crate::shape::Shape;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use turnkv_tier::nvme::simulation::{Fault, FaultCounts, FaultPlan, Random, SimulatedDisk};
use turnkv_tier::nvme::{Candidate, NvmeConfig, NvmeTier, Packing, SealedSegment};
use turnkv_tier::{Location, TierError};
use turnkv_transfer::{HugePages, Region, RegionOptions};

pub(crate) const SEGMENT: u64 = 1 << 20;
const PAGES: u64 = 40;
const SIZES: [u32; 7] = [1, 4096, 4097, 30_000, 100_000, 150_000, 200_000];
const SLOT: usize = 200 << 10;
const SLOTS: usize = 16;

/// What a run did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) trace: u64,
    pub(crate) counts: FaultCounts,
    pub(crate) writes: u64,
    pub(crate) reads: u64,
    pub(crate) moves: u64,
    pub(crate) released: u64,
    pub(crate) vouched_at_crashes: u64,
    pub(crate) poisoned: u64,
}

impl Outcome {
    /// Adds another run.
    pub(crate) fn add(&mut self, other: &Outcome) {
        self.counts.add(&other.counts);
        self.writes += other.writes;
        self.reads += other.reads;
        self.moves += other.moves;
        self.released += other.released;
        self.vouched_at_crashes += other.vouched_at_crashes;
        self.poisoned += other.poisoned;
    }
}

enum Op {
    Write { content: Content, moved_from: Option<Location>, slot: usize },
    Read { at: Location, content: Content, slot: usize },
    Flush { covered: Vec<(Location, Content)> },
}

enum Answer {
    Written(Result<Location, TierError>),
    Read(Result<(), TierError>),
    Flushed(Result<(), TierError>),
}

/// An operation's number, its answer, and whether anybody could hear it.
type Event = (u64, Answer, bool);

struct Pass {
    candidate: Candidate,
    left: usize,
}

pub(crate) struct Run {
    random: Random,
    shape: Shape,
    disk: SimulatedDisk,
    config: NvmeConfig,
    tier: Option<NvmeTier>,
    region: Arc<Region>,
    free_slots: Vec<usize>,
    ops: BTreeMap<u64, Op>,
    next_op: u64,
    events: Arc<Mutex<Vec<Event>>>,
    model: Model,
    pass: Option<Pass>,
    /// Kinds of faults since the tier was opened.
    suffered: BTreeSet<Fault>,
    outcome: Outcome,
    /// Whether everything is told as it happens.
    talks: bool,
    steps: u64,
}

/// Plays a seed for so many steps; what broke, and at which step.
pub(crate) fn play(seed: u64, steps: u64) -> Result<Outcome, (u64, String)> {
    let mut run = Run::new(seed).map_err(|what| (0, what))?;
    for step in 1..=steps {
        run.step().map_err(|what| (step, what))?;
    }
    run.end().map_err(|what| (steps, what))
}

impl Run {
    fn new(seed: u64) -> Result<Run, String> {
        let mut random = Random::new(seed);
        let shape = Shape::new(seed, &mut random);
        let plan = FaultPlan { seed: random.draw(), ..shape.plan.clone() };
        let disk = SimulatedDisk::new(plan, shape.disk_bytes).map_err(|error| error.to_string())?;
        let options = RegionOptions {
            bytes: SLOT * SLOTS,
            huge_pages: HugePages::Off,
            touch: false,
            lock: false,
            name: "simulation".to_owned(),
        };
        let config = NvmeConfig {
            segment_bytes: SEGMENT,
            inflight_bytes: 512 << 10,
            packing: shape.packing,
            ..NvmeConfig::new("simulated", shape.segments * SEGMENT)
        };
        let packs = shape.packing != Packing::Off;
        let mut run = Run {
            random,
            shape,
            disk,
            config,
            tier: None,
            region: Region::create(&options).map_err(|error| error.to_string())?.0,
            free_slots: (0..SLOTS).collect(),
            ops: BTreeMap::new(),
            next_op: 0,
            events: Arc::default(),
            model: Model::new(packs),
            pass: None,
            suffered: BTreeSet::new(),
            outcome: Outcome::default(),
            talks: std::env::var_os("TURNKV_SIM_LOG").is_some(),
            steps: 0,
        };
        run.tell(|| format!("{:?}, {} segments", run.shape.plan.rates, run.shape.segments));
        run.open()?;
        Ok(run)
    }

    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        match self.random.below(100) {
            0..16 => self.write(),
            16..24 => self.read(),
            24..28 => self.flush(),
            28..31 => self.drop_page(),
            31..43 => self.reclaim()?,
            43..45 => self.pass_time(),
            45 if self.random.below(3) == 0 => self.restart()?,
            46 if self.random.below(4) == 0 => self.resize_disk(),
            _ => drop(self.advance()?),
        }
        self.settle()?;
        if self.disk.is_off() {
            return self.lose_power();
        }
        self.check()
    }

    /// Lets the tier do one thing.
    fn advance(&mut self) -> Result<bool, String> {
        let mut random = Random::new(self.random.draw());
        Ok(self.tier()?.step_any(&mut random))
    }

    fn tell(&self, what: impl FnOnce() -> String) {
        if self.talks {
            println!("{} ({}): {}", self.steps, self.disk.operations(), what());
        }
    }

    fn tier(&self) -> Result<&NvmeTier, String> {
        self.tier.as_ref().ok_or_else(|| "there is no tier".to_owned())
    }

    fn write(&mut self) {
        let key = self.random.below(PAGES);
        let bytes = SIZES[self.random.index(SIZES.len())];
        let busy = self.ops.values().any(|op| matches!(op, Op::Write { content, .. } if content.key == key));
        if busy || self.model.holds(key) {
            return;
        }
        let Some(slot) = self.free_slots.pop() else { return };
        let content = self.model.write(key, bytes);
        self.submit_write(content, None, slot);
    }

    fn submit_write(&mut self, content: Content, moved_from: Option<Location>, slot: usize) {
        let (number, done) = self.promise(Answer::Written);
        self.tell(|| format!("write {number} of {content:?}, moved from {moved_from:?}"));
        let source = self.slot(slot, content.bytes);
        source.claim().unwrap().fill(&content.payload());
        self.ops.insert(number, Op::Write { content, moved_from, slot });
        let Some(tier) = &self.tier else { return };
        if moved_from.is_some() {
            tier.rewrite(content.meta(), source, done);
        } else {
            tier.write(content.meta(), source, done);
        }
    }

    fn read(&mut self) {
        let live: Vec<_> = self.model.live.iter().map(|(at, content)| (*at, *content)).collect();
        let Some(&(at, content)) = live.get(self.random.index(live.len())) else { return };
        let Some(slot) = self.free_slots.pop() else { return };
        let (number, done) = self.promise(Answer::Read);
        self.ops.insert(number, Op::Read { at, content, slot });
        let target = self.slot(slot, content.bytes);
        let Some(tier) = &self.tier else { return };
        tier.read(at, content.bytes, content.meta().checksum, target, done);
    }

    fn flush(&mut self) {
        let covered = self.model.live.iter().map(|(at, content)| (*at, *content)).collect();
        let (number, done) = self.promise(Answer::Flushed);
        self.tell(|| format!("flush {number}"));
        self.ops.insert(number, Op::Flush { covered });
        if let Some(tier) = &self.tier {
            tier.flush(done);
        }
    }

    fn drop_page(&mut self) {
        let key = self.random.below(PAGES);
        self.forget_page(key);
    }

    fn forget_page(&mut self, key: u64) {
        for (at, content) in self.model.drop_page(key) {
            self.tell(|| format!("forget {content:?} at {at:?}"));
            if let Some(tier) = &self.tier {
                tier.forget(at, content.bytes);
            }
        }
    }

    /// Goes on with emptying a segment, or begins with one when space is low.
    fn reclaim(&mut self) -> Result<(), String> {
        let Some(mut pass) = self.pass.take() else { return self.claim() };
        let segment = pass.candidate.segment;
        if self.random.below(60) == 0 {
            self.tell(|| format!("keep {segment}"));
            self.tier()?.keep(segment);
            return Ok(());
        }
        if pass.left > 0 {
            pass.left -= 1;
            let (meta, at) = &pass.candidate.extents[pass.left];
            if let Some(content) = self.model.live.get(at).copied() {
                if content.meta() != *meta {
                    return Err(format!("reclaim says that {at:?} holds {meta:?}, and it is {content:?}"));
                }
                self.empty_extent(*at, content);
            }
            self.pass = Some(pass);
            return Ok(());
        }
        let alive = pass.candidate.extents.iter().filter(|(_, at)| self.model.live.contains_key(at)).count();
        let moving = |at: &Location| {
            self.ops.values().any(|op| matches!(op, Op::Write { moved_from: Some(from), .. } if from == at))
        };
        let under_way = pass.candidate.extents.iter().any(|(_, at)| moving(at));
        if alive == 0 {
            self.tell(|| format!("release {segment}"));
            self.tier()?.release(segment);
            self.outcome.released += 1;
        } else if under_way {
            self.pass = Some(pass);
        } else {
            pass.left = pass.candidate.extents.len();
            self.pass = Some(pass);
        }
        Ok(())
    }

    fn empty_extent(&mut self, at: Location, content: Content) {
        let slot = if self.random.below(10) < 6 { self.free_slots.pop() } else { None };
        match slot {
            Some(slot) => {
                self.outcome.moves += 1;
                self.submit_write(content, Some(at), slot);
            }
            None => self.forget_page(content.key),
        }
    }

    fn claim(&mut self) -> Result<(), String> {
        let tier = self.tier()?;
        if !tier.needs_reclaim() {
            return Ok(());
        }
        let Some(candidate) = tier.reclaim_candidate(SealedSegment::dead_bytes) else { return Ok(()) };
        if self.disk.is_off() {
            return Ok(());
        }
        let claimed: BTreeSet<Location> = candidate.extents.iter().map(|(_, at)| *at).collect();
        let number = u64::from(candidate.segment);
        let here = self.model.live.keys().filter(|at| u64::from(at.segment) == number);
        let here: BTreeSet<Location> = here.copied().collect();
        if !claimed.is_subset(&here) {
            return Err(format!("reclaim names {claimed:?}, alive are {here:?}"));
        }
        self.note_hits();
        if claimed != here && !self.medium_failed() {
            return Err(format!("reclaim names only {claimed:?}, alive are {here:?}"));
        }
        // What cannot be read any more has to be given up before the segment is.
        let lost: Vec<u64> = here.difference(&claimed).map(|at| self.model.live[at].key).collect();
        for key in lost {
            self.forget_page(key);
        }
        self.tell(|| format!("claim {} with {here:?}", candidate.segment));
        self.pass = Some(Pass { left: candidate.extents.len(), candidate });
        Ok(())
    }

    fn pass_time(&mut self) {
        let long = self.random.below(8) == 0;
        let wait = if long { Duration::from_secs(31) } else { Duration::from_millis(self.random.below(200)) };
        self.disk.advance(wait);
    }

    fn resize_disk(&mut self) {
        if self.shape.space_changes {
            let segments = 3 + self.random.below(self.shape.segments);
            self.disk.set_capacity((segments * SEGMENT) + (64 << 10));
        }
    }
}
