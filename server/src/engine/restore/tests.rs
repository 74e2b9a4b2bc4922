//! What is saved comes back, is written again when the catalog is lost, and is not removed by whoever does not know of it yet.

use super::*;
use crate::catalog::Owner;
use crate::catalog::tests::Disk;
use crate::clock::Clock;
use crate::config;
use crate::engine::lookup::PagesOf;
use crate::engine::memory::Memory;
use crate::engine::pin::{Pin, Unpin};
use crate::engine::remotes::nics::Nics;
use crate::engine::start::{KeptOnDisk, Parts};
use rustix::io::Errno;
use std::sync::Arc;
use tempfile::TempDir;
use turnkv_pool::{ClientId, OffloadAsk, UserId};
use turnkv_proto::{BlockHash, SessionId, Shards, Spec};
use turnkv_tier::dram::{DramConfig, DramTier};
use turnkv_tier::nvme::{Engine as Io, NvmeConfig, NvmeTier};
use turnkv_transfer::HugePages;

const PAGE: u64 = 4096;
const CLIENT: ClientId = ClientId(1 << 40);
/// Pages of the one prefix: more than a chunk of a list.
const PAGES: u32 = LIST_CHUNK_PAGES + 8;

/// An engine without threads, with its catalog on a disk that a test may spoil, and a namespace with a prefix in DRAM.
struct World {
    _dir: TempDir,
    disk: Disk,
    engine: Arc<Engine>,
    id: NamespaceId,
    ns: NamespaceIndex,
}

impl World {
    fn new() -> World {
        let (dir, disk) = (tempfile::tempdir().unwrap(), Disk::new(Errno::IO));
        let file = dir.path().join("turnkv.toml");
        let path = dir.path().join("nvme");
        let text = format!(
            "[dram]\nbytes = \"16MiB\"\nslab_bytes = \"1MiB\"\nlock = false\n[nvme]\npath = \"{}\"\nbytes = \"64MiB\"\n",
            path.display()
        );
        std::fs::write(&file, text).unwrap();
        let settings = config::load(Some(&file)).unwrap();
        let slabs = DramConfig {
            slab_bytes: 1 << 20,
            slab_count: 16,
            huge_pages: HugePages::Off,
            lock: false,
            check_available: true,
        };
        let (dram, _) = DramTier::new(slabs).unwrap();
        let wanted =
            NvmeConfig { segment_bytes: 4 << 20, engine: Io::Blocking, ..NvmeConfig::new(path, 64 << 20) };
        let (nvme, recovered, _) = NvmeTier::open(wanted, dram.regions()).unwrap();
        let catalog = Catalog::open_with(Box::new(disk.clone()), Owner::any(), Clock::system()).unwrap();
        let kept = Some(KeptOnDisk::new(nvme, recovered, catalog));
        let parts = Parts {
            memory: Memory::of_this_process(dram),
            kept,
            clock: Clock::system(),
            instance: 1,
            nics: Nics::default(),
            cluster: None,
        };
        let engine = Engine::assemble(settings, parts).unwrap();
        let spec = Spec::opaque("m", 16, PAGE).check().unwrap();
        engine.open_namespace(&spec).unwrap();
        let ns = engine.decide().pool.namespace(&spec.id()).unwrap();
        let world = World { _dir: dir, disk, engine, id: spec.id(), ns };
        world.offload();
        world
    }

    fn offload(&self) {
        let (hashes, now) = (hashes(), self.engine.now());
        let mut core = self.engine.decide();
        core.pool.introduce_client(CLIENT, UserId(0));
        let ask = OffloadAsk {
            ns: self.ns,
            session: None,
            parent: None,
            hashes: &hashes,
            shards: Shards::one(0),
            tail_tokens: 0,
            client: CLIENT,
        };
        let plan = core.pool.begin_offload(ask, now).unwrap();
        let sum = turnkv_transfer::checksum(&[0; PAGE as usize]); // of memory that nobody wrote to
        let commit: Vec<(u32, u64)> = (0..PAGES).map(|at| (at, sum)).collect();
        let kept = core.pool.commit_offload(plan.lease.unwrap(), CLIENT, &commit, now).unwrap().kept;
        assert_eq!(kept.len(), PAGES as usize);
    }

    fn pin(&self) {
        let prefix = PagesOf::Hashes(hashes());
        let ask = Pin { namespace: self.id, prefix, pages: None, ttl_ms: 60_000, second: false };
        assert_eq!(self.engine.pin(&ask).unwrap().pinned.pages, PAGES);
    }

    fn begin_turn(&self, session: &str) {
        let session = SessionId::parse(session).unwrap();
        self.engine.decide().pool.begin_turn(self.ns, &session, 0).unwrap();
        self.engine.catalog.as_ref().unwrap().mark(self.ns, session);
    }

    /// Sessions and pins that the catalog has, as another server would find them, and the pages of each pin.
    fn saved(&self) -> (usize, Vec<u64>) {
        let catalog = Catalog::open_with(Box::new(self.disk.clone()), Owner::any(), Clock::system()).unwrap();
        let look = |saved: &SavedRows| {
            let (mut sessions, mut pins) = (0, Vec::new());
            saved.for_each_of(&self.id, |_| {
                sessions += 1;
                Ok(())
            })?;
            saved.for_each_pin_of(&self.id, |pin| {
                let chunks = pin.base.map(|base| saved.chunks_back(&self.id, &base, |_| false));
                let chunk =
                    chunks.transpose()?.unwrap_or_default().first().map_or(0, |(_, last)| last.hashes.len());
                pins.push((chunk + pin.hashes.len()) as u64);
                Ok(())
            })?;
            Ok((sessions, pins))
        };
        catalog.saved_rows(look).unwrap()
    }

    fn sessions_known(&self) -> u64 {
        self.engine.decide().pool.stats().sessions
    }

    /// The pool forgets a session, and nobody hears of it.
    fn lose_session(&self, session: &str) {
        let session = SessionId::parse(session).unwrap();
        let mut core = self.engine.decide();
        core.pool.close(self.ns, &session, 0).unwrap();
        core.pool.take_forgotten();
    }
}

fn hashes() -> Vec<BlockHash> {
    let mut hashes: Vec<BlockHash> = Vec::new();
    for page in 0..PAGES {
        hashes.push(BlockHash::chain(hashes.last(), &[page]));
    }
    hashes
}

/// Sessions and namespaces were; pins were forgotten at the next start.
#[test]
fn a_catalog_that_is_damaged_while_the_server_runs_has_pins_again_too() {
    let world = World::new();
    world.pin();
    world.begin_turn("s");
    world.engine.flush_catalog();
    let saved = (1, vec![u64::from(PAGES)]);
    assert_eq!(world.saved(), saved);
    world.disk.spoil();
    world.disk.fail(1);
    world.begin_turn("t");
    for _ in 0..3 {
        world.engine.flush_catalog();
    }
    let catalog = world.engine.catalog.as_ref().unwrap();
    assert_eq!((catalog.set_aside(), catalog.waiting_len()), (1, 0));
    assert_eq!(world.saved(), (2, saved.1));
}

#[test]
fn an_unpinned_prefix_and_one_that_ended_leave_the_catalog() {
    let world = World::new();
    world.pin();
    let ask = Unpin { namespace: world.id, pin: hashes()[PAGES as usize - 1] };
    assert!(world.engine.unpin(&ask).unwrap());
    assert_eq!(world.saved(), (0, vec![]));
    world.pin();
    let later = world.engine.now() + 61_000;
    while !world.engine.decide().pool.expire(later) {}
    world.engine.flush_catalog();
    assert_eq!(world.saved(), (0, vec![]));
}

/// A flush that came between a namespace's opening and the return of its sessions removed what was saved of them.
#[test]
fn what_is_not_back_yet_is_not_removed() {
    let world = World::new();
    world.begin_turn("s");
    world.pin();
    world.engine.flush_catalog();
    world.lose_session("s");
    world.engine.comes_back(world.ns);
    world.engine.flush_catalog();
    assert_eq!((world.saved().0, world.sessions_known()), (1, 0), "its return is under way");
    world.engine.coming_back.lock().insert(world.ns, Return::Failed);
    world.engine.flush_catalog();
    assert_eq!((world.saved().0, world.sessions_known()), (1, 1), "it is read again");
    assert_eq!(world.engine.decide().pool.stats().pins, 1);
    world.lose_session("s");
    world.engine.flush_catalog();
    assert_eq!(world.saved().0, 0, "what the pool gave up since goes");
}

#[test]
fn notes_of_extents_wait_for_a_catalog_that_fails_and_for_one_that_is_begun_anew() {
    let world = World::new();
    let engine = &world.engine;
    let nvme = engine.nvme.as_ref().unwrap();
    let place = turnkv_pool::SlotPlace { slab: 0, generation: 0, offset: 0, bytes: 4096 };
    let slot = engine.slabs.slot(place).unwrap();
    let meta = turnkv_tier::ExtentMeta {
        namespace: world.id,
        hash: BlockHash([9; 32]),
        parent: None,
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        payload_bytes: 4096,
        checksum: slot.page().checksum(),
    };
    let (tell, told) = std::sync::mpsc::sync_channel(1);
    nvme.write(meta, slot, Box::new(move |result| tell.send(result).unwrap()));
    let at = told.recv().unwrap().unwrap();
    nvme.forget(at, 4096);
    world.disk.fail(u32::MAX);
    engine.flush_catalog();
    assert!(engine.unsaved() > 0, "it is tried again");
    world.disk.fail(0);
    std::thread::sleep(std::time::Duration::from_millis(crate::limits::CATALOG_RETRY_MS + 50));
    engine.flush_catalog();
    assert_eq!(nvme.notes_waiting(), 0);
    world.disk.spoil();
    world.disk.fail(1);
    world.begin_turn("s");
    for _ in 0..4 {
        engine.flush_catalog();
    }
    let catalog = Catalog::open_with(Box::new(world.disk.clone()), Owner::any(), Clock::system()).unwrap();
    assert_eq!(catalog.segment_notes().unwrap().len(), 1, "all that is known was written again");
}
