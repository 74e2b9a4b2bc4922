//! One run: lives of a server one after another, clients, time, faults; and what must hold at every moment of it.
//! Must not know: what clients do in particular.

use super::clients::{act, open, vanish};
use super::context::{Client, Context};
use super::model::Model;
use super::plan::{AMPLE_BYTES, Plan};
use super::tasks::Tasks;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use turnkv::simulation::{
    Books, Fault, FaultCounts, FaultPlan, Held, Random, Server, SimulatedDisk, Step, Time,
};

/// How often a server looks after time.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two flushes of the catalog.
const FLUSH_TICKS: u64 = 5;
/// Steps between two checks of everything.
const CHECK_STEPS: u64 = 16;
/// Steps that tier and reclaim may take before they rest.
const WORK_MAX: u32 = 20_000;
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
        let context = Context::new(time, random, Model::new(plan.specs.clone()), log);
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

    /// Starts a server on what the last one left; `held`: what must be there.
    fn start(&mut self, held: Option<Vec<(usize, u32, Held)>>) {
        self.lives += 1;
        if self.lives > 1 && self.plan.resizes && self.sizes.below(3) == 0 {
            self.plan.resize(&mut self.sizes);
            self.totals.resizes += 1;
        }
        if self.lives == 1 {
            self.context.say(|| format!("PLAN {:?}", self.plan));
        }
        self.totals.starts += 1;
        // What reading and opening can suffer may happen while a server starts: it must start even so.
        let loose = self.below(4) == 0;
        self.pages.set_plan(self.starting(&self.plan.pages, loose));
        self.catalog.set_plan(self.starting(&self.plan.catalog, loose));
        let disks = (self.plan.shape.nvme_bytes > 0).then_some((&self.pages, &self.catalog));
        let started = Server::start(&self.plan.shape, &self.context.time, disks, self.lives);
        self.context.say(|| format!("START {} loose {loose} {:?}", self.lives, started.as_ref().err()));
        match started {
            Ok(server) => *self.context.server.borrow_mut() = Some(server),
            Err(error) => return self.context.broken(format!("the server does not start: {error:#}")),
        }
        self.context.model.borrow_mut().new_life();
        self.seen.clear();
        self.lost = 0;
        for _ in 0..self.plan.clients {
            let client = self.new_client();
            self.clients.push((client, None));
        }
        self.next_tick = self.context.time.now() + TICK;
        self.open_all();
        if let Some(held) = held {
            self.check_survivors(held, self.may_misread(loose));
        }
        self.pages.set_plan(self.arm(self.plan.pages.clone(), &self.pages.clone()));
        self.catalog.set_plan(self.arm(self.plan.catalog.clone(), &self.catalog.clone()));
    }

    /// Can a start with these faults lose what it reads?
    fn may_misread(&self, loose: bool) -> bool {
        loose && (self.plan.reads_fail_for_good() || self.plan.pages.rates.contains_key(&Fault::FlippedRead))
    }

    fn starting(&self, plan: &FaultPlan, loose: bool) -> FaultPlan {
        let mut plan = plan.clone();
        let reads = [
            Fault::ReadError,
            Fault::Latent,
            Fault::FlippedRead,
            Fault::Short,
            Fault::Interrupted,
            Fault::Slow,
            Fault::NoDescriptor,
        ];
        plan.rates.retain(|fault, _| loose && reads.contains(fault));
        plan
    }

    /// Has the power cut in the middle of an operation, some time.
    fn arm(&self, mut plan: FaultPlan, disk: &SimulatedDisk) -> FaultPlan {
        if self.plan.cuts && self.below(2) == 0 {
            plan.at.push((disk.operations() + 1 + self.below(600), Fault::PowerCut));
        }
        plan
    }

    fn new_client(&mut self) -> Rc<Client> {
        self.next_client += 1;
        let client = Client { id: self.next_client, alive: Arc::new(AtomicBool::new(true)) };
        self.context.server().join(client.id, Arc::clone(&client.alive));
        Rc::new(client)
    }

    /// Every engine opens its namespace when it finds the server again.
    fn open_all(&mut self) {
        for space in 0..self.plan.specs.len() {
            let context = Rc::clone(&self.context);
            let id = self.tasks.spawn(async move { open(&context, space).await });
            assert!(self.tasks.poll(id), "opening a namespace does not wait");
        }
    }

    /// One thing happens.
    fn step(&mut self) {
        self.forgive_given_up();
        if self.plan.cuts {
            self.before = self.held(End::Power);
        }
        let evicted = self.context.server().books().evicted;
        match self.below(100) {
            0..22 => self.begin_action(),
            22..50 => self.go_on(),
            50..80 => self.step_tier(),
            80..86 => {
                self.context.server().step_reclaim();
            }
            _ => self.pass(Duration::from_millis([0, 1, 3, 10, 40, 100][self.below(6) as usize])),
        }
        if self.pages.is_off() || self.catalog.is_off() {
            let mut held = std::mem::take(&mut self.before);
            if self.context.server().books().evicted != evicted {
                held.clear(); // something made way in the very step in which the power went
            }
            return self.end(End::Power, Some(held));
        }
        self.tick_if_due();
        for (end, rate) in [End::Kill, End::Power, End::Clean].into_iter().zip(self.plan.ends) {
            if self.is_well() && self.happens(rate) {
                return self.end(end, None);
            }
        }
        if self.happens(4_000) {
            self.lose_client();
        }
        if let Some(late) = self.context.overdue() {
            self.context.broken(late);
        }
    }

    /// What NVMe has given up by the policy's order is durable no longer, whatever becomes of it later.
    fn forgive_given_up(&mut self) {
        let (server, mut model) = (self.context.server(), self.context.model.borrow_mut());
        let durable: Vec<(usize, u32)> = model.durable().collect();
        for (space, page) in durable {
            let held = server.held(&model.id(space), &model.hash(space, page));
            if held.is_none_or(|held| !held.on_nvme) && server.poisoned().is_none() {
                model.forgive(space, page);
            }
        }
    }

    fn begin_action(&mut self) {
        let idle: Vec<usize> = (0..self.clients.len()).filter(|at| self.clients[*at].1.is_none()).collect();
        if idle.is_empty() {
            return self.go_on();
        }
        let at = idle[self.below(idle.len() as u64) as usize];
        let action = act(Rc::clone(&self.context), Rc::clone(&self.clients[at].0));
        let id = self.tasks.spawn(action);
        self.clients[at].1 = Some(id);
        self.poll(id);
    }

    fn go_on(&mut self) {
        let ready = self.tasks.ready();
        if !ready.is_empty() {
            let id = ready[self.below(ready.len() as u64) as usize];
            self.poll(id);
        }
    }

    fn poll(&mut self, id: u64) {
        if self.tasks.poll(id) {
            self.clients.iter_mut().filter(|client| client.1 == Some(id)).for_each(|client| client.1 = None);
        }
    }

    fn step_tier(&mut self) {
        let server = self.context.server();
        let step = Step::ALL[self.below(Step::ALL.len() as u64) as usize];
        if !server.step_tier(step) {
            step_any(&server); // whatever else there is to do
        }
    }

    /// The threads of tier and reclaim have all the time they want, while none passes.
    fn work(&self, server: &Server) {
        for _ in 0..WORK_MAX {
            let (at_tier, at_reclaim) = (step_any(server), server.step_reclaim());
            if !at_tier && !at_reclaim {
                return;
            }
        }
        self.context.broken(format!("tier and reclaim go on for ever: {:?}", server.books()));
    }

    fn pass(&mut self, time: Duration) {
        self.context.time.advance(time);
        self.pages.advance(time);
        self.catalog.advance(time);
    }

    fn tick_if_due(&mut self) {
        if self.context.time.now() < self.next_tick || self.below(4) == 0 {
            return;
        }
        let server = self.context.server();
        server.tick();
        self.ticks += 1;
        if self.ticks.is_multiple_of(FLUSH_TICKS) {
            server.flush_catalog();
        }
        self.next_tick = self.context.time.now() + TICK;
    }

    /// A client's process ends, and another one begins.
    fn lose_client(&mut self) {
        let at = self.below(self.clients.len() as u64) as usize;
        let (client, task) = self.clients[at].clone();
        self.context.say(|| format!("CLIENT {} is gone", client.id));
        if let Some(task) = task {
            self.tasks.cancel(task);
        }
        vanish(&client);
        self.clients[at] = (self.new_client(), None);
    }

    /// What must still be there after such an end, by what was promised and what the pool has given up since.
    fn held(&self, end: End) -> Vec<(usize, u32, Held)> {
        let (server, model) = (self.context.server(), self.context.model.borrow());
        let find = |space: usize, page: u32| server.held(&model.id(space), &model.hash(space, page));
        let promised: Vec<(usize, u32)> = match end {
            End::Power => model.durable().collect(),
            // Every page whose write has completed.
            End::Kill => model.known().collect(),
            End::Clean => model.known().collect(),
        };
        let whole = |space: usize, page: u32| {
            model.path(space, page).iter().all(|page| find(space, *page).is_some_and(|held| held.on_nvme))
        };
        let mut found = Vec::new();
        for (space, page) in promised {
            let Some(held) = find(space, page) else { continue };
            if whole(space, page) {
                found.push((space, page, held));
            }
        }
        found
    }

    /// The life of this server ends, and the next one begins.
    fn end(&mut self, end: End, held: Option<Vec<(usize, u32, Held)>>) {
        self.context.say(|| format!("END {end:?}"));
        if end == End::Clean {
            self.drain();
            if self.pages.is_off() || self.catalog.is_off() {
                return self.end(End::Power, Some(Vec::new()));
            }
        }
        if end == End::Clean {
            self.context.server().seal(); // what was on its way ends before that
            self.totals.clean_ends += 1;
        }
        let held = held.unwrap_or_else(|| self.held(end));
        for id in self.tasks.ids() {
            self.tasks.cancel(id);
        }
        self.clients.clear();
        self.count_moves();
        match end {
            End::Power => (self.pages.crash(), self.catalog.crash()).0,
            End::Kill | End::Clean => (self.pages.kill(), self.catalog.kill()).0,
        }
        self.context.server().bury();
        *self.context.server.borrow_mut() = None;
        self.start(Some(held));
    }

    fn count_moves(&mut self) {
        if let Some(server) = &*self.context.server.borrow() {
            let Books { moved: [demoted, promoted, emptied], evicted, dropped, .. } = server.books();
            let moved = [demoted, promoted, emptied, evicted, dropped];
            self.totals.moved.iter_mut().zip(moved).for_each(|(sum, moved)| *sum += moved);
        }
    }

    fn drain(&mut self) {
        let until = self.context.time.now() + Duration::from_secs(5);
        let server = self.context.server();
        while server.drain() && self.context.time.now() < until {
            self.work(&server);
            self.forgive_given_up();
            self.pass(Duration::from_millis(10));
            self.tick_if_due();
        }
    }

    /// After a start: what was promised is there.
    fn check_survivors(&mut self, held: Vec<(usize, u32, Held)>, misread: bool) {
        let server = self.context.server();
        let mut model = self.context.model.borrow_mut();
        let promised: Vec<(usize, u32)> = model.durable().collect();
        let mut missing = 0;
        for (space, page, was) in &held {
            if server.held(&model.id(*space), &model.hash(*space, *page)).is_some() {
                self.totals.survivors += 1;
                continue;
            }
            let chain = model.path(*space, *page);
            let spoilt = self.is_spoilt(was, &held, *space, &chain);
            if spoilt || misread {
                self.totals.forgiven += 1;
                continue;
            }
            // NVMe may have more than the index has room for, also what was forgotten before: what it leaves is counted.
            if chain.iter().all(|page| server.found(&model.id(*space), &model.hash(*space, *page))) {
                missing += 1;
                continue;
            }
            let durable = if promised.contains(&(*space, *page)) { "durable " } else { "" };
            self.context.broken(format!("{durable}page {space}:{page} ({was:?}) is gone after a restart"));
        }
        let crowded_out = server.books().crowded_out;
        if missing > crowded_out {
            self.context
                .broken(format!("{missing} pages are found and not served, {crowded_out} are counted"));
        }
        self.totals.crowded_out += missing;
        for (space, page) in promised {
            if server.held(&model.id(space), &model.hash(space, page)).is_none() {
                model.forgive(space, page);
            }
        }
    }

    /// Did the medium fail under a page or one before it?
    fn is_spoilt(&self, was: &Held, held: &[(usize, u32, Held)], space: usize, chain: &[u32]) -> bool {
        let before =
            held.iter().filter(|(at, page, _)| *at == space && chain.contains(page)).map(|(_, _, held)| held);
        let segments: BTreeSet<u32> = before
            .chain([was])
            .flat_map(|held| held.places.iter().flatten().map(|(segment, _)| *segment))
            .collect();
        let bytes = self.plan.shape.segment_bytes as usize;
        segments.iter().any(|segment| self.pages.is_damaged(&format!("segment-{segment:06}.kv"), 0, bytes))
    }

    /// What must hold at any moment.
    fn check(&mut self) {
        let server = self.context.server();
        if let Err(why) = server.check() {
            self.context.broken(format!("the pool's books: {why}"));
        }
        self.check_losses(&server.books());
        let stats = server.stats();
        let dram = &stats.tiers[0];
        let bounds = [
            (dram.used_bytes <= dram.capacity_bytes, "DRAM holds more than there is"),
            (dram.capacity_bytes <= self.plan.shape.dram_bytes, "DRAM is larger than configured"),
            (stats.leases <= u64::from(self.plan.shape.leases_max), "more leases than leases_max"),
            (stats.sessions <= u64::from(self.plan.shape.sessions_max), "more sessions than sessions_max"),
            (stats.index_pages <= u64::from(self.plan.shape.pages_max), "more pages than pages_max"),
            (
                stats.namespaces <= u64::from(self.plan.shape.namespaces_max),
                "more namespaces than namespaces_max",
            ),
        ];
        for (holds, what) in bounds {
            if !holds {
                self.context.broken(format!("{what}: {stats:?}"));
            }
        }
        let books = server.books();
        let surplus_bytes = books.surplus_segments * self.plan.shape.segment_bytes;
        if let Some(nvme) = stats.tiers.get(1)
            && nvme.used_bytes > self.plan.shape.nvme_bytes + surplus_bytes
        {
            self.context.broken(format!("NVMe holds more than configured: {nvme:?}"));
        }
        if books.unreadable_extents > 0 && !self.plan.reads_fail_for_good() {
            self.context.broken(format!("a read that fails once costs a page: {books:?}"));
        }
    }

    /// No page is lost without being counted.
    fn check_losses(&mut self, books: &Books) {
        let (server, model) = (self.context.server(), self.context.model.borrow());
        let now: BTreeSet<(usize, u32)> = model
            .known()
            .filter(|(space, page)| server.held(&model.id(*space), &model.hash(*space, *page)).is_some())
            .collect();
        self.lost += self.seen.difference(&now).count() as u64;
        if now.len() as u64 != books.visible {
            self.context.broken(format!(
                "{} pages that were offloaded are there, and {} are counted",
                now.len(),
                books.visible
            ));
        }
        if self.lost > books.evicted + books.dropped {
            let Books { evicted, dropped, .. } = books;
            self.context.broken(format!(
                "{} pages are lost, {evicted} evicted and {dropped} dropped are counted",
                self.lost
            ));
        }
        self.seen = now;
    }

    /// The end: nothing new goes wrong, everybody leaves, and everything comes to rest.
    fn finish(&mut self) {
        self.pages.set_plan(FaultPlan::calm(0));
        self.catalog.set_plan(FaultPlan::calm(0));
        self.settle();
        self.check();
        if self.is_well() {
            self.check_rest();
        }
        if self.is_well() && self.plan.shape.nvme_bytes > 0 {
            self.check_two_restarts();
        }
        self.count_moves();
        if let Some(server) = self.context.server.borrow_mut().take() {
            self.pages.kill();
            self.catalog.kill();
            server.bury();
        }
    }

    /// Lets everything go on until nobody waits for anything.
    fn settle(&mut self) {
        let server = self.context.server();
        let give_up = self.context.time.now() + super::context::CALL_MAX + Duration::from_secs(60);
        while !self.tasks.ids().is_empty() && self.context.time.now() < give_up {
            while let [id, ..] = self.tasks.ready()[..] {
                self.poll(id);
            }
            self.work(&server);
            self.forgive_given_up();
            self.pass(Duration::from_millis(50));
            self.tick_if_due();
            if let Some(late) = self.context.overdue() {
                return self.context.broken(late);
            }
        }
        for (client, _) in std::mem::take(&mut self.clients) {
            vanish(&client);
        }
        for _ in 0..50 {
            self.pass(TICK);
            self.tick_if_due();
            self.work(&server);
        }
    }

    /// At rest nobody holds anything and nothing is on its way.
    fn check_rest(&mut self) {
        let server = self.context.server();
        let (books, stats) = (server.books(), server.stats());
        let stuck = self.pages.counts().faults.get(&Fault::Stuck).copied().unwrap_or(0) > 0;
        if stuck {
            return; // what is stuck waits for the power to be cut
        }
        let rest = [
            (stats.leases, "leases are held by nobody"),
            (stats.quarantined_bytes, "bytes are quarantined for nobody"),
            (books.writing_bytes, "bytes are being written"),
            (books.prefetching_bytes, "bytes are being read ahead"),
            (books.promotions, "reads are waited for"),
            (books.durable_waits, "commits wait to be durable"),
            (books.pinned_bytes, "bytes are in use"),
            (books.tier_operations, "operations are at the tier"),
        ];
        for (count, what) in rest {
            if count > 0 {
                self.context.broken(format!("at rest {count} {what}: {books:?}"));
            }
        }
        if server.poisoned().is_some() {
            return;
        }
        if books.extents + books.stranger_extents != books.live_extents {
            self.context.broken(format!("at rest the tier counts other extents than the pool: {books:?}"));
        }
    }

    /// Two restarts one after another find the same pages.
    fn check_two_restarts(&mut self) {
        (self.plan.cuts, self.plan.resizes) = (false, false);
        (self.plan.pages, self.plan.catalog) = (FaultPlan::calm(0), FaultPlan::calm(0));
        if self.plan.disk_bytes < AMPLE_BYTES {
            self.pages.set_capacity(AMPLE_BYTES);
        }
        self.end(End::Kill, None);
        if !self.is_well() {
            return;
        }
        let first = self.contents();
        self.end(End::Kill, None);
        if !self.is_well() {
            return;
        }
        let second = self.contents();
        if first != second {
            self.context.broken(format!("two restarts find different pages: {first:?} and {second:?}"));
        }
        self.read_everything();
    }

    fn contents(&self) -> Vec<(usize, u32)> {
        let (server, model) = (self.context.server(), self.context.model.borrow());
        let there = |(space, page): &(usize, u32)| {
            server.held(&model.id(*space), &model.hash(*space, *page)).is_some()
        };
        model.known().filter(there).collect()
    }

    /// Every page that is there is read, and is right.
    fn read_everything(&mut self) {
        let client = Rc::clone(&self.clients[0].0);
        let context = Rc::clone(&self.context);
        let pages = self.contents();
        let id = self.tasks.spawn(super::clients::read_all(context, client, pages));
        self.clients[0].1 = Some(id);
        self.settle();
    }
}

fn step_any(server: &Server) -> bool {
    Step::ALL.into_iter().any(|step| server.step_tier(step))
}
