//! One run: lives of a server one after another, clients, time, faults; and what must hold at every moment of it.
//! Owns: what a run is made of, in which order it goes. Must not know: what clients do in particular.
//!
//! - `lives`: how a life begins and ends
//! - `step`: what happens in it, one thing after another
//! - `survival`: what must be there after a restart
//! - `check`: what must hold at any moment, and at rest
//! - `finish`: the end of a run

mod check;
mod finish;
mod lives;
mod step;
mod survival;

use crate::context::{Client, Context};
use crate::model::Model;
use crate::plan::Plan;
use crate::tasks::Tasks;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;
use turnkv::simulation::{FaultCounts, Held, Random, SimulatedDisk, Time};

/// How often a server looks after time.
const TICK: Duration = Duration::from_millis(100);
/// Steps between two checks of everything.
const CHECK_STEPS: u64 = 16;
/// Slabs that page memory is to have at most while a server runs.
const SLABS_MAX: u64 = 6;
/// Bytes of the catalog's disk.
const CATALOG_BYTES: u64 = 256 << 20;

/// What came of a run.
pub(crate) struct Outcome {
    pub(crate) broken: Vec<String>,
    pub(crate) steps: u64,
    pub(crate) trace: u64,
    pub(crate) totals: Totals,
}

/// What happened in runs.
#[derive(Default)]
pub(crate) struct Totals {
    pub(crate) pages: FaultCounts,
    pub(crate) catalog: FaultCounts,
    pub(crate) calls: BTreeMap<&'static str, u64>,
    pub(crate) starts: u64,
    pub(crate) clean_ends: u64,
    pub(crate) survivors: u64,
    pub(crate) forgiven: u64,
    /// Pages that had to survive and did not, because a full index had no room for them.
    pub(crate) crowded_out: u64,
    /// Starts with other sizes than before.
    pub(crate) resizes: u64,
    /// Sizes that page memory was to have while a server ran.
    pub(crate) breaths: u64,
    /// Pages demoted, shards promoted, segments emptied, pages evicted, pages dropped.
    pub(crate) moved: [u64; 5],
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The process is killed, the power stays.
    Kill,
    /// The power is lost.
    Power,
    /// Asked to leave, and given time.
    Clean,
}

struct World {
    context: Rc<Context>,
    plan: Plan,
    tasks: Tasks,
    clients: Vec<(Rc<Client>, Option<u64>)>,
    pages: SimulatedDisk,
    catalog: SimulatedDisk,
    next_tick: Duration,
    ticks: u64,
    lives: u64,
    next_client: u64,
    /// What chooses the sizes of the next server.
    sizes: Random,
    /// What chooses when page memory changes.
    breaths: Random,
    /// Pages that must be there after the power is lost in this step.
    before: Vec<(usize, u32, Held)>,
    /// Pages seen in this life, and how many of them were missed since.
    seen: BTreeSet<(usize, u32)>,
    lost: u64,
    totals: Totals,
}

/// Runs a plan.
pub(crate) fn run(plan: &Plan, log: bool) -> Outcome {
    let mut world = World::new(plan.clone(), log);
    let mut steps = 0;
    world.start(None);
    while steps < plan.steps && world.is_well() {
        world.step();
        steps += 1;
        if steps.is_multiple_of(CHECK_STEPS) && world.is_well() {
            world.check();
        }
    }
    if world.is_well() {
        world.finish();
    }
    let mut totals = world.totals;
    totals.pages.add(&world.pages.counts());
    totals.catalog.add(&world.catalog.counts());
    totals.calls = world.context.done.take();
    let trace = world.context.trace.get() ^ world.pages.trace() ^ world.catalog.trace().rotate_left(32);
    Outcome { broken: world.context.broken.take(), steps, trace, totals }
}

impl World {
    fn new(plan: Plan, log: bool) -> World {
        let time = Time::new();
        let random = Random::new(plan.seed);
        let context =
            Context::new(time, random, Model::new(plan.specs.clone()), plan.wide.then(|| plan.widths()), log);
        let pages = SimulatedDisk::new(plan.pages.clone(), plan.disk_bytes).expect("a disk");
        let catalog = SimulatedDisk::new(plan.catalog.clone(), CATALOG_BYTES).expect("a disk");
        World {
            context,
            tasks: Tasks::default(),
            clients: Vec::new(),
            pages,
            catalog,
            next_tick: TICK,
            ticks: 0,
            lives: 0,
            next_client: 1,
            sizes: plan.resizing(),
            breaths: plan.breathing(),
            before: Vec::new(),
            seen: BTreeSet::new(),
            lost: 0,
            totals: Totals::default(),
            plan,
        }
    }

    fn is_well(&self) -> bool {
        self.context.broken.borrow().is_empty()
    }

    fn below(&self, bound: u64) -> u64 {
        self.context.below(bound)
    }

    fn happens(&self, per_million: u32) -> bool {
        self.context.random.borrow_mut().happens(per_million)
    }
}
