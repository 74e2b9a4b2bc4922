//! A server on a disk that fails as a test says. Owns: its lives, and what a test does with it step by step. Must not know: any
//! one test.

use super::super::*;
use crate::engine::durable::Durability;
use crate::engine::lookup::{Lookup, PagesOf};
use crate::engine::offload::CommitOffload;
use crate::engine::reload::{EndReload, ReloadRun, ReloadedPosition};
use crate::engine::session::{EndOfTurn, SessionKey};
use crate::engine::stats::EvictFrom;
use crate::engine::testing::{offer, open, want};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use turnkv_pool::{ClientId, MissCause, SlotPlace};
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_transfer::Slot;

pub(super) const PAGE: u64 = 4096;
pub(super) const PAGES: u32 = 4;
/// Slots that there are.
pub(super) const SLOTS: u32 = 32;
pub(super) const SEGMENT: u64 = 64 << 10;
pub(super) const CLIENT: ClientId = ClientId(7);
/// The time between two ticks.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Longer than anybody waits for anything.
pub(super) const FOREVER: Duration = Duration::from_hours(10);
/// In a million calls.
const ALWAYS: u32 = 1_000_000;
const MODEL: &str = "m";

pub(super) struct World {
    pub(super) time: Arc<Time>,
    pub(super) disk: SimulatedDisk,
    pub(super) catalog: SimulatedDisk,
    pub(super) server: Server,
    pub(super) namespace: NamespaceId,
    shape: Shape,
    lives: u64,
}

/// How a life of the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Clean,
    Killed,
    PowerCut,
}

/// Nothing goes wrong.
pub(super) fn calm() -> FaultPlan {
    FaultPlan { meanwhile: 0, ..FaultPlan::calm(3) }
}

/// Room for 32 pages in DRAM and for some hundred on the disk.
pub(super) fn shape() -> Shape {
    Shape {
        dram_bytes: u64::from(SLOTS) * PAGE,
        slab_bytes: 64 << 10,
        nvme_bytes: 16 * SEGMENT,
        segment_bytes: SEGMENT,
        inflight_bytes: 1 << 20,
        codec: 0,
        queue_ops: 1_024,
        admit_reused: false,
        write_bytes_per_day: 0,
        lease_ms: 1_000,
        lease_grace_ms: 500,
        client_slots_percent: 100,
        pages_max: 1 << 12,
        sessions_max: 100,
        namespaces_max: 4,
        leases_max: 64,
        session_ttl_ms: 86_400_000,
        policy: 1,
    }
}

/// The pages of one prefix.
pub(super) fn chain(number: u8, pages: u32) -> Vec<BlockHash> {
    (1..=pages).map(|at| BlockHash([[number; 16], [at as u8; 16]].concat().try_into().unwrap())).collect()
}

/// Those that most tests are about.
pub(super) fn hashes() -> Vec<BlockHash> {
    chain(1, PAGES)
}

/// What a page holds.
fn bytes_of(hash: &BlockHash) -> Vec<u8> {
    hash.0.repeat(PAGE as usize / hash.0.len())
}

pub(super) fn poll<F: Future>(call: Pin<&mut F>) -> Poll<F::Output> {
    call.poll(&mut Context::from_waker(Waker::noop()))
}

/// All of a reload came.
pub(super) fn all(pages: u32) -> Vec<Result<u32, MissCause>> {
    (0..pages).map(Ok).collect()
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        World::of(seed, shape())
    }

    pub(super) fn of(seed: u64, shape: Shape) -> World {
        let (time, disk) = (Time::new(), SimulatedDisk::new(FaultPlan { seed, ..calm() }, 1 << 30).unwrap());
        let catalog = SimulatedDisk::new(calm(), 1 << 30).unwrap();
        World::start(time, disk, catalog, shape, 1).unwrap()
    }

    /// All pages are on the disk, and nowhere else.
    pub(super) fn demoted(seed: u64) -> World {
        World::demoted_of(seed, shape())
    }

    pub(super) fn demoted_of(seed: u64, shape: Shape) -> World {
        let world = World::of(seed, shape);
        assert_eq!(world.offload(&hashes()), Ok(()));
        world.demote(PAGES);
        world
    }

    pub(super) fn demote(&self, pages: u32) {
        assert_eq!(self.server.engine.evict(None, EvictFrom::Dram), Ok(u64::from(pages)));
    }

    /// What the disk has, DRAM has no more.
    pub(super) fn demote_what_can(&self) {
        self.settle();
        self.server.engine.evict(None, EvictFrom::Dram).unwrap();
    }

    /// The life ends.
    pub(super) fn end(&self, how: End) {
        match how {
            End::Clean => {
                for _ in 0..1_000 {
                    if !self.server.drain() {
                        break;
                    }
                    self.settle();
                    self.pass(TICK);
                }
                self.server.seal();
                self.disk.kill();
                self.catalog.kill();
            }
            End::Killed => {
                self.disk.kill();
                self.catalog.kill();
            }
            End::PowerCut => {
                self.disk.crash();
                self.catalog.crash();
            }
        }
        self.server.bury();
    }

    /// The next life, on what the last one left; the namespace is opened again.
    pub(super) fn start_again(self) -> anyhow::Result<World> {
        let World { time, disk, catalog, server, shape, lives, .. } = self;
        drop(server);
        World::start(time, disk, catalog, shape, lives + 1)
    }

    /// A life on disks that had another one.
    pub(super) fn on(disk: SimulatedDisk, catalog: SimulatedDisk) -> World {
        World::start(Time::new(), disk, catalog, shape(), 100).unwrap()
    }

    fn start(
        time: Arc<Time>,
        disk: SimulatedDisk,
        catalog: SimulatedDisk,
        shape: Shape,
        lives: u64,
    ) -> anyhow::Result<World> {
        let server = Server::start(&shape, &time, Some((&disk, &catalog)), lives)?;
        server.join(CLIENT.0, Arc::new(AtomicBool::new(true)));
        let namespace = open(&server.engine, MODEL, PAGE);
        Ok(World { time, disk, catalog, server, namespace, shape, lives })
    }

    pub(super) fn again(self, how: End) -> World {
        self.end(how);
        self.start_again().unwrap()
    }

    /// From now on every call that a fault suits suffers it.
    pub(super) fn fail(&self, fault: Fault) {
        self.disk.set_plan(calm().with(fault, ALWAYS));
    }

    /// From now on no operation that begins is done before somebody says so ([`World::let_go`]).
    pub(super) fn hang(&self) {
        self.disk.set_plan(FaultPlan { slow: FOREVER, ..calm() }.with(Fault::Slow, ALWAYS));
    }

    /// What hangs goes on.
    pub(super) fn let_go(&self) {
        self.heal();
        self.disk.advance(FOREVER);
    }

    /// Nothing goes wrong any more.
    pub(super) fn heal(&self) {
        self.disk.set_plan(calm());
    }

    /// Where a page is on the disk: its file, and its payload there.
    pub(super) fn place(&self, hash: &BlockHash) -> (String, u64) {
        let held = self.server.held(&self.namespace, hash).unwrap();
        let (segment, block) = held.places[0].unwrap();
        (format!("segment-{segment:06}.kv"), (u64::from(block) + 1) * 4096)
    }

    /// One step of the tier; false: it has nothing to do.
    pub(super) fn step(&self) -> bool {
        self.step_but(None)
    }

    /// The same without a kind of step.
    pub(super) fn step_but(&self, never: Option<Step>) -> bool {
        Step::ALL.into_iter().filter(|step| Some(*step) != never).any(|step| self.server.step_tier(step))
    }

    pub(super) fn pass(&self, time: Duration) {
        self.time.advance(time);
        self.disk.advance(time);
        self.catalog.advance(time);
        self.server.tick();
    }

    /// Time passes, tick by tick, and everything goes on that can.
    pub(super) fn live(&self, ticks: u32) {
        for _ in 0..ticks {
            self.settle();
            self.reclaim();
            self.pass(TICK);
        }
        self.settle();
    }

    /// Goes on with reclaim as far as that goes now; how many steps it took.
    pub(super) fn reclaim(&self) -> u32 {
        let mut steps = 0;
        while self.server.step_reclaim() {
            steps += 1;
            assert!(steps < 100_000, "reclaim goes on for ever");
            if steps % 8 == 0 {
                self.settle();
            }
        }
        steps
    }

    /// Everything that is under way ends.
    pub(super) fn settle(&self) {
        while self.step() {}
    }

    /// Carries a call to its end: the tier works whenever it waits, and time passes when the tier has nothing to do.
    pub(super) fn run<F: Future>(&self, call: F) -> F::Output {
        self.run_but(None, call)
    }

    /// The same without a kind of step.
    pub(super) fn run_but<F: Future>(&self, never: Option<Step>, call: F) -> F::Output {
        let mut call = pin!(call);
        for _ in 0..10_000 {
            if let Poll::Ready(answer) = poll(call.as_mut()) {
                return answer;
            }
            if !self.step_but(never) {
                self.pass(TICK);
            }
        }
        panic!("a call is not answered");
    }

    pub(super) fn slot(&self, place: SlotPlace) -> Slot {
        let region = self.server.engine.attach_slab(&self.namespace, place.slab, place.generation).unwrap();
        region.slot(place.offset as usize, PAGE as usize).unwrap()
    }

    /// Fills slots for every page that is not there and finds one; what is to be committed. None: nothing was granted.
    pub(super) fn try_filled(&self, hashes: &[BlockHash]) -> Option<CommitOffload> {
        let begun =
            self.run(self.server.engine.begin_offload(CLIENT, &offer(self.namespace, hashes.to_vec())));
        let begun = begun.unwrap();
        let fill = |(at, place): (u32, &SlotPlace)| {
            let slot = self.slot(*place);
            (at, slot.claim().unwrap().fill(&bytes_of(&hashes[at as usize])).1)
        };
        let pages = begun.outcomes.granted().zip(&begun.slots).map(fill).collect();
        Some(CommitOffload { lease: begun.lease?, pages, durable: true })
    }

    pub(super) fn filled(&self, hashes: &[BlockHash]) -> CommitOffload {
        self.try_filled(hashes).expect("slots are granted")
    }

    /// Commits and waits until that is durable, or is known not to be.
    pub(super) fn commit(&self, commit: &CommitOffload) -> Durability {
        let committed = self.run(self.server.engine.commit_offload(CLIENT, commit)).unwrap();
        assert!(committed.dropped.is_empty(), "all of it is kept");
        committed.durable.unwrap()
    }

    /// Commits and waits for nothing.
    pub(super) fn commit_now(&self, commit: CommitOffload) {
        let commit = CommitOffload { durable: false, ..commit };
        let (committed, later) = self.server.engine.commit_offload_now(CLIENT, &commit).unwrap();
        assert!(committed.dropped.is_empty(), "all of it is kept");
        drop(later);
    }

    /// Offloads every page that is not there yet.
    pub(super) fn offload(&self, hashes: &[BlockHash]) -> Durability {
        self.commit(&self.filled(hashes))
    }

    pub(super) fn begin_reload(&self, hashes: &[BlockHash]) -> ReloadRun {
        let mut wanted = want(self.namespace, hashes.to_vec());
        wanted.wait_ms = 10_000;
        self.run(self.server.engine.begin_reload(CLIENT, &wanted)).unwrap()
    }

    /// The rest of a reload, its pages' bytes checked; then its lease ends.
    pub(super) fn read(&self, run: &mut ReloadRun, hashes: &[BlockHash]) -> Vec<Result<u32, MissCause>> {
        let mut told = Vec::new();
        while let Some(ReloadedPosition { index, found, .. }) = self.next(run) {
            told.push(found.map(|place| {
                let bytes = bytes_of(&hashes[index as usize]);
                assert_eq!(self.slot(place).page().to_vec(), bytes, "the page's own bytes");
                index
            }));
        }
        self.end_reload(run);
        told
    }

    /// A reload from its begin to its end.
    pub(super) fn reload(&self, hashes: &[BlockHash]) -> Vec<Result<u32, MissCause>> {
        self.read(&mut self.begin_reload(hashes), hashes)
    }

    fn next(&self, run: &mut ReloadRun) -> Option<ReloadedPosition> {
        loop {
            match run.next_ready() {
                None if run.is_done() => return None,
                None => self.run(run.wait()),
                next => return next,
            }
        }
    }

    pub(super) fn end_reload(&self, run: &ReloadRun) {
        if let Some(lease) = run.lease {
            self.server.engine.end_reload(CLIENT, &EndReload { lease, corrupt: Vec::new() }).unwrap();
        }
    }

    /// Leading pages that are there.
    pub(super) fn present_of(&self, hashes: &[BlockHash]) -> u32 {
        let pages = PagesOf::Hashes(hashes.to_vec());
        let ask = Lookup { namespace: self.namespace, pages, only_posts: false, only_here: false };
        self.server.engine.lookup(&ask).unwrap().present
    }

    pub(super) fn present(&self) -> u32 {
        self.present_of(&hashes())
    }

    pub(super) fn dirty_bytes(&self) -> u64 {
        self.server.books().dirty_bytes
    }

    /// Nothing is in flight, waited for or held, and the pool adds up.
    pub(super) fn is_quiet(&self) {
        self.settle();
        let books = self.server.books();
        assert_eq!((books.writing_bytes, books.prefetching_bytes), (0, 0), "{books:?}");
        assert_eq!((books.promotions, books.durable_waits, books.pinned_bytes), (0, 0, 0), "{books:?}");
        assert_eq!(books.tier_operations, 0, "{books:?}");
        self.server.check().unwrap();
    }
}

/// The end of a turn of all pages, with no hints.
pub(super) fn end_of_turn(of: SessionKey) -> EndOfTurn {
    EndOfTurn {
        of,
        keep: 0,
        hashes: hashes(),
        tail_tokens: 0,
        expected_return_ms: 0,
        ttl_ms: 0,
        priority: 0,
        last: false,
        archive: false,
    }
}
