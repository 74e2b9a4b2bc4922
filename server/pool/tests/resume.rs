//! Sessions that go on under another name. Owns: promises about requests that are not told apart by session, or each have a name of
//! their own. Must not know: how chances are learned.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::{CLIENT, finish_turn, one_slab};
use turnkv_pool::*;
use turnkv_proto::{BlockHash, SessionId, Shards};

/// Room for a conversation and two others.
const SLOTS: u64 = 40;
/// Pages of a conversation in its first turn, its turns, and pages of a request that nobody goes on from.
const BEGINS: u32 = 12;
const TURNS: u64 = 8;
const ONCE: u32 = 10;
const ROUNDS: u64 = 400;
const ROUND_MS: u64 = 10_000;

struct World {
    pool: Pool,
    ns: NamespaceIndex,
    now: Now,
    requests: u32,
}

impl World {
    fn new(policy: PolicyKind) -> World {
        let (pool, ns) = one_slab(SLOTS, 0, policy);
        World { pool, ns, now: 0, requests: 0 }
    }

    /// One whole turn; none: the request has a name of its own. Returns the pages that were there.
    fn turn(&mut self, session: Option<&str>, hashes: &[BlockHash]) -> u32 {
        self.requests += 1;
        let name = session.map_or_else(|| format!("request{}", self.requests), str::to_owned);
        let id = SessionId::parse(&name).unwrap();
        self.pool.maintain(self.now);
        self.pool.begin_turn(self.ns, &id, self.now).unwrap();
        let found = self.pool.lookup(self.ns, hashes, self.now).unwrap().present;
        let ask = ReloadAsk {
            ns: self.ns,
            hashes: &hashes[..found as usize],
            shards: Shards::one(0),
            client: CLIENT,
            session: Some(&id),
            hold: false,
        };
        if found > 0 {
            let lease = self.pool.begin_reload(ask, self.now).unwrap().lease.unwrap();
            self.pool.end_reload(lease, CLIENT, &[], self.now).unwrap();
        }
        finish_turn(&mut self.pool, self.ns, &id, hashes, 0, self.now);
        if self.requests.is_multiple_of(40) {
            self.pool.check().unwrap();
        }
        found
    }

    /// A conversation of some turns after the other, with requests between them that nobody goes on from. Returns the share
    /// of the conversations' pages that were there, of the last rounds.
    fn play(&mut self, named: bool) -> f64 {
        let (mut found, mut known) = (0, 0);
        for round in 0..ROUNDS {
            self.now += ROUND_MS;
            let (conversation, turn) = ((round / TURNS) as u32, (round % TURNS) as u32);
            let name = format!("conversation{conversation}");
            let there = self.turn(Some(name.as_str()).filter(|_| named), &chain(conversation, BEGINS + turn));
            if round > ROUNDS / 2 && turn > 0 {
                (found, known) = (found + there, known + BEGINS + turn - 1);
            }
            for at in 0..4 {
                self.turn(None, &chain(10_000 + 4 * round as u32 + at, ONCE));
            }
        }
        f64::from(found) / f64::from(known)
    }
}

fn chain(name: u32, pages: u32) -> Vec<BlockHash> {
    let page = |at: u32| {
        let mut bytes = [7; 32];
        bytes[..4].copy_from_slice(&name.to_le_bytes());
        bytes[4..8].copy_from_slice(&at.to_le_bytes());
        BlockHash(bytes)
    };
    (0..pages).map(page).collect()
}

#[test]
fn requests_with_names_of_their_own_are_found_to_be_one_session() {
    let least_recently_used = World::new(PolicyKind::Lru).play(false);
    let named = World::new(PolicyKind::Session).play(true);
    let unnamed = World::new(PolicyKind::Session).play(false);
    assert!(least_recently_used < 0.1, "others' pages make it go: {least_recently_used}");
    assert!(named > 0.7, "what comes back is learned: {named}");
    assert!(unnamed > named - 0.05, "it is learned without names: {unnamed}, {named} with");
}

#[test]
fn the_old_name_is_still_good() {
    let mut world = World::new(PolicyKind::Session);
    world.turn(Some("first"), &chain(1, 8));
    world.now += ROUND_MS;
    assert_eq!(world.turn(None, &chain(1, 12)), 8);
    world.now += ROUND_MS;
    let first = SessionId::parse("first").unwrap();
    let begun = world.pool.begin_turn(world.ns, &first, world.now).unwrap();
    assert_eq!((begun.turn, begun.pages), (2, 8));
    world.pool.check().unwrap();
}
