//! Who is taken for whose next turn.

use crate::{Admit, EndTurn, Limits, NamespaceDesc, NamespaceIndex, PolicyKind, Pool, PoolConfig};
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

/// Pages of the session that ended.
const PAGES: u8 = 8;

fn pool() -> (Pool, NamespaceIndex) {
    let config = PoolConfig {
        slab_bytes: 64 << 10,
        slab_count: 1,
        nvme_bytes: 0,
        nvme_admit: Admit::All,
        nvme_bytes_per_day: 0,
        free_slots_percent: 0,
        limits: Limits::default(),
        policy: PolicyKind::Session,
    };
    let mut pool = Pool::new(config).expect("a small pool");
    let (id, tenant) = (NamespaceId([1; 32]), String::new());
    let desc = NamespaceDesc { id, tenant, shard_bytes: 4096, page_tokens: 16, shards: 1 };
    let ns = pool.open_namespace(desc).expect("a namespace");
    (pool, ns)
}

fn chain(pages: u8) -> Vec<BlockHash> {
    (1..=pages).map(|page| BlockHash([page; 32])).collect()
}

fn name(text: &str) -> SessionId {
    SessionId::parse(text).expect("a name")
}

fn turn(pool: &mut Pool, ns: NamespaceIndex, priority: u32) {
    let hashes = chain(PAGES);
    let end = EndTurn {
        keep: 0,
        hashes: &hashes,
        tail_tokens: 0,
        expected_return_ms: 0,
        ttl_ms: 0,
        priority,
        last: false,
    };
    pool.begin_turn(ns, &name("first"), 0).expect("begun");
    pool.end_turn(ns, &name("first"), end, 0).expect("ended");
}

/// Whether a newcomer whose first turn has so many of the pages is taken for the next turn of the session.
fn is_taken(pool: &mut Pool, ns: NamespaceIndex, pages: u8) -> bool {
    pool.begin_turn(ns, &name("newcomer"), 0).expect("begun");
    let at = pool.sessions.find(ns, &name("newcomer")).expect("it was begun");
    pool.sessions.continue_another(&mut pool.store, at, &chain(pages));
    let taken = !pool.sessions[at].may_continue;
    pool.close(ns, &name("newcomer"), 0).expect("closed");
    pool.check().expect("all adds up");
    taken
}

#[test]
fn whoever_has_the_last_page_or_all_but_that_goes_on() {
    for (pages, taken) in [(PAGES - 2, false), (PAGES - 1, true), (PAGES, true), (PAGES + 4, true)] {
        let (mut pool, ns) = pool();
        turn(&mut pool, ns, 0);
        assert_eq!(is_taken(&mut pool, ns, pages), taken, "{pages} of {PAGES}");
    }
}

#[test]
fn a_session_has_one_next_turn() {
    let (mut pool, ns) = pool();
    turn(&mut pool, ns, 0);
    assert!(is_taken(&mut pool, ns, PAGES + 1));
    assert!(!is_taken(&mut pool, ns, PAGES + 1));
}

#[test]
fn a_session_that_came_back_or_has_a_priority_or_runs_is_not_taken_over() {
    let (mut came_back, ns) = pool();
    turn(&mut came_back, ns, 0);
    turn(&mut came_back, ns, 0);
    assert!(!is_taken(&mut came_back, ns, PAGES + 1));
    let (mut wanted, ns) = pool();
    turn(&mut wanted, ns, 1);
    assert!(!is_taken(&mut wanted, ns, PAGES + 1));
    let (mut running, ns) = pool();
    turn(&mut running, ns, 0);
    running.begin_turn(ns, &name("first"), 0).expect("begun");
    assert!(!is_taken(&mut running, ns, PAGES + 1));
}
