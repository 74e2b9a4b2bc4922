//! Room for one namespace while writers of another stand still. Owns: which slabs are emptied for it, and at what price.
//! Must not know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::counted::Counted;
use plain::*;
use turnkv_pool::limits::DRAIN_PAGES_PER_CALL_MAX;
use turnkv_pool::*;

/// Slots of a slab of [`World`].
const SLOTS: u32 = 8;

/// Slabs that all have pages of one namespace, and another namespace that has none.
struct World {
    pool: Pool,
    cold: NamespaceIndex,
    new: NamespaceIndex,
    /// The next page that nobody named before.
    next: u32,
}

impl World {
    fn new(slabs: u32) -> World {
        World::with(PoolConfig { slab_count: slabs, ..config(0) })
    }

    fn with(config: PoolConfig) -> World {
        let (mut pool, cold) = pool_with(config);
        let new = pool.open_namespace(desc(2, "b", 8 << 10, 1)).unwrap();
        World { pool, cold, new, next: 0 }
    }

    /// Names so many pages.
    fn names(&mut self, pages: u32) -> std::ops::Range<u32> {
        self.next += pages;
        self.next - pages..self.next
    }

    /// The next so many slots of the first namespace have pages that nobody uses; the last one of them.
    fn fill(&mut self, pages: u32) -> u32 {
        let names = self.names(pages);
        store(&mut self.pool, self.cold, None, names);
        self.next - 1
    }

    /// The next slot is one that its writer never fills.
    fn freeze(&mut self, parent: Option<u32>) -> LeaseId {
        let names = self.names(1);
        let plan = self.pool.begin_offload(ask(self.cold, parent, &hashes(names)), 0).unwrap();
        plan.lease.unwrap()
    }

    /// How many of so many pages find room in one call, and how many other pages that costs. What found room stays.
    fn offload(&mut self, pages: u32) -> (usize, u64) {
        let before = self.pool.stats();
        let names = self.names(pages);
        let plan = self.pool.begin_offload(ask(self.new, None, &hashes(names)), 0).unwrap();
        let granted: Vec<(u32, u64)> = (0..)
            .zip(&plan.outcomes)
            .filter(|(_, outcome)| matches!(outcome, Outcome::Granted(_)))
            .map(|(at, _)| (at, 0))
            .collect();
        if let Some(lease) = plan.lease {
            self.pool.commit_offload(lease, CLIENT, &granted, 0).unwrap();
        }
        self.pool.check().unwrap();
        let after = self.pool.stats();
        let gone = |stats: &PoolStats| stats.evicted_pages + stats.demoted_pages;
        (granted.len(), gone(&after) - gone(&before))
    }
}

#[test]
fn slabs_with_slots_of_writers_that_stand_still_are_passed_over() {
    let mut world = World::new(12);
    for _ in 0..10 {
        world.fill(SLOTS - 1);
        world.freeze(None);
    }
    world.fill(SLOTS);
    world.fill(SLOTS);
    assert_eq!(world.offload(2 * SLOTS), (2 * SLOTS as usize, 2 * u64::from(SLOTS)));
    let cold = world.pool.stats().dram.pages - 2 * u64::from(SLOTS);
    assert_eq!(cold, 10 * u64::from(SLOTS - 1), "no page of the slabs that were passed over went");
}

#[test]
fn slabs_that_are_being_read_are_passed_over() {
    let mut world = World::new(6);
    for _ in 0..5 {
        let last = world.fill(SLOTS);
        let list = hashes(last + 1 - SLOTS..last + 2 - SLOTS);
        assert!(world.pool.begin_reload(read(world.cold, &list), 0).unwrap().lease.is_some());
    }
    world.fill(SLOTS);
    assert_eq!(world.offload(SLOTS), (SLOTS as usize, u64::from(SLOTS)));
}

/// No lease at all, but pages that NVMe does not want: what hangs on one goes before it does.
#[test]
fn slabs_of_pages_that_stay_off_nvme_are_emptied_whole() {
    let mut world = World::with(PoolConfig { slab_count: 8, nvme_admit: Admit::Reused, ..config(1 << 30) });
    for _ in 0..8 {
        world.fill(SLOTS);
    }
    assert_eq!(world.offload(SLOTS), (SLOTS as usize, u64::from(SLOTS)));
}

#[test]
fn where_every_slab_has_a_lease_nothing_goes_in_vain() {
    let mut world = World::new(4);
    let leases = [(); 4].map(|()| {
        world.fill(SLOTS - 1);
        world.freeze(None)
    });
    for _ in 0..20 {
        assert_eq!(world.offload(SLOTS), (0, 0));
        world.pool.maintain(0);
    }
    // The one whose lease ends first is the first that can go, wherever it stands.
    drop(world.pool.take_effects());
    world.pool.abort_offload(leases[2], CLIENT).unwrap();
    assert!(world.pool.take_effects().freed, "whoever waits for room looks again");
    assert_eq!(world.offload(SLOTS), (SLOTS as usize, u64::from(SLOTS - 1)));
}

#[test]
fn a_slab_that_was_passed_over_is_the_coldest_again_when_its_lease_ends() {
    let mut world = World::new(4);
    let first = world.fill(SLOTS - 1);
    let lease = world.freeze(None);
    for _ in 0..3 {
        world.fill(SLOTS);
    }
    assert_eq!(world.offload(SLOTS), (SLOTS as usize, u64::from(SLOTS)));
    assert_eq!(present(&mut world.pool, world.cold, 0..first + 1), SLOTS - 1);
    world.pool.abort_offload(lease, CLIENT).unwrap();
    world.new = world.pool.open_namespace(desc(3, "c", 8 << 10, 1)).unwrap(); // it has no page that could go first
    assert_eq!(world.offload(SLOTS), (SLOTS as usize, u64::from(SLOTS - 1)));
    assert_eq!(present(&mut world.pool, world.cold, 0..first + 1), 0, "it is what went");
}

#[test]
fn pages_that_a_slot_being_filled_hangs_on_do_not_end_the_search() {
    let mut world = World::new(12);
    let tips = [(); 10].map(|()| world.fill(SLOTS));
    for tip in tips.into_iter().take(SLOTS as usize) {
        world.freeze(Some(tip));
    }
    world.fill(SLOTS);
    // Two of the ten, and the last one, have no lease, and nothing of them leads to one.
    assert_eq!(world.offload(3 * SLOTS), (3 * SLOTS as usize, 3 * u64::from(SLOTS)));
}

#[test]
fn what_a_slot_being_filled_hangs_on_costs_one_slab_not_all_it_is_in() {
    let mut world = World::new(8);
    let mut tip = None;
    for _ in 0..6 {
        world.fill(SLOTS - 1);
        let names = world.names(1);
        store(&mut world.pool, world.cold, tip, names);
        tip = Some(world.next - 1);
    }
    world.freeze(tip);
    world.fill(SLOTS - 1);
    world.fill(SLOTS);
    let in_vain = u64::from(SLOTS - 1);
    assert_eq!(world.offload(SLOTS), (SLOTS as usize, in_vain + u64::from(SLOTS)));
}

#[test]
fn a_reader_that_comes_while_a_slab_is_emptied_ends_that_at_once() {
    const LARGE: u32 = DRAIN_PAGES_PER_CALL_MAX + 100;
    let large = PoolConfig { slab_bytes: u64::from(LARGE) * (8 << 10), slab_count: 2, ..config(1 << 30) };
    let mut world = World::with(large);
    world.fill(LARGE);
    world.fill(LARGE);
    write_all(&mut world.pool);
    assert_eq!(world.offload(1), (0, u64::from(DRAIN_PAGES_PER_CALL_MAX)), "as much as one call may");
    let last = hashes(LARGE - 1..LARGE);
    let plan = world.pool.begin_reload(read(world.cold, &last), 0).unwrap();
    assert!(matches!(plan.pages[0], ReloadStep::Ready { .. }));
    assert_eq!(world.offload(1), (0, u64::from(DRAIN_PAGES_PER_CALL_MAX)), "of the other slab");
    let rest = u64::from(LARGE - DRAIN_PAGES_PER_CALL_MAX);
    assert_eq!(world.offload(1), (1, rest), "and that is empty now");
}

#[test]
fn however_many_slabs_cannot_be_emptied_a_call_has_its_bound() {
    const CHAINS: u32 = 752;
    const SLOTS: u32 = 16;
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        let mut all = Counted::new(u64::from(SLOTS), 1, false, policy);
        let small = PoolConfig { slab_count: CHAINS + CHAINS / SLOTS, policy, ..config(0) };
        all.pool = Pool::new(small).unwrap();
        all.ns = all.pool.open_namespace(desc(1, "a", 4096, 1)).unwrap();
        for at in 0..CHAINS {
            all.store(None, at * 100..at * 100 + SLOTS);
        }
        // What they hang on is in all the other slabs: none of those has a lease, and none can go.
        for at in 0..CHAINS {
            let wanted = hashes(at * 100 + SLOTS..at * 100 + SLOTS + 1);
            let ask = all.ask(Some(hash(at * 100 + SLOTS - 1)), &wanted);
            assert!(all.offload("a writer that stands still", &ask).lease.is_some());
        }
        let other = all.call("open", |pool| pool.open_namespace(desc(2, "b", 4096, 1))).unwrap();
        let wanted = hashes(900_000..900_010);
        for round in 0..50 {
            let ask = OffloadAsk { ns: other, ..all.ask(None, &wanted) };
            assert!(all.offload("nothing can go", &ask).lease.is_none());
            all.call("maintain", |pool| pool.maintain(round));
        }
        assert_eq!(all.pool.stats().evicted_pages, 0);
        all.pool.check().unwrap();
    }
}
