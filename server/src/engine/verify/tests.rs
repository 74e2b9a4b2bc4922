//! Pages in DRAM that are checked before a reload is told of them (`verify = "always"`): the test takes the checks' place.

use super::*;
use crate::config;
use crate::engine::clients::InlineCaller;
use crate::engine::hello::InlineCall;
use crate::engine::reload::ReloadRun;
use crate::engine::testing::{offer, open, want};
use tempfile::TempDir;
use turnkv_proto::{BlockHash, NamespaceId};

const PAGE: usize = 4096;
const PAGES: u8 = 4;

/// An engine without its threads, with pages in DRAM, and who reads them.
struct World {
    _dir: TempDir,
    engine: Arc<Engine>,
    namespace: NamespaceId,
    call: InlineCall,
    places: Vec<turnkv_pool::SlotPlace>,
}

fn hashes() -> Vec<BlockHash> {
    (1..=PAGES).map(|at| BlockHash([at; 32])).collect()
}

impl World {
    async fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("turnkv.toml");
        std::fs::write(&file, "verify = \"always\"\n[dram]\nbytes = \"16MiB\"\nlock = false\n").unwrap();
        let engine = Engine::start(config::load(Some(&file)).unwrap(), |_| None, None).unwrap();
        let namespace = open(&engine, "m", PAGE as u64);
        let call = engine.begin_call(InlineCaller::Unknown).unwrap();
        let begun = engine.begin_offload(call.client, &offer(namespace, hashes())).await.unwrap();
        let fill = |place: &turnkv_pool::SlotPlace| {
            let slot = engine.slot(*place).unwrap();
            slot.claim().unwrap().fill(&[7; PAGE]).1
        };
        let filled: Vec<(u32, u64)> = (0..).zip(begun.slots.iter().map(fill)).collect();
        let lease = begun.lease.unwrap();
        engine.decide().pool.commit_offload(lease, call.client, &filled, 0).unwrap();
        World { _dir: dir, engine, namespace, call, places: begun.slots }
    }

    /// Where the checks go, so many reloads' at a time.
    fn queue(&self, reloads: usize) -> Receiver<Vec<Check>> {
        let (jobs, queue) = sync_channel(reloads);
        self.engine.verifier.0.set(jobs).unwrap();
        queue
    }

    fn begin(&self) -> ReloadRun {
        let wanted = want(self.namespace, hashes());
        self.engine.begin_reload_now(self.call.client, &wanted).unwrap().unwrap()
    }

    /// What a reload is told, to its end.
    async fn told(&self, mut run: ReloadRun) -> Vec<Result<u32, MissCause>> {
        let mut told = Vec::new();
        loop {
            match run.next_ready() {
                Some(page) => told.push(page.found.map(|_| page.index)),
                None if run.is_done() => break,
                None => run.wait().await,
            }
        }
        let end = crate::engine::reload::EndReload { lease: run.lease.unwrap(), corrupt: Vec::new() };
        self.engine.end_reload(self.call.client, &end).unwrap();
        told
    }

    fn present(&self) -> u32 {
        let ns = self.engine.find_namespace(&self.namespace).unwrap();
        self.engine.decide().pool.lookup(ns, &hashes(), 0).unwrap().present
    }
}

#[tokio::test]
async fn pages_are_told_once_they_are_checked_and_not_before() {
    let world = World::new().await;
    let queue = world.queue(1);
    let mut run = world.begin();
    assert!(run.next_ready().is_none() && !run.is_done());
    world.engine.verify(queue.try_recv().unwrap());
    assert_eq!(world.told(run).await, [Ok(0), Ok(1), Ok(2), Ok(3)]);
    assert_eq!(world.engine.metrics.corrupt_total(), 0);
}

#[tokio::test]
async fn a_page_that_changed_in_dram_is_a_miss_and_goes_with_what_hangs_on_it() {
    let world = World::new().await;
    let queue = world.queue(1);
    world.engine.slot(world.places[1]).unwrap().claim().unwrap().fill(&[8; PAGE]);
    let run = world.begin();
    world.engine.verify(queue.try_recv().unwrap());
    assert_eq!(world.told(run).await, [Ok(0), Err(MissCause::Checksum)]);
    assert_eq!((world.present(), world.engine.metrics.corrupt_total()), (1, 1));
    world.engine.decide().pool.check().unwrap();
}

#[tokio::test]
async fn two_reloads_that_find_the_same_changed_page_drop_and_count_it_once() {
    let world = World::new().await;
    let queue = world.queue(2);
    world.engine.slot(world.places[0]).unwrap().claim().unwrap().fill(&[8; PAGE]);
    let (one, other) = (world.begin(), world.begin());
    for _ in 0..2 {
        world.engine.verify(queue.try_recv().unwrap());
    }
    assert_eq!(world.told(one).await, [Err(MissCause::Checksum)]);
    assert_eq!(world.told(other).await, [Err(MissCause::Checksum)]);
    assert_eq!((world.present(), world.engine.metrics.corrupt_total()), (0, 1));
    world.engine.decide().pool.check().unwrap();
}

#[tokio::test]
async fn more_reloads_than_wait_to_be_checked_are_busy_and_their_pages_stay() {
    let world = World::new().await;
    assert_eq!(world.told(world.begin()).await, [Err(MissCause::Busy)], "nobody checks yet");
    let queue = world.queue(1);
    let (first, second) = (world.begin(), world.begin());
    assert_eq!(world.told(second).await, [Err(MissCause::Busy)]);
    world.engine.verify(queue.try_recv().unwrap());
    assert_eq!(world.told(first).await.len(), usize::from(PAGES));
    assert_eq!(world.present(), u32::from(PAGES));
    drop(queue);
    assert_eq!(world.told(world.begin()).await, [Err(MissCause::Busy)], "whoever checked is gone");
}

#[tokio::test]
async fn a_reload_that_left_is_checked_for_nobody() {
    let world = World::new().await;
    let queue = world.queue(1);
    let run = world.begin();
    let lease = run.lease.unwrap();
    drop(run);
    world.engine.verify(queue.try_recv().unwrap());
    let end = crate::engine::reload::EndReload { lease, corrupt: Vec::new() };
    world.engine.end_reload(world.call.client, &end).unwrap();
    assert_eq!(world.engine.decide().pool.stats().leases, 0);
}
