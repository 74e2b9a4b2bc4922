//! What is read back to be written elsewhere. Owns: promises about pages on their way between two places of NVMe, and that
//! each such way ends. Must not know: which page is to move, and why.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::{CLIENT, ask, config, desc, hashes, present, write_all};
use turnkv_pool::*;
use turnkv_proto::Shards;

const SHARD: u64 = 32 << 10;

/// One slab of two slots that two namespaces have in turn, and a page of each on NVMe alone; those of the second have two shards.
struct World {
    pool: Pool,
    one: NamespaceIndex,
    two: NamespaceIndex,
    page: PageKey,
    other: PageKey,
}

impl World {
    fn new() -> World {
        let config = PoolConfig { slab_bytes: 2 * SHARD, slab_count: 1, ..config(1 << 30) };
        let mut pool = Pool::new(config).unwrap();
        let one = pool.open_namespace(desc(1, "", SHARD, 1)).unwrap();
        let two = pool.open_namespace(desc(2, "", SHARD, 2)).unwrap();
        let page = store(&mut pool, one, 1);
        let other = store(&mut pool, two, 2);
        let world = World { pool, one, two, page, other };
        world.pool.check().unwrap();
        assert_eq!(world.pool.stats().dram.pages, 0, "all are on NVMe alone");
        world
    }

    /// The page is in DRAM for its move, and not written yet.
    fn moving() -> World {
        let mut world = World::new();
        let page = world.page;
        world.read_back(page, 0);
        world
    }

    fn read_back(&mut self, page: PageKey, shard: u16) {
        let Rewrite::Promotion(read) = self.pool.rewrite(page, shard) else { panic!("it is on NVMe alone") };
        drop(self.pool.take_effects());
        assert!(self.pool.promoted(read.page, shard, 0));
        self.pool.check().unwrap();
    }

    /// Whether the other namespace gets the slab, for a page of a client.
    fn slab_is_free(&mut self) -> bool {
        let plan = self.pool.begin_offload(ask(self.two, None, &hashes(7..8)), 0).unwrap();
        self.pool.check().unwrap();
        plan.lease.is_some_and(|lease| {
            self.pool.abort_offload(lease, CLIENT).unwrap();
            true
        })
    }
}

/// What ends a move.
type End = fn(&mut World);

/// A page with all its shards, on NVMe alone.
fn store(pool: &mut Pool, ns: NamespaceIndex, shards: u16) -> PageKey {
    let mut kept = Vec::new();
    for shard in 0..shards {
        let plan = pool
            .begin_offload(OffloadAsk { shards: Shards::one(shard), ..ask(ns, None, &hashes(0..1)) }, 0)
            .unwrap();
        kept = pool.commit_offload(plan.lease.unwrap(), CLIENT, &[(0, 0)], 0).unwrap().kept;
    }
    write_all(pool);
    pool.demote_all(None);
    drop(pool.take_effects());
    kept[0]
}

#[test]
fn what_moves_is_no_victim_before_it_is_written() {
    let mut world = World::moving();
    assert!(!world.slab_is_free(), "a client does without for so long");
    assert_eq!(world.pool.rewrite(world.other, 0), Rewrite::NoSlot, "one move does not undo another");
    assert_eq!(world.pool.rewrite(world.page, 0), Rewrite::Dirty, "its bytes are still here");
    write_all(&mut world.pool);
    let other = world.other;
    world.read_back(other, 0);
    assert_eq!(world.pool.stats().dram.pages, 0, "the first one left as soon as it was written");
}

#[test]
fn no_slot_for_one_shard_leaves_the_others_where_they_are() {
    let mut world = World::new();
    let other = world.other;
    world.read_back(other, 1);
    let demoted = world.pool.stats().demoted_pages;
    let client = world.pool.begin_offload(ask(world.two, None, &hashes(7..8)), 0).unwrap().lease.unwrap();
    assert_eq!(world.pool.rewrite(other, 0), Rewrite::NoSlot);
    assert_eq!(world.pool.rewrite(other, 1), Rewrite::Dirty, "its bytes are still here");
    write_all(&mut world.pool);
    world.pool.abort_offload(client, CLIENT).unwrap();
    world.read_back(other, 0);
    world.pool.rewrite_ended(other);
    assert_eq!(world.pool.stats().demoted_pages, demoted + 2, "each of them left when it was written");
    assert_eq!(present(&mut world.pool, world.two, 0..1), 1);
}

#[test]
fn a_move_that_gets_no_slot_demotes_nothing() {
    let mut world = World::moving();
    let demoted = world.pool.stats().demoted_pages;
    for _ in 0..10 {
        assert_eq!(world.pool.rewrite(world.other, 0), Rewrite::NoSlot);
    }
    assert_eq!(world.pool.stats().demoted_pages, demoted);
}

#[test]
fn a_move_that_ends_before_its_write_gives_its_slot_free() {
    let ends: [(&str, End); 5] = [
        ("the pass is over", |world| world.pool.rewrite_ended(world.page)),
        ("it is used", |world| world.pool.touch_pages(world.one, &hashes(0..1), 0)),
        ("it leaves NVMe", |world| {
            assert!(world.pool.drop_page(world.page));
        }),
        ("its bytes are wrong", |world| {
            let read = world.pool.begin_reload(plain::read(world.one, &hashes(0..1)), 0).unwrap();
            let ReloadStep::Ready { slot, .. } = read.pages[0] else { panic!("it is in DRAM") };
            world.pool.end_reload(read.lease.unwrap(), CLIENT, &[], 0).unwrap();
            world.pool.slot_changed(world.page, 0, slot, 0);
        }),
        ("NVMe is lost", |world| {
            let mut sweep = world.pool.nvme_lost();
            while !world.pool.lose_some(&mut sweep) {}
        }),
    ];
    for (why, end) in ends {
        let mut world = World::moving();
        end(&mut world);
        world.pool.check().unwrap();
        assert!(world.slab_is_free(), "{why}");
    }
}
