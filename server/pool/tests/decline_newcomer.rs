//! Pages that are not taken. Owns: promises about when a turn's pages give way to what is here. Must not know: how chances are
//! learned.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::{finish_turn, one_slab};
use turnkv_pool::*;
use turnkv_proto::{BlockHash, SessionId};

/// Pages of every session.
const PAGES: u32 = 10;
/// Room for two sessions, and a part of a third.
const SLOTS: u64 = 24;
/// Between two rounds.
const ROUND_MS: u64 = 10_000;
const ROUNDS: u64 = 300;

struct World {
    pool: Pool,
    ns: NamespaceIndex,
    now: Now,
}

/// What became of one turn's pages.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    found: u32,
    taken: usize,
    outranked: usize,
}

impl World {
    fn new(policy: PolicyKind, nvme: bool) -> World {
        let (pool, ns) = one_slab(SLOTS, if nvme { 256 } else { 0 }, policy);
        World { pool, ns, now: 0 }
    }

    /// One whole turn of a session whose pages are its own.
    fn turn(&mut self, session: &str, chain: u32, priority: u32) -> Told {
        let (id, hashes) = (SessionId::parse(session).unwrap(), hashes(chain));
        self.pool.expire(self.now);
        self.pool.maintain(self.now);
        self.pool.begin_turn(self.ns, &id, self.now).unwrap();
        let found = self.pool.lookup(self.ns, &hashes, self.now).unwrap().present;
        let (outcomes, _) = finish_turn(&mut self.pool, self.ns, &id, &hashes, priority, self.now);
        if (self.now / ROUND_MS).is_multiple_of(30) {
            self.pool.check().unwrap();
        }
        let taken = outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Granted(_))).count();
        let outranked = outcomes.iter().filter(|outcome| **outcome == Outcome::Outranked).count();
        Told { found, taken, outranked }
    }

    /// Two sessions take turns, and after each of their turns comes somebody who never comes back. Returns what the two were
    /// told in the last rounds, and what the others were.
    fn learn(&mut self) -> (Vec<Told>, Vec<Told>) {
        let (mut loyal, mut once) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            self.now += ROUND_MS;
            let chain = (round % 2) as u32;
            loyal.push(self.turn(&format!("loyal{chain}"), chain, 0));
            once.push(self.turn(&format!("once{round}"), 100 + round as u32, 0));
        }
        let last = |told: Vec<Told>| told.into_iter().skip(ROUNDS as usize - 20).collect();
        (last(loyal), last(once))
    }
}

fn hashes(chain: u32) -> Vec<BlockHash> {
    let name = |at: u32| {
        let mut bytes = [7; 32];
        bytes[..4].copy_from_slice(&chain.to_le_bytes());
        bytes[4..8].copy_from_slice(&at.to_le_bytes());
        BlockHash(bytes)
    };
    (0..PAGES).map(name).collect()
}

#[test]
fn who_never_comes_back_does_not_push_out_who_does() {
    let mut world = World::new(PolicyKind::Session, false);
    let (loyal, once) = world.learn();
    assert!(loyal.iter().all(|told| told.found == PAGES), "{loyal:?}");
    assert!(once.iter().all(|told| told.taken + told.outranked == PAGES as usize), "{once:?}");
    // What is left over is theirs, the rest of their pages is not taken.
    assert!(once.iter().all(|told| told.taken as u64 == SLOTS - 2 * u64::from(PAGES)), "{once:?}");
}

#[test]
fn a_plain_policy_takes_everything() {
    let (loyal, once) = World::new(PolicyKind::Lru, false).learn();
    assert!(once.iter().all(|told| told.outranked == 0), "{once:?}");
    // Which is why the two find less.
    assert!(loyal.iter().all(|told| told.found < PAGES), "{loyal:?}");
}

#[test]
fn with_much_nvme_below_little_is_lost_by_making_way() {
    let (_, once) = World::new(PolicyKind::Session, true).learn();
    assert!(once.iter().all(|told| told.outranked == 0), "{once:?}");
}

#[test]
fn what_has_a_priority_is_taken() {
    let mut world = World::new(PolicyKind::Session, false);
    world.learn();
    let plain = world.turn("plain", 50, 0);
    assert!(plain.outranked > 0, "{plain:?}");
    // Its owner says so at the end of the turn before.
    world.turn("dear", 51, 3);
    let dear = world.turn("dear", 52, 3);
    assert_eq!((dear.taken, dear.outranked), (PAGES as usize, 0));
}

#[test]
fn who_stays_away_makes_way() {
    let mut world = World::new(PolicyKind::Session, false);
    world.learn();
    // Nobody comes back for an hour: the chances of those who used to are gone, and others' pages are taken again.
    world.now += 3_600_000;
    let other = world.turn("other", 60, 0);
    assert_eq!((other.taken, other.outranked), (PAGES as usize, 0));
}

#[test]
fn what_is_learned_replays() {
    let learned = || {
        let mut world = World::new(PolicyKind::Session, false);
        let told = world.learn();
        (told, world.pool.stats().evicted_pages)
    };
    assert_eq!(learned(), learned());
}
