//! One run: a seed's operations, faults and crashes on the real tier, each outcome held against the model.
//!
//! Owns: what a seed stands for. The same seed and number of steps give the same run, call by call.

use crate::model::{Content, Model, Vouched};
use crate::shape::Shape;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use turnkv_tier::nvme::simulation::{Fault, FaultCounts, FaultPlan, Hit, Random, SimulatedDisk};
use turnkv_tier::nvme::{Candidate, NvmeConfig, NvmeTier};
use turnkv_tier::{Done, Location, Tier, TierError};
use turnkv_transfer::{HugePages, Region, RegionOptions, Slot};

pub(crate) const SEGMENT: u64 = 1 << 20;
const PAGES: u64 = 40;
const SIZES: [u32; 7] = [1, 4096, 4097, 30_000, 100_000, 150_000, 200_000];
const SLOT: usize = 200 << 10;
const SLOTS: usize = 16;
/// Blocks at the end of a segment where its footer is.
const FOOTER_BLOCKS: u64 = 4;
/// Starts that may fail in a row for a reason before the faults are taken away.
const OPENS_MAX: usize = 8;

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
        let shape = Shape::new(&mut random);
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
            ..NvmeConfig::new("simulated", shape.segments * SEGMENT)
        };
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
            model: Model::default(),
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

    // ---- what an owner of pages does ----

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
        source.fill(&content.payload());
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
        let Some(candidate) = tier.reclaim_candidate(|_| u64::MAX) else { return Ok(()) };
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

    // ---- answers ----

    fn promise<T: Send + 'static>(
        &mut self,
        answer: impl FnOnce(Result<T, TierError>) -> Answer + Send + 'static,
    ) -> (u64, Done<T>) {
        self.next_op += 1;
        let number = self.next_op;
        let (events, disk) = (Arc::clone(&self.events), self.disk.clone());
        let done = move |result| {
            if let Ok(mut events) = events.lock() {
                events.push((number, answer(result), !disk.is_off()));
            }
        };
        (number, Box::new(done))
    }

    fn slot(&self, number: usize, bytes: u32) -> Slot {
        self.region.slot(number * SLOT, bytes as usize).expect("a slot is as large as the largest page")
    }

    fn note_hits(&mut self) {
        let hits = self.disk.take_hits();
        for hit in &hits {
            self.tell(|| format!("{hit:?}"));
        }
        self.suffered.extend(hits.iter().map(|hit| hit.fault));
    }

    fn settle(&mut self) -> Result<(), String> {
        self.note_hits();
        let events = self.events.lock().map(|mut events| std::mem::take(&mut *events));
        for (number, answer, heard) in events.map_err(|error| error.to_string())? {
            let Some(op) = self.ops.remove(&number) else {
                return Err(format!("operation {number} was answered twice"));
            };
            match (op, answer) {
                (Op::Write { content, moved_from, slot }, Answer::Written(result)) => {
                    self.free_slots.push(slot);
                    if heard {
                        self.write_ended(content, moved_from, result)?;
                    }
                }
                (Op::Read { at, content, slot }, Answer::Read(result)) => {
                    let same = self.slot(slot, content.bytes).bytes() == content.payload();
                    self.free_slots.push(slot);
                    if result.is_ok() && !same {
                        return Err(format!("a read of {content:?} at {at:?} gave other bytes"));
                    }
                    if heard {
                        self.read_ended(at, content, result)?;
                    }
                }
                (Op::Flush { covered }, Answer::Flushed(result)) if heard => {
                    self.tell(|| format!("flushed {number}: {result:?}"));
                    match result {
                        Ok(()) => self.model.flushed(&covered),
                        Err(error) => self.excuse("a flush", &error)?,
                    }
                }
                (Op::Flush { .. }, _) => {}
                _ => return Err(format!("operation {number} was answered as another kind")),
            }
        }
        Ok(())
    }

    fn write_ended(
        &mut self,
        content: Content,
        moved_from: Option<Location>,
        result: Result<Location, TierError>,
    ) -> Result<(), String> {
        self.tell(|| format!("written {content:?}: {result:?}"));
        let at = match result {
            Ok(at) => at,
            Err(TierError::Full) => return Ok(()),
            Err(error) => return self.excuse("a write", &error),
        };
        self.outcome.writes += 1;
        self.model.written(at, content)?;
        let Some(old) = moved_from else { return Ok(()) };
        let tier = self.tier.as_ref().ok_or("there is no tier")?;
        if self.model.live.get(&old) == Some(&content) {
            self.model.live.remove(&old);
            tier.forget(old, content.bytes);
        } else {
            // Its owner dropped it while it moved.
            self.model.live.remove(&at);
            tier.forget(at, content.bytes);
        }
        Ok(())
    }

    fn read_ended(
        &mut self,
        at: Location,
        content: Content,
        result: Result<(), TierError>,
    ) -> Result<(), String> {
        self.outcome.reads += 1;
        let Err(error) = result else { return Ok(()) };
        match error {
            TierError::Stale(_) => Err(format!("{content:?} at {at:?} was alive when it was read: {error}")),
            TierError::Checksum(_) if !self.medium_failed() => {
                Err(format!("{content:?} at {at:?} does not verify, and no fault hit it"))
            }
            _ => {
                if !self.medium_failed() {
                    self.excuse("a read", &error)?;
                }
                if self.model.live.get(&at) == Some(&content) {
                    self.forget_page(content.key); // as the pool does
                }
                Ok(())
            }
        }
    }

    /// May an operation fail so, after the faults there were?
    fn excuse(&self, what: &str, error: &TierError) -> Result<(), String> {
        let harmless = [Fault::Short, Fault::Interrupted, Fault::Slow];
        if self.suffered.iter().any(|fault| !harmless.contains(fault)) {
            return Ok(());
        }
        Err(format!("{what} failed without a fault: {error}"))
    }

    /// Has a fault of the medium, or on the way to it, changed or hidden bytes?
    fn medium_failed(&self) -> bool {
        let faults = [Fault::ReadError, Fault::Latent, Fault::FlippedRead, Fault::FlippedWrite, Fault::Rot];
        self.outcome_counts_any(&faults)
    }

    fn outcome_counts_any(&self, faults: &[Fault]) -> bool {
        let counts = self.disk.counts();
        faults.iter().any(|fault| counts.faults.contains_key(fault))
    }

    fn check(&mut self) -> Result<(), String> {
        let tier = self.tier()?;
        let usage = tier.usage();
        let room = self.config.capacity_bytes;
        if usage.used_bytes > usage.capacity_bytes || usage.capacity_bytes > room {
            return Err(format!("the gauges do not fit one another: {usage:?}"));
        }
        let taken = self.disk.used_bytes();
        if taken > room + (64 << 10) {
            return Err(format!("{taken} bytes are taken, {room} are configured"));
        }
        let alive = (usage.live_bytes, usage.live_extents);
        if alive != self.model.usage() {
            return Err(format!(
                "alive are {alive:?} says the tier, {:?} says the model",
                self.model.usage()
            ));
        }
        if let Some(why) = tier.poisoned() {
            let poison = [Fault::WriteError, Fault::SyncError, Fault::PowerCut];
            if !poison.iter().any(|fault| self.suffered.contains(fault)) {
                return Err(format!("out of service after {:?}: {why}", self.suffered));
            }
        }
        Ok(())
    }

    // ---- the end of a life ----

    fn restart(&mut self) -> Result<(), String> {
        match self.random.below(4) {
            0 => {
                self.tell(|| "kill".to_owned());
                self.disk.kill();
            }
            1 => return self.shut_down(),
            _ => return self.lose_power(),
        }
        self.leave()?;
        self.open()
    }

    fn lose_power(&mut self) -> Result<(), String> {
        self.outcome.vouched_at_crashes += self.model.vouched.len() as u64;
        self.tell(|| "the power is cut".to_owned());
        self.disk.cut_power();
        self.leave()?;
        self.disk.crash();
        self.open()
    }

    /// Ends the tier; everything it accepted must be answered.
    fn leave(&mut self) -> Result<(), String> {
        if self.tier()?.poisoned().is_some() {
            self.outcome.poisoned += 1;
        }
        self.tier = None;
        self.pass = None;
        // What is answered now is answered by a process that is gone.
        let events = self.events.lock().map(|mut events| std::mem::take(&mut *events));
        for (number, ..) in events.map_err(|error| error.to_string())? {
            if self.ops.remove(&number).is_none() {
                return Err(format!("operation {number} was answered twice"));
            }
        }
        if let Some(number) = self.ops.keys().next() {
            return Err(format!("operation {number} was never answered"));
        }
        self.free_slots = (0..SLOTS).collect();
        Ok(())
    }

    fn shut_down(&mut self) -> Result<(), String> {
        self.tell(|| "shutdown".to_owned());
        let ended = self.tier()?.shutdown();
        self.settle()?;
        if self.disk.is_off() {
            return self.lose_power();
        }
        match ended {
            Ok(()) => {
                let all: Vec<_> = self.model.live.iter().map(|(at, content)| (*at, *content)).collect();
                self.model.flushed(&all);
            }
            Err(error) => self.excuse("the shutdown", &error)?,
        }
        if self.suffered.contains(&Fault::Stuck) {
            self.ops.clear(); // what is stuck is never answered, and its process is gone
        }
        self.leave()?;
        self.disk.kill();
        self.open()
    }

    fn open(&mut self) -> Result<(), String> {
        for attempt in 0.. {
            self.disk.take_hits();
            if attempt == OPENS_MAX {
                self.disk.set_plan(FaultPlan::calm(0));
                self.disk.set_capacity(self.shape.disk_bytes.max(2 * self.config.capacity_bytes));
            }
            let opened = NvmeTier::open_simulated(self.config.clone(), &self.disk);
            let hits = self.disk.take_hits();
            match opened {
                // Whatever was read, the power was cut meanwhile.
                _ if self.disk.is_off() => {
                    drop(opened);
                    self.disk.crash();
                }
                Ok((tier, recovered, report)) => {
                    self.tier = Some(tier);
                    self.suffered = hits.iter().map(|hit| hit.fault).collect();
                    self.tell(|| format!("opened: {report:?}, {hits:?}"));
                    let found: Vec<_> = recovered.into_iter().map(|found| (found.meta, found.at)).collect();
                    let disk = self.disk.clone();
                    self.model.recovered(&found, |vouched| excused(&disk, &hits, vouched))?;
                    return Ok(());
                }
                Err(error) => {
                    self.tell(|| format!("refused: {error}, {hits:?}"));
                    self.may_refuse(&error.to_string(), &hits, attempt)?;
                }
            }
        }
        Err("it is never opened".to_owned())
    }

    /// A start may be refused when a write fails or there is no space or descriptor, never because of what cannot be read.
    fn may_refuse(&self, error: &str, hits: &[Hit], attempt: usize) -> Result<(), String> {
        let reasons = [Fault::WriteError, Fault::SyncError, Fault::NoSpace, Fault::NoDescriptor];
        let hit = hits.iter().any(|hit| reasons.contains(&hit.fault));
        let copies = ["superblock", "superblock.2"];
        let lost = copies.iter().all(|name| self.disk.is_damaged(name, 0, 4096) || hits_on(hits, name));
        if attempt < OPENS_MAX && (hit || lost || self.shape.space_changes) {
            return Ok(());
        }
        Err(format!("the start is refused: {error}, after {hits:?}"))
    }

    /// The last crash, and a life without faults after it: whatever is there then is read.
    fn end(mut self) -> Result<Outcome, String> {
        self.lose_power()?;
        self.disk.set_plan(FaultPlan::calm(0));
        self.disk.set_capacity(2 * self.config.capacity_bytes);
        self.restart_calmly()?;
        let live: Vec<_> = self.model.live.iter().map(|(at, content)| (*at, *content)).collect();
        for (at, content) in live {
            let slot = self.free_slots.pop().ok_or("no slot is free")?;
            let (number, done) = self.promise(Answer::Read);
            self.ops.insert(number, Op::Read { at, content, slot });
            let target = self.slot(slot, content.bytes);
            self.tier()?.read(at, content.bytes, content.meta().checksum, target, done);
            self.run_dry()?;
        }
        self.flush();
        self.run_dry()?;
        self.check()?;
        self.tier()?.shutdown().map_err(|error| format!("a calm shutdown: {error}"))?;
        self.settle()?;
        self.leave()?;
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.counts = self.disk.counts();
        outcome.trace = self.disk.trace();
        Ok(outcome)
    }

    fn restart_calmly(&mut self) -> Result<(), String> {
        self.disk.kill();
        self.leave()?;
        self.open()
    }

    fn run_dry(&mut self) -> Result<(), String> {
        while self.advance()? {}
        self.settle()
    }
}

fn hits_on(hits: &[Hit], name: &str) -> bool {
    hits.iter().any(|hit| hit.name.as_deref() == Some(name))
}

fn file_of(at: &Location) -> String {
    format!("segment-{:06}.kv", at.segment)
}

/// Does a fault make what is read of a file other than what is there?
fn bends(hit: &Hit, name: &str) -> bool {
    let bent = matches!(hit.fault, Fault::ReadError | Fault::Latent | Fault::FlippedRead);
    bent && hit.name.as_deref() == Some(name)
}

/// Has a fault of the medium hit a page: its bytes, or what says that its segment counts?
fn excused(disk: &SimulatedDisk, hits: &[Hit], vouched: &Vouched) -> bool {
    vouched.places.iter().any(|at| {
        let name = file_of(at);
        let header = u64::from(at.block) * 4096;
        disk.is_damaged(&name, 0, 4096)
            || disk.is_damaged(&name, header, vouched.content.blocks() as usize * 4096)
            || disk.is_damaged(&name, SEGMENT - FOOTER_BLOCKS * 4096, FOOTER_BLOCKS as usize * 4096)
            || hits.iter().any(|hit| bends(hit, &name))
    })
}
