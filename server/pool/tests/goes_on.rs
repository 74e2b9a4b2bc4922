//! Sessions that go on here after a turn that ended in another pool. Owns: promises about their turns and their lists. Must not know:
//! how pages came.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::{CLIENT, hashes, one_slab, store};
use turnkv_pool::*;
use turnkv_proto::SessionId;

const SLOTS: u64 = 64;

struct World {
    pool: Pool,
    ns: NamespaceIndex,
    id: SessionId,
}

impl World {
    fn new() -> World {
        let (mut pool, ns) = one_slab(SLOTS, 0, PolicyKind::Lru);
        pool.introduce_client(CLIENT, UserId(0));
        World { pool, ns, id: SessionId::parse("talk").unwrap() }
    }

    fn start(&self, pages: u32) -> Option<ListStart> {
        self.pool.list_start(self.ns, None, &hashes(0..pages))
    }

    fn goes_on(&mut self, turns: u32, pages: u32) {
        let start = self.start(pages);
        self.pool
            .continue_session(
                self.ns,
                &self.id,
                &FromElsewhere { turns, start, ..FromElsewhere::default() },
                0,
            )
            .unwrap();
        self.pool.check().unwrap();
    }

    fn grows(&mut self, from: u32, to: u32) {
        let (from, to) = (self.start(from), self.start(to).unwrap());
        self.pool.extend_list(self.ns, &self.id, from, to, 0);
        self.pool.check().unwrap();
    }

    fn begin(&mut self) -> (u32, u32) {
        let begun = self.pool.begin_turn(self.ns, &self.id, 0).unwrap();
        (begun.turn, begun.pages)
    }

    fn pages(&self) -> u32 {
        self.pool.session_record(self.ns, &self.id, 0).unwrap().hashes.len() as u32
    }
}

#[test]
fn a_session_goes_on_with_its_turns_and_what_is_here_of_its_list() {
    let mut world = World::new();
    store(&mut world.pool, world.ns, None, 0..10);
    world.goes_on(4, 20);
    assert_eq!(world.begin(), (5, 10));
    world.pool.check().unwrap();
}

#[test]
fn a_list_grows_as_its_pages_come_unless_it_is_another_one_by_then() {
    let mut world = World::new();
    world.goes_on(1, 0);
    assert_eq!(world.begin(), (2, 0));
    store(&mut world.pool, world.ns, None, 0..4);
    world.grows(0, 4);
    assert_eq!(world.pages(), 4);
    store(&mut world.pool, world.ns, Some(3), 4..9);
    world.grows(4, 9);
    assert_eq!(world.pages(), 9);
    // Its owner has cut it meanwhile: what comes of the rest is not its any more.
    world.pool.supersede(world.ns, &world.id, 2, 0).unwrap();
    world.grows(4, 9);
    assert_eq!(world.pages(), 2);
}

#[test]
fn a_turn_that_runs_keeps_what_it_has_added_and_one_that_begins_takes_the_list_of_the_last() {
    let mut world = World::new();
    store(&mut world.pool, world.ns, None, 0..6);
    world.goes_on(3, 6);
    assert_eq!(world.begin(), (4, 6));
    // Asked for again, as by a caller that lost the answer.
    world.goes_on(3, 2);
    assert_eq!((world.begin(), world.pages()), ((5, 6), 6));
    let (keep, hashes) = (6, &[][..]);
    let end =
        EndTurn { keep, hashes, tail_tokens: 0, expected_return_ms: 0, ttl_ms: 0, priority: 0, last: false };
    world.pool.end_turn(world.ns, &world.id, end, 0).unwrap();
    // Elsewhere it went back to its first pages.
    world.goes_on(9, 2);
    assert_eq!(world.begin(), (10, 2));
}

#[test]
fn turns_that_ended_elsewhere_count_and_never_backwards() {
    let mut world = World::new();
    world.pool.count_turns(world.ns, &world.id, 7, 0).unwrap();
    assert_eq!(world.begin(), (8, 0));
    world.pool.count_turns(world.ns, &world.id, 3, 0).unwrap();
    assert_eq!(world.begin(), (9, 0));
}

#[test]
fn a_list_from_before_the_last_turn_is_not_believed_and_its_pages_stay() {
    let mut world = World::new();
    let stored = hashes(0..6);
    store(&mut world.pool, world.ns, None, 0..6);
    world.goes_on(3, 6);
    assert_eq!(world.begin(), (4, 6));
    // Its owner knows of no other turn.
    world.pool.count_turns(world.ns, &world.id, 4, 0).unwrap();
    assert_eq!(world.pages(), 6);
    // It went on elsewhere, from whichever page, and that is out of reach.
    world.pool.count_turns(world.ns, &world.id, 9, 0).unwrap();
    assert_eq!(world.begin(), (10, 0));
    assert_eq!(world.pool.lookup(world.ns, &stored, 0).unwrap().present, 6);
    world.pool.check().unwrap();
}

#[test]
fn what_a_session_teaches_does_not_depend_on_where_its_next_turn_runs() {
    let taught = |elsewhere: bool| {
        let (mut pool, ns) = one_slab(SLOTS, 0, PolicyKind::Session);
        pool.introduce_client(CLIENT, UserId(0));
        let id = SessionId::parse("talk").unwrap();
        store(&mut pool, ns, None, 0..10);
        pool.begin_turn(ns, &id, 0).unwrap();
        let (keep, hashes_of) = (0, hashes(0..10));
        let end = EndTurn {
            keep,
            hashes: &hashes_of,
            tail_tokens: 0,
            expected_return_ms: 0,
            ttl_ms: 0,
            priority: 0,
            last: false,
        };
        pool.end_turn(ns, &id, end, 0).unwrap();
        if elsewhere {
            assert_eq!(pool.begin_elsewhere(ns, &id, 5_000), Ok(5_000));
            pool.end_elsewhere(ns, &id, 9_000).unwrap();
            let left = pool.session_record(ns, &id, 9_000).unwrap();
            assert!(left.hashes.is_empty() && pool.lookup(ns, &hashes(0..10), 9_000).unwrap().present == 10);
        } else {
            pool.begin_turn(ns, &id, 5_000).unwrap();
        }
        (0..100).for_each(|at| pool.maintain(9_000 + at * 1_000));
        pool.check().unwrap();
        let learned = pool.learned(Some(ns)).unwrap();
        pool.close(ns, &id, 200_000).unwrap();
        (learned, pool.learned(Some(ns)).unwrap())
    };
    let (here, there) = (taught(false), taught(true));
    assert!(there.0 == here.0, "one that went on elsewhere is one that did not come back");
    assert!(there.1 == there.0, "nobody waits here for it any more");
}

#[test]
fn a_session_in_its_turn_here_does_not_begin_another_one_elsewhere() {
    let mut world = World::new();
    store(&mut world.pool, world.ns, None, 0..4);
    assert_eq!(world.pool.begin_elsewhere(world.ns, &world.id, 0), Err(PoolError::SessionUnknown));
    world.begin();
    assert_eq!(world.pool.begin_elsewhere(world.ns, &world.id, 700), Ok(0));
}

#[test]
fn a_turn_that_began_on_a_list_from_before_turns_elsewhere_goes_on_with_theirs() {
    let mut world = World::new();
    store(&mut world.pool, world.ns, None, 0..4);
    world.goes_on(2, 4);
    assert_eq!(world.begin(), (3, 4));
    world.goes_on(2, 2);
    assert_eq!(world.pages(), 4, "its turn here has come further than what is named");
    // Three turns ended elsewhere meanwhile, of which the last one has other pages behind the second.
    world.goes_on(5, 2);
    assert_eq!(world.pages(), 2);
    assert_eq!(world.begin(), (6, 2));
    world.pool.check().unwrap();
}

#[test]
fn pages_that_come_for_a_turn_go_after_those_of_others_while_it_runs() {
    let (mut pool, ns) = one_slab(SLOTS, 0, PolicyKind::Session);
    pool.introduce_client(CLIENT, UserId(0));
    let id = SessionId::parse("talk").unwrap();
    let from =
        FromElsewhere { turns: 3, pages: 20, waited_ms: 4_000, begins: true, ..FromElsewhere::default() };
    pool.continue_session(ns, &id, &from, 0).unwrap();
    pool.begin_turn(ns, &id, 0).unwrap();
    let mut end = None;
    for part in [0..8_u32, 8..20] {
        store(&mut pool, ns, part.start.checked_sub(1), part.clone());
        let to = pool.list_start(ns, end, &hashes(part)).unwrap();
        pool.extend_list(ns, &id, end, to, 0);
        end = Some(to);
        pool.check().unwrap();
    }
    // Others come while the turn runs, long after what was used just now counts for that.
    let other = |at: u32| 1_000 + at * 10..1_010 + at * 10;
    for at in 0..12 {
        pool.maintain(10_000 + u64::from(at) * 5_000);
        store(&mut pool, ns, None, other(at));
        pool.check().unwrap();
    }
    assert_eq!(pool.lookup(ns, &hashes(0..20), 70_000).unwrap().present, 20);
    assert_eq!(pool.lookup(ns, &hashes(other(0)), 70_000).unwrap().present, 0);
}
