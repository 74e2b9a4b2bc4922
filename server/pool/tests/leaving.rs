//! What leaves NVMe. Owns: promises about the order in which pages leave, what is written again, and work per call.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::{CLIENT, PAGE, finish_turn, one_slab};
use turnkv_pool::*;
use turnkv_proto::{BlockHash, NamespaceId, SessionId, Shards};

const ID: NamespaceId = NamespaceId([1; 32]);

/// A pool and the device behind it: places are given out in order, ten to a segment.
struct World {
    pool: Pool,
    ns: NamespaceIndex,
    places: Vec<(BlockHash, NvmePlace)>,
    now: Now,
}

impl World {
    fn new(slots: u64, nvme_pages: u64, policy: PolicyKind) -> World {
        let (pool, ns) = one_slab(slots, nvme_pages, policy);
        World { pool, ns, places: Vec::new(), now: 0 }
    }

    /// One turn that has these pages; what is new is stored and written.
    fn turn(&mut self, name: u32, pages: u32) {
        self.now += 1000;
        let (session, hashes) = (SessionId::parse(&format!("s{name}")).unwrap(), hashes(name, 0..pages));
        self.pool.begin_turn(self.ns, &session, self.now).unwrap();
        self.reload(name, pages);
        finish_turn(&mut self.pool, self.ns, &session, &hashes, 0, self.now);
        self.write();
    }

    fn reload(&mut self, name: u32, pages: u32) {
        let hashes = hashes(name, 0..pages);
        let ask = ReloadAsk {
            ns: self.ns,
            hashes: &hashes,
            shards: Shards::one(0),
            client: CLIENT,
            session: None,
            hold: false,
        };
        let plan = self.pool.begin_reload(ask, self.now).unwrap();
        for step in plan.pages {
            if let ReloadStep::Promote(read) = step {
                self.pool.promoted(read.page, 0, self.now);
            }
        }
        if let Some(lease) = plan.lease {
            self.pool.end_reload(lease, CLIENT, &[], self.now).unwrap();
        }
    }

    fn write(&mut self) -> u64 {
        let mut bytes = 0;
        for write in self.pool.next_writes(u64::MAX, self.now) {
            let at = self.places.len() as u32;
            let place = NvmePlace { segment: (at / 10) as u16, generation: 0, block: at };
            assert!(self.pool.written(write.page, 0, place, self.now));
            self.places.push((write.hash, place));
            bytes += write.bytes;
        }
        self.pool.check().unwrap();
        bytes
    }

    fn verdict(&mut self, name: u32, page: u32) -> Reclaim {
        let hash = hashes(name, page..page + 1)[0];
        let place = self.places.iter().rev().find(|(other, _)| *other == hash).unwrap().1;
        self.pool.reclaim_verdict(&ID, &hash, 0, place)
    }

    fn present(&mut self, name: u32, pages: u32) -> u32 {
        self.pool.lookup(self.ns, &hashes(name, 0..pages), self.now).unwrap().present
    }
}

fn hashes(name: u32, range: std::ops::Range<u32>) -> Vec<BlockHash> {
    let hash = |at: u32| {
        let mut bytes = [9; 32];
        bytes[..4].copy_from_slice(&name.to_le_bytes());
        bytes[4..8].copy_from_slice(&at.to_le_bytes());
        BlockHash(bytes)
    };
    range.map(hash).collect()
}

fn is_cold(verdict: Reclaim) -> bool {
    match verdict {
        Reclaim::Cold(_) => true,
        Reclaim::Hot(_) => false,
        Reclaim::Dead => panic!("the extent is alive"),
    }
}

#[test]
fn the_coldest_leave_tails_first_and_a_use_brings_them_back() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        let mut world = World::new(20, 100, policy);
        // 85 of 100 pages stay; the oldest session is used again, so the second oldest is the coldest.
        for name in 0..8 {
            world.turn(name, 10);
        }
        world.turn(0, 10);
        world.turn(8, 10);
        assert!((0..9).all(|name| world.present(name, 10) == 10), "all can still be read");
        assert!(!is_cold(world.verdict(0, 9)), "{policy:?}: it was used again");
        let cold =
            |world: &mut World, name: u32| (0..10).filter(|page| is_cold(world.verdict(name, *page))).count();
        let colds: Vec<usize> = (0..9).map(|name| cold(&mut world, name)).collect();
        // Which one it is, of sessions that behaved alike, is the learned order's own affair.
        let coldest =
            if policy == PolicyKind::Lru { 1 } else { colds.iter().position(|cold| *cold > 0).unwrap() };
        assert_eq!((colds[coldest], colds.iter().sum()), (5, 5), "{policy:?}: what is above 85 pages");
        let coldest = coldest as u32;
        assert!(
            is_cold(world.verdict(coldest, 9)) && !is_cold(world.verdict(coldest, 4)),
            "tails before heads"
        );
        world.reload(coldest, 10);
        world.write();
        assert_eq!(cold(&mut world, coldest), 0, "{policy:?}: it was read, so it stays");
        world.turn(9, 10);
        let others: usize = (1..9).filter(|name| *name != coldest).map(|name| cold(&mut world, name)).sum();
        assert!(others >= 5, "{policy:?}: others leave instead");
    }
}

#[test]
fn a_tier_that_became_smaller_marks_the_coldest_and_takes_the_marks_back_in_time() {
    let mut world = World::new(20, 1000, PolicyKind::Lru);
    for name in 0..80 {
        world.turn(name, 10);
    }
    let cold = |world: &mut World| {
        let of =
            |world: &mut World, name: u32| (0..10).filter(|page| is_cold(world.verdict(name, *page))).count();
        (0..80).map(|name| of(world, name)).collect::<Vec<_>>()
    };
    assert_eq!(cold(&mut world).iter().sum::<usize>(), 0, "800 of 850 pages: none leaves");
    world.pool.resize_nvme(500 * PAGE, 100, 80);
    world.pool.allow_rewrites(500 * PAGE);
    assert_eq!(world.pool.stats().nvme.capacity_bytes, 500 * PAGE);
    for look in 1..=4 {
        world.pool.maintain(world.now);
        world.pool.check().unwrap();
        let marked: usize = cold(&mut world).iter().sum();
        assert!(marked <= look * limits::LEAVING_PER_LOOK_MAX as usize, "{marked} after {look} looks");
    }
    let colds = cold(&mut world);
    assert_eq!(colds.iter().sum::<usize>(), 400, "all above 80 % of 500 pages: {colds:?}");
    assert!(colds[..40].iter().all(|cold| *cold == 10), "the oldest: {colds:?}");
    assert_eq!(world.present(0, 10), 10, "they can still be read");
    world.reload(0, 10);
    assert_eq!(cold(&mut world)[0], 0, "and stay if they are");
}

#[test]
fn a_tier_on_which_pages_shrink_keeps_more_of_them() {
    for (packing, leave) in [(100, 200), (134, 0)] {
        let mut world = World::new(20, 1000, PolicyKind::Lru);
        for name in 0..80 {
            world.turn(name, 10);
        }
        world.pool.resize_nvme(750 * PAGE, packing, 80);
        world.pool.allow_rewrites(750 * PAGE);
        assert_eq!(world.pool.stats().nvme.capacity_bytes, 750 * PAGE * packing / 100);
        for _ in 0..4 {
            world.pool.maintain(world.now);
            world.pool.check().unwrap();
        }
        let of =
            |world: &mut World, name: u32| (0..10).filter(|page| is_cold(world.verdict(name, *page))).count();
        let cold: usize = (0..80).map(|name| of(&mut world, name)).sum();
        assert_eq!(cold, leave, "{packing}: 800 pages, and 80 % of {} may stay", 750 * packing / 100);
    }
}

#[test]
fn what_moves_keeps_its_place_in_the_order() {
    let mut world = World::new(20, 100, PolicyKind::Lru);
    for name in 0..8 {
        world.turn(name, 10);
    }
    // The tail of the oldest session is written again: that is no use.
    for page in 5..10 {
        let Reclaim::Hot(key) = world.verdict(0, page) else { panic!("80 of 85 pages: none leaves yet") };
        if let Rewrite::Promotion(read) = world.pool.rewrite(key, 0) {
            assert!(world.pool.promoted(read.page, 0, world.now));
            assert_eq!(world.pool.rewrite(key, 0), Rewrite::Dirty);
        }
        assert_eq!(world.write(), PAGE);
    }
    world.turn(8, 10);
    assert!((5..10).all(|page| is_cold(world.verdict(0, page))), "it is still the coldest");
}

#[test]
fn a_move_that_is_given_up_leaves_the_page_like_any_other() {
    let mut world = World::new(20, 100, PolicyKind::Lru);
    for name in 0..8 {
        world.turn(name, 10);
    }
    let Reclaim::Hot(key) = world.verdict(0, 0) else { panic!("it stays") };
    let Rewrite::Promotion(read) = world.pool.rewrite(key, 0) else { panic!("it is on NVMe alone") };
    assert!(world.pool.promoted(read.page, 0, world.now));
    world.pool.rewrite_ended(key);
    world.pool.check().unwrap();
    assert_eq!(world.present(0, 10), 10);
    world.turn(9, 20);
    assert_eq!(world.present(9, 20), 20, "its slot was free for others");
}

#[test]
fn no_more_is_written_again_than_half_of_what_comes() {
    let mut world = World::new(400, 1600, PolicyKind::Lru);
    world.turn(0, 200);
    // More than half of the tier stays: what moves frees little.
    for name in [1000, 1001] {
        world.turn(name, 390);
    }
    let mut moved = 0;
    // Leaves by themselves: nothing hangs on them.
    for name in 1..150 {
        world.turn(name, 1);
        for again in 1..=name {
            if let Reclaim::Hot(key) = world.verdict(again, 0)
                && world.pool.rewrite(key, 0) == Rewrite::Dirty
            {
                moved += world.write() / PAGE;
            }
        }
    }
    // A sixteenth of the tier may be written again at once, and half of all that came.
    assert!(moved <= 100 + 349 / 2, "{moved} pages were written again");
    assert!(moved >= 349 / 2, "{moved} pages: the allowance is there to be used");
}

#[test]
fn a_large_subtree_leaves_in_bounded_steps_and_no_step_breaks_a_prefix() {
    for in_dram in [true, false] {
        let mut world = World::new(6000, 100_000, PolicyKind::Lru);
        world.turn(0, 5000);
        let root = world.verdict(0, 0);
        let (Reclaim::Hot(root) | Reclaim::Cold(root)) = root else { panic!("{root:?}") };
        if !in_dram {
            world.pool.demote_all(None);
        }
        let mut calls = 1;
        while !world.pool.drop_page(root) {
            world.pool.check().unwrap();
            calls += 1;
            let left = world.present(0, 5000);
            assert!(in_dram && left == 5000 || left + 1024 * calls >= 5000, "{left} after {calls} calls");
            if calls == 3 {
                // Somebody goes on where pages are leaving.
                world.reload(0, 100);
                world.turn(0, 5001);
            }
            assert!(calls < 50, "it ends");
        }
        assert!(calls >= 5, "{calls} calls for 5,000 pages");
        world.pool.check().unwrap();
        let dram = world.pool.lookup(world.ns, &hashes(0, 0..5000), world.now).unwrap().dram;
        assert_eq!(world.pool.is_on_nvme(root), None);
        assert!(!in_dram || dram == 5000, "DRAM keeps what it has");
    }
}

#[test]
fn a_session_longer_than_memory_is_reloaded_to_its_end() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        let mut world = World::new(600, 10_000, policy);
        for pages in [500, 1000, 1500, 2000] {
            let (mut from, mut calls) = (0, 0);
            let name = SessionId::parse("s0").unwrap();
            world.now += 1000;
            world.pool.begin_turn(world.ns, &name, world.now).unwrap();
            while from < world.present(0, pages) {
                let rest = hashes(0, from..pages);
                let ask = ReloadAsk {
                    ns: world.ns,
                    hashes: &rest,
                    shards: Shards::one(0),
                    client: CLIENT,
                    session: Some(&name),
                    hold: false,
                };
                let plan = world.pool.begin_reload(ask, world.now).unwrap();
                for step in &plan.pages {
                    match step {
                        ReloadStep::Promote(read) => assert!(world.pool.promoted(read.page, 0, world.now)),
                        ReloadStep::Ready { .. } => {}
                        _ => break,
                    }
                    from += 1;
                }
                let lease = plan.lease.unwrap_or_else(|| panic!("{policy:?}: stuck at page {from}"));
                world.pool.end_reload(lease, CLIENT, &[], world.now).unwrap();
                world.pool.check().unwrap();
                calls += 1;
                assert!(calls < 50, "{policy:?}: it goes on");
            }
            world.turn(0, pages);
            assert_eq!(world.present(0, pages), pages, "{policy:?}");
        }
    }
}

/// An engine that has all of a session in its own cache neither reloads nor offloads: the turn's end is all that the pool hears.
#[test]
fn a_turn_that_moved_no_page_brings_its_pages_back_too() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        let mut world = World::new(20, 100, policy);
        for name in 0..9 {
            world.turn(name, 10);
        }
        let cold =
            |world: &mut World, name: u32| (0..10).filter(|page| is_cold(world.verdict(name, *page))).count();
        let coldest = (0..9).find(|name| cold(&mut world, *name) > 0).unwrap();
        let session = SessionId::parse(&format!("s{coldest}")).unwrap();
        world.now += 1000;
        world.pool.begin_turn(world.ns, &session, world.now).unwrap();
        let end = EndTurn {
            keep: 10,
            hashes: &[],
            tail_tokens: 0,
            expected_return_ms: 0,
            ttl_ms: 0,
            priority: 0,
            last: false,
        };
        world.pool.end_turn(world.ns, &session, end, world.now).unwrap();
        world.pool.check().unwrap();
        assert_eq!(cold(&mut world, coldest), 0, "{policy:?}: the turn used them");
        world.turn(9, 10);
        assert_eq!(cold(&mut world, coldest), 0, "{policy:?}: others leave instead");
    }
}
