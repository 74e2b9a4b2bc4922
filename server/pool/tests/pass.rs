//! Passes of reclaim: what they move, what they drop, what they wait for. Owns: one segment and the slots around it. Must not
//! know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::{PAGE, hash, one_slab, present, store};
use turnkv_pool::limits::{PASS_MOVES_INFLIGHT_MAX, PASS_MS_MAX, PASS_SLOT_WAIT_MS};
use turnkv_pool::*;
use turnkv_proto::NamespaceId;

const ID: NamespaceId = NamespaceId([1; 32]);
/// Pages of the segment.
const PAGES: u32 = 20;

/// A pool of so many slots whose pages 0..20, each a prefix of its own, are on NVMe alone, in one segment.
struct World {
    pool: Pool,
    ns: NamespaceIndex,
    extents: Vec<LiveExtent>,
    next: u32,
}

impl World {
    fn new(slots: u64) -> World {
        let (pool, ns) = one_slab(slots, 1000, PolicyKind::Lru);
        let mut world = World { pool, ns, extents: Vec::new(), next: 0 };
        world.pool.shape_nvme(80, u64::from(PAGES) * PAGE, 0);
        for page in 0..PAGES {
            store(&mut world.pool, ns, None, page..page + 1);
        }
        world.extents = world.write(0);
        world.pool.demote_all(None);
        world
    }

    /// Writes what waits; where it is now.
    fn write(&mut self, segment: u16) -> Vec<LiveExtent> {
        let mut written = Vec::new();
        for write in self.pool.next_writes(u64::MAX, 0) {
            let place = NvmePlace { segment, generation: 0, block: self.next };
            self.next += 1;
            assert!(self.pool.written(write.page, 0, place, 0));
            let (hash, bytes) = (write.hash, PAGE as u32);
            written.push(LiveExtent { namespace: ID, hash, shard: 0, bytes, place });
        }
        written
    }

    fn step(&mut self, pass: &mut Pass, now: Now) -> PassStep {
        let step = self.pool.step_pass(pass, u32::MAX, now);
        self.pool.check().unwrap();
        step
    }

    /// Steps until one is not followed by the next at once. The reads that it started.
    fn run(&mut self, pass: &mut Pass, now: Now) -> (Vec<Promotion>, PassNext) {
        let mut reads = Vec::new();
        for _ in 0..1000 {
            let step = self.step(pass, now);
            reads.extend(step.reads);
            if step.next != PassNext::Again {
                return (reads, step.next);
            }
        }
        panic!("a pass steps on and on");
    }

    fn land(&mut self, reads: &[Promotion]) {
        for read in reads {
            assert!(self.pool.promoted(read.page, 0, 0));
        }
    }

    /// Fills all slots that there are with pages that wait to be written.
    fn fill_slots(&mut self) {
        for page in 500..532 {
            store(&mut self.pool, self.ns, None, page..page + 1);
        }
        assert_eq!(self.pool.stats().dirty_bytes, 32 * PAGE);
    }

    fn present(&mut self) -> u32 {
        (0..PAGES).map(|page| present(&mut self.pool, self.ns, page..page + 1)).sum()
    }
}

#[test]
fn all_of_a_segment_moves_a_few_pages_at_a_time() {
    let mut world = World::new(64);
    let mut pass = world.pool.begin_pass(world.extents.clone(), true, 0);
    let mut moved = 0;
    loop {
        let (reads, next) = world.run(&mut pass, 0);
        assert!(reads.len() <= PASS_MOVES_INFLIGHT_MAX);
        if let PassNext::Over { empty } = next {
            assert!(empty);
            break;
        }
        world.land(&reads);
        let step = world.step(&mut pass, 0);
        assert_eq!(step.writes_ready, reads.len(), "what was read is to be written");
        moved += world.write(1).len();
    }
    assert_eq!((moved, world.present()), (PAGES as usize, PAGES));
}

#[test]
fn what_is_to_stay_waits_for_slots_that_are_being_written() {
    let mut world = World::new(32);
    world.fill_slots();
    let writes = world.pool.next_writes(u64::MAX, 0);
    let mut pass = world.pool.begin_pass(world.extents.clone(), true, 0);
    for now in [0, 1, PASS_SLOT_WAIT_MS - 1] {
        assert_eq!(world.run(&mut pass, now), (Vec::new(), PassNext::Wait));
    }
    assert_eq!(world.present(), PAGES, "nothing went for want of a slot");
    for (at, write) in (0..).zip(writes) {
        let place = NvmePlace { segment: 1, generation: 0, block: at };
        assert!(world.pool.written(write.page, 0, place, 0));
    }
    let (reads, _) = world.run(&mut pass, PASS_SLOT_WAIT_MS - 1);
    assert_eq!(reads.len(), PASS_MOVES_INFLIGHT_MAX);
}

#[test]
fn where_no_slot_comes_free_pages_go_so_that_there_is_room_at_all() {
    for begun in [false, true] {
        let mut world = World::new(32);
        world.fill_slots();
        let writes = if begun { world.pool.next_writes(u64::MAX, 0) } else { Vec::new() };
        let mut pass = world.pool.begin_pass(world.extents.clone(), true, 0);
        let now = if begun { PASS_SLOT_WAIT_MS } else { 0 };
        assert_eq!(world.run(&mut pass, now), (Vec::new(), PassNext::Over { empty: true }));
        assert_eq!((world.present(), writes.len()), (0, if begun { 32 } else { 0 }));
        assert_eq!(world.pool.stats().evicted_pages, u64::from(PAGES), "and are counted");
    }
}

#[test]
fn a_pass_whose_reads_failed_and_find_no_slot_again_ends_and_keeps_its_pages() {
    let mut world = World::new(32);
    let mut pass = world.pool.begin_pass(world.extents.clone(), true, 0);
    let (reads, next) = world.run(&mut pass, 0);
    assert_eq!((reads.len(), next), (PASS_MOVES_INFLIGHT_MAX, PassNext::Wait));
    for read in reads {
        assert!(!world.pool.promote_failed(read.page, 0, MissCause::Busy, 0));
    }
    world.fill_slots();
    assert_eq!(world.run(&mut pass, 0), (Vec::new(), PassNext::Over { empty: false }));
    assert_eq!(world.present(), PAGES);
}

#[test]
fn where_nothing_can_be_moved_to_nothing_is_read() {
    let mut world = World::new(64);
    let mut pass = world.pool.begin_pass(world.extents.clone(), true, 0);
    let mut steps = 0;
    while world.pool.step_pass(&mut pass, PAGE as u32 - 1, 0).next == PassNext::Again {
        steps += 1;
        assert!(steps < 1000);
    }
    assert_eq!((world.present(), world.pool.page_key(world.ns, &hash(0))), (0, None));
}

#[test]
fn a_pass_that_takes_too_long_is_given_up_and_keeps_its_pages() {
    let mut world = World::new(64);
    let mut pass = world.pool.begin_pass(world.extents.clone(), true, 0);
    let (reads, next) = world.run(&mut pass, 0);
    assert_eq!((reads.len(), next), (PASS_MOVES_INFLIGHT_MAX, PassNext::Wait), "they are on their way");
    assert_eq!(world.run(&mut pass, PASS_MS_MAX).1, PassNext::Over { empty: false });
    world.land(&reads);
    world.pool.check().unwrap();
    assert_eq!(world.present(), PAGES);
}

#[test]
fn a_pass_moves_no_more_than_leaves_room_for_one_extent_more() {
    let mut world = World::new(64);
    let mut pass = world.pool.begin_pass(world.extents.clone(), false, 0);
    let mut bytes = 0;
    loop {
        let step = world.step(&mut pass, 0);
        bytes += step.moved_bytes;
        world.land(&step.reads);
        if step.writes_ready > 0 {
            world.write(1);
        }
        match step.next {
            PassNext::Over { empty } => {
                assert!(empty);
                break;
            }
            _ => assert!(bytes <= u64::from(PAGES) * PAGE),
        }
    }
    assert_eq!(bytes, 17 * PAGE, "85 percent of it");
    assert_eq!(world.present(), 17, "what was written first went");
}
