//! The verbs of sessions, each by itself. Owns: examples. Must not know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plain;

use plain::*;
use turnkv_pool::*;

#[test]
fn a_turn_extends_the_session_and_replaces_its_tail() {
    let (mut pool, ns) = pool(true);
    let id = session("talk");
    assert_eq!(pool.end_turn(ns, &id, end_turn(0, &[]), 0), Err(PoolError::SessionUnknown));
    assert_eq!(pool.begin_turn(ns, &id, 0).unwrap().turn, 1);
    let list = hashes(0..4);
    let offload = OffloadAsk { session: Some(&id), tail_tokens: 5, ..ask(ns, None, &list) };
    let plan = pool.begin_offload(offload, 0).unwrap();
    pool.commit_offload(plan.lease.unwrap(), CLIENT, &[(0, 0), (1, 0), (2, 0), (3, 0)], 0).unwrap();
    let end = EndTurn { tail_tokens: 5, expected_return_ms: 40, ..end_turn(0, &list) };
    assert_eq!(pool.end_turn(ns, &id, end, 0), Ok(4));
    write_all(&mut pool);
    assert_eq!(pool.stats().sessions_expected, 1);
    let turn = pool.begin_turn(ns, &id, 50).unwrap();
    assert_eq!((turn.turn, turn.pages, turn.dram, turn.tail), (2, 4, 4, Some((hash(3), 5))));
    let more = hashes(10..12);
    let offload = OffloadAsk { session: Some(&id), ..ask(ns, Some(2), &more) };
    let plan = pool.begin_offload(offload, 50).unwrap();
    pool.commit_offload(plan.lease.unwrap(), CLIENT, &[(0, 0), (1, 0)], 50).unwrap();
    assert_eq!(pool.end_turn(ns, &id, end_turn(3, &more), 60), Ok(5));
    assert_eq!(pool.session_hashes(ns, &id).unwrap(), [hashes(0..3), hashes(10..12)].concat());
    // The replaced tail is the first to go.
    write_all(&mut pool);
    store(&mut pool, ns, None, 50..61);
    assert_eq!(pool.lookup(ns, &[hash(3)], 60), Ok(Found { present: 1, dram: 0 }));
    assert_eq!(
        pool.lookup(ns, &[hashes(0..3), hashes(10..12)].concat(), 60),
        Ok(Found { present: 5, dram: 5 })
    );
    pool.check().unwrap();
}

#[test]
fn a_turns_end_makes_the_whole_prefix_as_recent_as_its_tail() {
    let (mut pool, ns) = pool(false);
    let long = session("long");
    store(&mut pool, ns, None, 0..4);
    pool.begin_turn(ns, &long, 0).unwrap();
    // The prefix was used before the new pages were committed; the turn's end is when all of them were.
    store(&mut pool, ns, Some(3), 4..6);
    assert_eq!(pool.end_turn(ns, &long, end_turn(0, &hashes(0..6)), 0), Ok(6));
    store(&mut pool, ns, None, 100..105);
    store(&mut pool, ns, None, 200..211);
    assert_eq!(present(&mut pool, ns, 0..6), 0, "the session used longest ago goes, all of it");
    assert_eq!(present(&mut pool, ns, 100..105), 5);
}

#[test]
fn forks_share_and_superseded_branches_go_first() {
    let (mut pool, ns) = pool(false);
    let (trunk, fork) = (session("trunk"), session("fork"));
    store(&mut pool, ns, None, 0..6);
    store(&mut pool, ns, None, 50..58);
    pool.begin_turn(ns, &trunk, 0).unwrap();
    pool.end_turn(ns, &trunk, end_turn(0, &hashes(0..6)), 0).unwrap();
    assert_eq!(pool.fork(ns, &trunk, &fork, 4, 0), Ok(4));
    assert!(matches!(pool.fork(ns, &trunk, &trunk, 0, 0), Err(PoolError::Invalid(_))));
    assert_eq!(pool.fork(ns, &session("none"), &fork, 0, 0), Err(PoolError::SessionUnknown));
    let lease = pool.begin_reload(read(ns, &hashes(0..6)), 0).unwrap().lease.unwrap();
    pool.end_reload(lease, CLIENT, &[], 0).unwrap();
    assert_eq!(pool.supersede(ns, &trunk, 2, 0), Ok(2));
    store(&mut pool, ns, None, 70..74);
    assert_eq!(present(&mut pool, ns, 0..6), 4, "the fork's pages stay, the branch went first");
    assert_eq!(present(&mut pool, ns, 50..58), 8);
    pool.close(ns, &fork, 0).unwrap();
    assert_eq!(pool.close(ns, &fork, 0), Err(PoolError::SessionUnknown));
    assert_eq!(pool.list_sessions(None, 0, 0).1, 1);
    pool.check().unwrap();
}

#[test]
fn sessions_are_bounded_and_expire() {
    let mut small = config(0);
    (small.limits.sessions_max, small.limits.session_pages_max, small.limits.session_ttl_ms) = (2, 4, 100);
    let (mut pool, ns) = pool_with(small);
    let (one, two, three) = (session("1"), session("2"), session("3"));
    pool.begin_turn(ns, &one, 0).unwrap();
    pool.begin_turn(ns, &two, 0).unwrap();
    assert_eq!(pool.begin_turn(ns, &three, 0), Err(PoolError::Limit("sessions_max")), "both are in a turn");
    assert_eq!(
        pool.end_turn(ns, &one, end_turn(0, &hashes(0..5)), 0),
        Err(PoolError::Limit("session_pages_max"))
    );
    pool.end_turn(ns, &one, end_turn(0, &[]), 5).unwrap();
    pool.begin_turn(ns, &three, 10).unwrap();
    assert_eq!(pool.take_forgotten(), [(ns, one)]);
    let list = hashes(0..5);
    let long = OffloadAsk { session: Some(&three), ..ask(ns, None, &list) };
    assert_eq!(pool.begin_offload(long, 10), Err(PoolError::Limit("session_pages_max")));
    pool.expire(101);
    assert_eq!(pool.take_forgotten(), [(ns, two)]);
    assert_eq!(pool.stats().sessions, 1);
    pool.check().unwrap();
}

#[test]
fn a_session_comes_back_from_its_record() {
    let (mut pool, ns) = pool(true);
    let id = session("s");
    store(&mut pool, ns, None, 0..3);
    pool.begin_turn(ns, &id, 0).unwrap();
    let list = hashes(0..3);
    pool.end_turn(ns, &id, EndTurn { tail_tokens: 7, ..end_turn(0, &list) }, 0).unwrap();
    let mut record = pool.session_record(ns, &id, 30).unwrap();
    assert_eq!((record.turn, record.tail_tokens, record.idle_ms, record.hashes.len()), (1, 7, 30, 3));
    pool.close(ns, &id, 30).unwrap();
    record.hashes.push(hash(99));
    let start = pool.list_start(ns, None, &record.hashes);
    assert_eq!(pool.restore_session(&record, start, 1000), Ok(3));
    assert_eq!(pool.list_sessions(Some(ns), 1, 1000).0[0].idle_ms, 30);
    // An owner that knows more than the pool remembers is believed as far as the pages themselves agree.
    pool.supersede(ns, &id, 0, 1000).unwrap();
    assert_eq!(pool.end_turn(ns, &id, end_turn(2, &list[2..]), 1000), Ok(3));
    assert_eq!(pool.session_hashes(ns, &id).unwrap(), list);
    pool.check().unwrap();
}
