//! The engine's orchestration over a tier that fails: whatever becomes of a read, a write or a flush, every caller is answered,
//! nothing stays in flight, and what is in DRAM is served. The tier takes its steps when a test says so.

use super::*;
use crate::engine::durable::{Durability, NotDurable};
use crate::engine::lookup::{Lookup, PagesOf};
use crate::engine::offload::CommitOffload;
use crate::engine::reload::{EndReload, ReloadRun, ReloadedPosition};
use crate::engine::stats::EvictFrom;
use crate::engine::testing::{offer, open, want};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use turnkv_pool::{ClientId, MissCause};
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_transfer::Slot;

const PAGE: u64 = 4096;
const PAGES: u32 = 4;
const CLIENT: ClientId = ClientId(7);
/// In a million calls.
const ALWAYS: u32 = 1_000_000;

struct World {
    time: Arc<Time>,
    disk: SimulatedDisk,
    server: Server,
    namespace: NamespaceId,
}

/// Nothing goes wrong.
fn calm() -> FaultPlan {
    FaultPlan { meanwhile: 0, ..FaultPlan::calm(3) }
}

/// A server with room for 32 pages in DRAM and many more on its disk, and one client.
fn world(seed: u64) -> World {
    let shape = Shape {
        dram_bytes: 128 << 10,
        slab_bytes: 64 << 10,
        nvme_bytes: 1 << 20,
        segment_bytes: 64 << 10,
        inflight_bytes: 1 << 20,
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
    };
    let (time, disk) = (Time::new(), SimulatedDisk::new(FaultPlan { seed, ..calm() }, 1 << 30).unwrap());
    let catalog = SimulatedDisk::new(calm(), 1 << 30).unwrap();
    let server = Server::start(&shape, &time, Some((&disk, &catalog)), 1).unwrap();
    server.join(CLIENT.0, Arc::new(AtomicBool::new(true)));
    let namespace = open(&server.engine, "m", PAGE);
    World { time, disk, server, namespace }
}

fn hashes() -> Vec<BlockHash> {
    (1..=PAGES).map(|at| BlockHash([at as u8; 32])).collect()
}

fn poll<F: Future>(call: Pin<&mut F>) -> Poll<F::Output> {
    call.poll(&mut Context::from_waker(Waker::noop()))
}

impl World {
    fn fail(&self, fault: Fault) {
        self.disk.set_plan(calm().with(fault, ALWAYS));
    }

    /// One step of the tier; false: it has nothing to do.
    fn step(&self) -> bool {
        Step::ALL.into_iter().any(|step| self.server.step_tier(step))
    }

    fn pass(&self, time: Duration) {
        self.time.advance(time);
        self.disk.advance(time);
        self.server.tick();
    }

    /// Everything that is under way ends.
    fn settle(&self) {
        while self.step() {}
    }

    /// Carries a call to its end: the tier works whenever it waits, and time passes when the tier has nothing to do.
    fn run<F: Future>(&self, call: F) -> F::Output {
        let mut call = pin!(call);
        for _ in 0..10_000 {
            if let Poll::Ready(answer) = poll(call.as_mut()) {
                return answer;
            }
            if !self.step() {
                self.pass(Duration::from_millis(100));
            }
        }
        panic!("a call is not answered");
    }

    fn slot(&self, place: turnkv_pool::SlotPlace) -> Slot {
        let region = self.server.engine.attach_slab(&self.namespace, place.slab, place.generation).unwrap();
        region.slot(place.offset as usize, PAGE as usize).unwrap()
    }

    /// Fills slots for every page that is not there; what is to be committed.
    fn filled(&self) -> CommitOffload {
        let begun = self.run(self.server.engine.begin_offload(CLIENT, &offer(self.namespace, hashes())));
        let begun = begun.unwrap();
        let fill = |(at, place): (u32, &turnkv_pool::SlotPlace)| {
            let slot = self.slot(*place);
            (at, slot.claim().unwrap().fill(&[at as u8 + 1; PAGE as usize]).1)
        };
        let pages = begun.outcomes.granted().zip(&begun.slots).map(fill).collect();
        CommitOffload { lease: begun.lease.unwrap(), pages, durable: true }
    }

    /// Offloads every page that is not there yet.
    fn offload(&self) -> Durability {
        let commit = self.filled();
        let committed = self.run(self.server.engine.commit_offload(CLIENT, &commit)).unwrap();
        assert!(committed.dropped.is_empty(), "all of it is kept");
        committed.durable.unwrap()
    }

    /// All pages are on the disk, and nowhere else.
    fn demoted(seed: u64) -> World {
        let world = world(seed);
        assert_eq!(world.offload(), Ok(()));
        assert_eq!(world.server.engine.evict(None, EvictFrom::Dram), Ok(u64::from(PAGES)));
        world
    }

    fn begin_reload(&self) -> ReloadRun {
        let mut wanted = want(self.namespace, hashes());
        wanted.wait_ms = 10_000;
        self.run(self.server.engine.begin_reload(CLIENT, &wanted)).unwrap()
    }

    /// The rest of a reload, its pages' bytes checked; then its lease ends.
    fn read(&self, run: &mut ReloadRun) -> Vec<Result<u32, MissCause>> {
        let mut told = Vec::new();
        while let Some(ReloadedPosition { index, found, .. }) = self.next(run) {
            told.push(found.map(|place| {
                assert_eq!(
                    self.slot(place).page().to_vec(),
                    [index as u8 + 1; PAGE as usize],
                    "the page's own bytes"
                );
                index
            }));
        }
        self.end(run);
        told
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

    fn end(&self, run: &ReloadRun) {
        if let Some(lease) = run.lease {
            self.server.engine.end_reload(CLIENT, &EndReload { lease, corrupt: Vec::new() }).unwrap();
        }
    }

    fn present(&self) -> u32 {
        let ask = Lookup { namespace: self.namespace, pages: PagesOf::Hashes(hashes()) };
        self.server.engine.lookup(&ask).unwrap().present
    }

    /// Nothing is in flight, waited for or held, and the pool adds up.
    fn is_quiet(&self) {
        self.settle();
        let books = self.server.books();
        assert_eq!((books.writing_bytes, books.prefetching_bytes), (0, 0), "{books:?}");
        assert_eq!((books.promotions, books.durable_waits, books.pinned_bytes), (0, 0, 0), "{books:?}");
        self.server.check().unwrap();
    }
}

#[test]
fn pages_go_to_the_disk_and_come_back() {
    let world = World::demoted(1);
    assert_eq!(world.read(&mut world.begin_reload()), [Ok(0), Ok(1), Ok(2), Ok(3)]);
    world.is_quiet();
}

/// The order in which reads are carried out is the seed's: which of them fail differs.
#[test]
fn a_read_that_fails_half_way_of_a_reload_is_a_miss_after_the_pages_before_it() {
    let mut served = 0;
    for seed in 0..8 {
        let world = World::demoted(seed);
        let mut run = world.begin_reload();
        for _ in 0..2 {
            assert!(world.server.step_tier(Step::Carry) && world.server.step_tier(Step::Finish));
        }
        world.fail(Fault::Latent);
        let told = world.read(&mut run);
        let (miss, pages) = told.split_last().unwrap();
        assert_eq!(*miss, Err(MissCause::Io));
        assert!(pages.len() <= 2 && pages.iter().all(Result::is_ok), "{told:?}");
        served += pages.len();
        world.is_quiet();
        assert_eq!(
            world.present() as usize,
            pages.len(),
            "what could not be read, and what hangs on it, is gone"
        );
        world.disk.set_plan(calm());
        assert_eq!(world.offload(), Ok(()), "it is taken again");
        assert_eq!(world.read(&mut world.begin_reload()), [Ok(0), Ok(1), Ok(2), Ok(3)]);
        world.is_quiet();
    }
    assert!(served > 0, "some were served up to the miss");
}

#[test]
fn a_write_that_fails_is_told_to_who_waits_for_it_and_dram_serves_on() {
    let world = world(1);
    world.fail(Fault::WriteError);
    assert_eq!(world.offload(), Err(NotDurable::Device));
    world.pass(Duration::from_millis(100));
    world.is_quiet();
    assert!(world.server.poisoned().is_some());
    assert_eq!(world.present(), PAGES);
    assert_eq!(world.read(&mut world.begin_reload()), [Ok(0), Ok(1), Ok(2), Ok(3)]);
    world.is_quiet();
}

#[test]
fn a_flush_that_fails_is_no_durable_commit() {
    let world = world(1);
    world.fail(Fault::SyncError);
    assert_eq!(world.offload(), Err(NotDurable::Device));
    world.pass(Duration::from_millis(100));
    world.is_quiet();
    assert_eq!(world.read(&mut world.begin_reload()).len(), PAGES as usize);
    world.is_quiet();
}

#[test]
fn pages_that_find_no_room_on_the_disk_stay_dirty_and_are_written_when_there_is() {
    let world = world(1);
    world.fail(Fault::NoSpace);
    assert_eq!(world.offload(), Err(NotDurable::Timeout));
    world.is_quiet();
    assert!(world.server.books().dirty_bytes > 0 && world.server.poisoned().is_none());
    assert_eq!(world.present(), PAGES);
    world.disk.set_plan(calm());
    for _ in 0..1_000 {
        world.pass(Duration::from_millis(100));
        world.settle();
    }
    assert_eq!(world.server.books().dirty_bytes, 0);
    world.is_quiet();
}

#[test]
fn reads_of_a_tier_that_dies_are_misses_and_new_pages_are_taken_without_it() {
    let world = World::demoted(1);
    let mut run = world.begin_reload();
    world.disk.cut_power();
    assert_eq!(world.read(&mut run), [Err(MissCause::Io)]);
    world.pass(Duration::from_millis(100));
    world.is_quiet();
    assert_eq!(world.present(), 0);
    assert_eq!(world.offload(), Err(NotDurable::Device), "kept in DRAM, and said to be no more");
    world.pass(Duration::from_millis(100));
    assert!(world.server.poisoned().is_some());
    assert_eq!(world.read(&mut world.begin_reload()), [Ok(0), Ok(1), Ok(2), Ok(3)]);
    world.is_quiet();
}

#[test]
fn a_reload_that_leaves_in_the_middle_leaves_nothing_behind_but_its_lease() {
    let world = World::demoted(1);
    let run = world.begin_reload();
    let lease = run.lease.unwrap();
    assert!(world.server.books().promotions > 0);
    drop(run);
    world.settle();
    assert_eq!(world.server.books().promotions, 0);
    assert!(world.server.books().pinned_bytes > 0, "it may still be copying");
    world.server.engine.end_reload(CLIENT, &EndReload { lease, corrupt: Vec::new() }).unwrap();
    world.is_quiet();
    assert_eq!(world.read(&mut world.begin_reload()).len(), PAGES as usize, "what was read is of use");
    world.is_quiet();
}

#[test]
fn a_lease_that_nobody_ends_is_ended_by_time() {
    let world = World::demoted(1);
    drop(world.begin_reload());
    world.settle();
    for _ in 0..20 {
        world.pass(Duration::from_millis(100));
    }
    world.is_quiet();
}

#[test]
fn a_durable_commit_that_leaves_waits_for_nothing_and_its_pages_are_written() {
    let world = world(1);
    let commit = world.filled();
    {
        let mut call = pin!(world.server.engine.commit_offload(CLIENT, &commit));
        assert!(poll(call.as_mut()).is_pending());
        assert_eq!(world.server.books().durable_waits, 1);
    }
    assert_eq!(world.server.books().durable_waits, 0);
    world.is_quiet();
    assert_eq!((world.present(), world.server.books().dirty_bytes), (PAGES, 0));
}

#[test]
fn a_page_changed_before_it_was_written_is_dropped_and_said_to_be() {
    let world = world(1);
    let mut commit = world.filled();
    commit.pages[1].1 ^= 1;
    let committed = world.run(world.server.engine.commit_offload(CLIENT, &commit)).unwrap();
    assert_eq!(committed.durable, Some(Err(NotDurable::Changed)));
    world.is_quiet();
    assert_eq!(world.present(), 1);
}
