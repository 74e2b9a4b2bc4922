//! Writes that are given out are ended, whatever becomes of them, and a durable commit is answered.

use super::*;
use crate::config;
use crate::engine::testing::{offer, open};
use crate::limits::NVME_SMALLER_MS;
use tempfile::TempDir;
use turnkv_proto::{BlockHash, NamespaceId};

const PAGE: usize = 64 << 10;

/// An engine without its threads on a directory of its own, and a namespace of it.
fn engine() -> (TempDir, Arc<Engine>, NamespaceId) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("turnkv.toml");
    let nvme = dir.path().join("nvme");
    let text = format!(
        "[dram]\nbytes = \"16MiB\"\nlock = false\n[nvme]\npath = \"{}\"\nbytes = \"32MiB\"\nengine = \"blocking\"\n\
         [limits]\ndurable_ms = 200\n",
        nvme.display()
    );
    std::fs::write(&file, text).unwrap();
    let engine = Engine::start(config::load(Some(&file)).unwrap(), |_| None, None).unwrap();
    let namespace = open(&engine, "m", PAGE as u64);
    (dir, engine, namespace)
}

fn hash(at: u8) -> BlockHash {
    BlockHash([at; 32])
}

/// Offloads so many pages; the checksum of one may be a lie.
async fn offload(engine: &Arc<Engine>, ns: &NamespaceId, pages: u8, lie: Option<u8>) {
    let call = engine.begin_call(crate::engine::clients::InlineCaller::Unknown).unwrap();
    let client = call.client;
    let ask = offer(*ns, (1..=pages).map(hash).collect());
    let reply = engine.begin_offload(client, &ask).await.unwrap();
    assert_eq!(reply.slots.len(), usize::from(pages));
    let mut checksums = Vec::new();
    for (at, slot) in reply.slots.iter().enumerate() {
        let slot = engine.slot(*slot).unwrap();
        let (_, checksum) = slot.claim().unwrap().fill(&vec![at as u8; PAGE]);
        checksums.push(checksum ^ u64::from(lie == Some(at as u8)));
    }
    let commit: Vec<(u32, u64)> = (0..).zip(checksums).collect();
    let now = engine.now();
    engine.decide().pool.commit_offload(reply.lease.unwrap(), client, &commit, now).unwrap();
}

fn settled(engine: &Arc<Engine>) -> bool {
    for _ in 0..2_000 {
        if engine.decide().writing_bytes == 0 {
            return true;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    false
}

#[tokio::test]
async fn a_write_without_memory_ends_and_so_do_those_behind_it() {
    let (_dir, engine, ns) = engine();
    engine.decide().writes_paused_until = u64::MAX;
    offload(&engine, &ns, 4, None).await;
    let writes: Vec<(WriteBehind, SlotPlace)> = {
        let mut core = engine.decide();
        let writes = core.pool.next_writes(u64::MAX, 0);
        core.writing_bytes += writes.iter().map(|write| write.bytes).sum::<u64>();
        writes.into_iter().map(|write| (write, core.place(write.slot))).collect()
    };
    assert_eq!(writes.len(), 4);
    let nowhere = SlotPlace { slab: u32::MAX, ..writes[1].1 };
    let broken = writes
        .iter()
        .enumerate()
        .map(|(at, (write, place))| (*write, if at == 1 { nowhere } else { *place }));
    engine.start_writes(engine.nvme.as_ref().unwrap(), broken.collect());
    assert!(settled(&engine), "{} bytes are being written for ever", engine.decide().writing_bytes);
    engine.decide().pool.check().unwrap();
    engine.decide().writes_paused_until = 0;
    engine.pump_writes();
    assert!(settled(&engine));
    let stats = engine.decide().pool.stats();
    assert_eq!((stats.dirty_bytes, stats.nvme.pages), (0, 4));
}

#[tokio::test]
async fn a_page_whose_bytes_are_not_its_checksums_is_not_durable() {
    let (_dir, engine, ns) = engine();
    offload(&engine, &ns, 4, Some(2)).await;
    let index = engine.find_namespace(&ns).unwrap();
    let keys: Vec<_> = {
        let core = engine.decide();
        (1..=4).map(|at| core.pool.page_key(index, &hash(at)).unwrap()).collect()
    };
    assert_eq!(engine.make_durable(&keys).await, Err(NotDurable::Changed));
    assert!(settled(&engine));
    let core = engine.decide();
    assert_eq!(
        (core.pool.stats().nvme.pages, core.pool.stats().dram.pages),
        (2, 2),
        "what hangs on it went too"
    );
    assert_eq!(engine.metrics.corrupt_total(), 1);
    assert_eq!(core.durable.len(), 0);
    core.pool.check().unwrap();
}

#[tokio::test]
async fn a_durable_commit_is_answered_although_nothing_is_written() {
    let (_dir, engine, ns) = engine();
    engine.decide().writes_paused_until = u64::MAX;
    offload(&engine, &ns, 2, None).await;
    let index = engine.find_namespace(&ns).unwrap();
    let key = engine.decide().pool.page_key(index, &hash(2)).unwrap();
    assert_eq!(engine.make_durable(&[key]).await, Err(NotDurable::Timeout));
    assert_eq!(engine.decide().durable.len(), 0, "nobody waits any more");
    engine.decide().writes_paused_until = 0;
    assert_eq!(engine.make_durable(&[key]).await, Ok(()), "asked again, it is durable");
}

#[test]
fn the_pool_follows_what_the_disk_has_room_for() {
    let (_dir, engine, _) = engine();
    assert_eq!(engine.decide().pool.stats().nvme.capacity_bytes, 32 << 20);
    engine.decide().pool.resize_nvme(1 << 20, 100, 50);
    engine.decide().nvme_segments = 3;
    engine.follow_capacity(0);
    assert_eq!(engine.decide().nvme_segments, engine.nvme.as_ref().unwrap().capacity().0);
    assert_eq!(engine.decide().pool.stats().nvme.capacity_bytes, 32 << 20);
}

#[test]
fn pages_do_not_leave_for_a_disk_that_is_full_for_a_moment() {
    let (_dir, engine, _) = engine();
    let segments = engine.nvme.as_ref().unwrap().capacity().0;
    let told = || engine.decide().nvme_segments;
    engine.decide().nvme_segments = segments + 4; // the disk has four fewer now
    engine.follow_capacity(1_000);
    engine.follow_capacity(1_000 + NVME_SMALLER_MS - 1);
    assert_eq!(told(), segments + 4);
    engine.decide().nvme_segments = segments;
    engine.follow_capacity(1_000 + NVME_SMALLER_MS - 1); // and had space again
    engine.decide().nvme_segments = segments + 4;
    engine.follow_capacity(1_000 + NVME_SMALLER_MS);
    assert_eq!(told(), segments + 4, "the time counts anew");
    engine.follow_capacity(1_000 + 2 * NVME_SMALLER_MS);
    assert_eq!(told(), segments);
}
