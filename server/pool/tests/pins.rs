//! Pins against a plain list of them: how far each reaches, when it ends, what all of them protect together, whatever
//! comes and goes meanwhile. Must not know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::{CLIENT, PAGE, ask, hash, hashes, one_slab, read, store};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use turnkv_pool::limits::{HASHES_PER_CALL_MAX, PIN_MS_DEFAULT, PROTECTION_MS_MAX};
use turnkv_pool::*;
use turnkv_proto::BlockHash;

/// Pages 0 to 7 are a chain; each of the others hangs on one of these. All of them fit the budget.
const PAGES: u32 = 24;

fn path(page: u32) -> Vec<u32> {
    let before = if page < 8 { page.checked_sub(1) } else { Some(page % 8) };
    let mut path = before.map_or(Vec::new(), path);
    path.push(page);
    path
}

fn names(pages: &[u32]) -> Vec<BlockHash> {
    pages.iter().map(|page| hash(*page)).collect()
}

#[derive(Clone, Debug)]
enum Op {
    Store(u32),
    Lose(u32),
    Pin { page: u32, for_ms: u64 },
    Slowly { page: u32, for_ms: u64, meanwhile: u32 },
    Unpin(u32),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let for_ms = || prop_oneof![3 => 1u64..500, 1 => Just(0), 1 => Just(u64::MAX)];
    prop_oneof![
        6 => (0..PAGES).prop_map(Op::Store),
        2 => (0..PAGES).prop_map(Op::Lose),
        6 => (0..PAGES, for_ms()).prop_map(|(page, for_ms)| Op::Pin { page, for_ms }),
        2 => (0..PAGES, for_ms(), 0..PAGES)
            .prop_map(|(page, for_ms, meanwhile)| Op::Slowly { page, for_ms, meanwhile }),
        2 => (0..PAGES).prop_map(Op::Unpin),
        3 => (1u64..300).prop_map(Op::Wait),
    ]
}

/// A pin, as its owner would say: how many pages it protects, and when it ends.
#[derive(Clone, Copy, Debug)]
struct Plain {
    pages: usize,
    ends: Now,
}

struct World {
    pool: Pool,
    ns: NamespaceIndex,
    now: Now,
    here: BTreeSet<u32>,
    pins: BTreeMap<u32, Plain>,
}

impl World {
    fn new() -> World {
        let (pool, ns) = one_slab(256, 0, PolicyKind::Lru);
        World { pool, ns, now: 0, here: BTreeSet::new(), pins: BTreeMap::new() }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Store(page) => {
                let hashes = [hash(page)];
                let before = path(page).into_iter().rev().nth(1);
                let plan = self.pool.begin_offload(ask(self.ns, before, &hashes), self.now).unwrap();
                if let Some(lease) = plan.lease {
                    self.pool.commit_offload(lease, CLIENT, &[(0, 1)], self.now).unwrap();
                    self.here.insert(page);
                }
            }
            Op::Lose(page) => self.lose(page),
            Op::Pin { page, for_ms } => {
                let pinned = self.pool.pin(self.ns, &names(&path(page)), for_ms, self.now).unwrap();
                self.pinned(page, for_ms, pinned);
            }
            Op::Slowly { page, for_ms, meanwhile } => {
                let list = names(&path(page));
                let mut pinning = self.pool.begin_pin(self.ns, &list, for_ms, self.now).unwrap();
                while !self.pool.pin_some(&mut pinning, &list) {}
                self.lose(meanwhile); // what goes before the pin is its owner's, it does not reach
                let pinned = self.pool.end_pin(pinning, self.now);
                self.pinned(page, for_ms, pinned);
            }
            Op::Unpin(page) => {
                let known = self.pins.remove(&page).is_some();
                assert_eq!(self.pool.unpin(self.ns, &hash(page)), Ok(known));
            }
            Op::Wait(ms) => self.wait(ms),
        }
    }

    fn pinned(&mut self, page: u32, for_ms: u64, pinned: Pinned) {
        let pages = path(page).iter().take_while(|page| self.here.contains(page)).count();
        assert_eq!((pinned.pages as usize, pinned.pin), (pages, hash(page)));
        let for_ms = if for_ms == 0 { PIN_MS_DEFAULT } else { for_ms.min(PROTECTION_MS_MAX) };
        assert_eq!(pinned.ends_in_ms, if pages == 0 { 0 } else { for_ms });
        if pages > 0 {
            self.pins.insert(page, Plain { pages, ends: self.now + for_ms });
        }
    }

    fn lose(&mut self, page: u32) {
        let hashes = [hash(page)];
        let plan = self.pool.begin_reload(read(self.ns, &hashes), self.now).unwrap();
        let Some(lease) = plan.lease else { return };
        self.pool.end_reload(lease, CLIENT, &[0], self.now).unwrap();
        self.here.retain(|other| !path(*other).contains(&page));
        for (pin, plain) in &mut self.pins {
            let here = path(*pin).iter().take_while(|page| self.here.contains(page)).count();
            plain.pages = plain.pages.min(here);
        }
    }

    fn wait(&mut self, ms: u64) {
        self.now += ms;
        while !self.pool.expire(self.now) {}
        let over: BTreeSet<u32> =
            self.pins.iter().filter(|(_, plain)| plain.ends <= self.now).map(|(pin, _)| *pin).collect();
        let ended = self.pool.take_ended_pins();
        let told: BTreeSet<BlockHash> = ended.iter().map(|(_, pin)| *pin).collect();
        assert_eq!((told.len(), told), (ended.len(), over.iter().map(|pin| hash(*pin)).collect()));
        self.pins.retain(|pin, _| !over.contains(pin));
    }

    fn verify(&mut self) {
        let protects = self.pins.iter().flat_map(|(pin, plain)| path(*pin).into_iter().take(plain.pages));
        let protected = protects.collect::<BTreeSet<u32>>().len() as u64;
        let stats = self.pool.stats();
        assert_eq!((stats.protected_pages, stats.protected_bytes), (protected, protected * PAGE));
        assert_eq!((stats.pins, stats.pages), (self.pins.len() as u64, self.here.len() as u64));
        for page in 0..PAGES {
            let plain = self.pins.get(&page);
            let left = plain.map(|plain| plain.ends - self.now);
            assert_eq!(self.pool.pin_ends_in(self.ns, &hash(page), self.now), left, "pin {page}");
            let record = self.pool.pin_record(self.ns, &hash(page), self.now);
            let wanted = plain.filter(|plain| plain.pages > 0).map(|plain| PinRecord {
                base: None,
                hashes: names(&path(page)[..plain.pages]),
                ends_in_ms: plain.ends - self.now,
            });
            assert_eq!(record, wanted, "pin {page}");
        }
        let (named, next) = self.pool.pin_names(0);
        let named: BTreeSet<BlockHash> = named.into_iter().map(|(_, pin)| pin).collect();
        assert_eq!((named, next), (self.pins.keys().map(|pin| hash(*pin)).collect(), None));
        self.pool.check().unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn pins_reach_as_far_as_their_pages_are_here_and_end_when_they_were_told_to(
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut world = World::new();
        for op in &ops {
            world.apply(op);
            world.verify();
        }
        world.wait(PROTECTION_MS_MAX);
        world.verify();
        prop_assert_eq!((world.pool.stats().protected_pages, world.pool.stats().pins), (0, 0));
    }
}

#[test]
fn a_pin_that_names_nothing_or_too_much_is_refused_and_one_of_pages_that_are_not_here_takes_none_away() {
    let mut world = World::new();
    let many = vec![hash(0); HASHES_PER_CALL_MAX + 1];
    for list in [&[][..], &many] {
        assert!(matches!(world.pool.pin(world.ns, list, 1, 0), Err(PoolError::Invalid(_))));
    }
    store(&mut world.pool, world.ns, None, 0..3);
    world.pool.pin(world.ns, &hashes(0..3), 50, 0).unwrap();
    // The same name, asked with a beginning that is not here: the pin that is there stays.
    let strange = world.pool.pin(world.ns, &[hash(90), hash(2)], 999, 10).unwrap();
    assert_eq!((strange.pages, strange.ends_in_ms), (0, 0));
    assert_eq!(world.pool.pin_ends_in(world.ns, &hash(2), 10), Some(40));
    assert_eq!((world.pool.stats().pins, world.pool.stats().protected_pages), (1, 3));
    // Shorter by now, and for less long: the last word counts.
    assert_eq!(world.pool.pin(world.ns, &hashes(0..3), 5, 10).unwrap().ends_in_ms, 5);
    assert_eq!(world.pool.pin_ends_in(world.ns, &hash(2), 10), Some(5));
    world.pool.expire(15);
    assert_eq!(world.pool.take_ended_pins(), [(world.ns, hash(2))]);
    assert_eq!((world.pool.unpin(world.ns, &hash(2)), world.pool.stats().protected_pages), (Ok(false), 0));
    world.pool.check().unwrap();
}
