//! Passes of reclaim: what they wait for, and what they do not.

use super::*;
use crate::config;
use crate::engine::clients::InlineCaller;
use crate::engine::offload::OffloadBegun;
use crate::engine::testing::{offer, open};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use turnkv_pool::{ClientId, NamespaceIndex, PageKey};
use turnkv_proto::{BlockHash, NamespaceId};

const PAGE: u64 = 64 << 10;
const HASH: BlockHash = BlockHash([1; 32]);

/// An engine without its threads: one slab of two slots, and a namespace that has a page on NVMe alone.
struct World {
    _dir: TempDir,
    engine: Arc<Engine>,
    ns: NamespaceIndex,
    page: PageKey,
    pass: Pass,
}

fn start(dir: &TempDir) -> Arc<Engine> {
    let file = dir.path().join("turnkv.toml");
    let text = format!(
        "[dram]\nbytes = \"16MiB\"\nslab_bytes = \"1MiB\"\nlock = false\nhuge_pages = false\n[nvme]\npath = \"{}\"\n\
         bytes = \"32MiB\"\nengine = \"blocking\"\n",
        dir.path().join("nvme").display()
    );
    std::fs::write(&file, text).unwrap();
    let mut settings = config::load(Some(&file)).unwrap();
    (settings.dram.bytes, settings.dram.slab_bytes) = (2 * PAGE, 2 * PAGE);
    let limits = &mut settings.limits;
    (limits.client_slots_percent, limits.user_slots_percent, limits.all_slots_percent) = (100, 100, 100);
    (limits.free_slots_percent, limits.protected_percent) = (0, 0);
    Engine::start(settings, |_| None, None).unwrap()
}

/// Asks for slots; the lease on those that were given.
async fn ask(engine: &Arc<Engine>, client: ClientId, ns: &NamespaceId, hash: BlockHash) -> OffloadBegun {
    engine.begin_offload(client, &offer(*ns, vec![hash])).await.unwrap()
}

fn wait(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

impl World {
    async fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let engine = start(&dir);
        let id = open(&engine, "moves", PAGE);
        let call = engine.begin_call(InlineCaller::Unknown).unwrap();
        let client = call.client;
        let reply = ask(&engine, client, &id, HASH).await;
        let slot = engine.slot(reply.slots[0]).unwrap();
        let (_, sum) = slot.claim().unwrap().fill(&[7; PAGE as usize]);
        let now = engine.now();
        let lease = reply.lease.unwrap();
        engine.decide().pool.commit_offload(lease, client, &[(0, sum)], now).unwrap();
        drop(slot);
        engine.pump_writes();
        wait("it is written", || {
            engine.decide().pool.stats().dirty_bytes == 0 && engine.decide().writing_bytes == 0
        });
        engine.decide().pool.demote_all(None);
        let (ns, page) = {
            let core = engine.decide();
            let ns = core.pool.namespace(&id).unwrap();
            (ns, core.pool.page_key(ns, &HASH).unwrap())
        };
        let place = engine.decide().pool.places(page)[0].unwrap();
        let extent = LiveExtent { namespace: id, hash: HASH, shard: 0, bytes: PAGE as u32, place };
        let pass = engine.decide().pool.begin_pass(vec![extent], true, engine.now());
        World { _dir: dir, engine, ns, page, pass }
    }

    fn step(&mut self) -> PassNext {
        self.engine.step(self.engine.nvme.as_ref().unwrap(), &mut self.pass)
    }

    fn is_here(&self) -> bool {
        self.engine.decide().pool.page_key(self.ns, &HASH) == Some(self.page)
    }
}

#[tokio::test]
async fn a_pass_reads_and_writes_its_page_elsewhere() {
    let mut world = World::new().await;
    let before = world.engine.decide().pool.places(world.page)[0];
    let deadline = Instant::now() + Duration::from_secs(20);
    let empty = loop {
        assert!(Instant::now() < deadline);
        match world.step() {
            PassNext::Again => {}
            PassNext::Wait => std::thread::sleep(Duration::from_millis(1)),
            PassNext::Over { empty } => break empty,
        }
    };
    assert!(empty && world.is_here());
    assert_ne!(world.engine.decide().pool.places(world.page)[0], before);
}
