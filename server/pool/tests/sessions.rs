//! The verbs of sessions, each by itself. Owns: examples. Must not know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plain;

use plain::*;
use std::cmp::Reverse;
use std::collections::BTreeSet;
use turnkv_pool::*;
use turnkv_proto::SessionId;

/// One turn of a session, of pages that are here.
fn turn(pool: &mut Pool, ns: NamespaceIndex, id: &SessionId, end: EndTurn<'_>, now: Now) {
    pool.begin_turn(ns, id, now).unwrap();
    pool.end_turn(ns, id, end, now).unwrap();
}

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

#[test]
fn a_fork_has_its_list_although_its_source_makes_way_for_it() {
    let mut small = config(0);
    small.limits.sessions_max = 2;
    let (mut pool, ns) = pool_with(small);
    let (source, busy, fork) = (session("source"), session("busy"), session("fork"));
    store(&mut pool, ns, None, 0..4);
    let list = hashes(0..4);
    turn(&mut pool, ns, &source, EndTurn { priority: 3, ttl_ms: 77, ..end_turn(0, &list) }, 0);
    pool.begin_turn(ns, &busy, 1).unwrap();
    assert_eq!(pool.fork(ns, &source, &fork, 9, 2), Ok(4), "no more than there are");
    assert_eq!(pool.take_forgotten(), [(ns, source.clone())]);
    assert_eq!(pool.session_hashes(ns, &fork), Ok(list));
    let detail = pool.describe_session(ns, &fork, 2).unwrap();
    assert_eq!((detail.priority, detail.forgotten_in_ms, detail.info.turn), (3, 77, 0));
    assert_eq!(pool.fork(ns, &source, &fork, 0, 2), Err(PoolError::SessionUnknown));
    pool.check().unwrap();
}

#[test]
fn a_fork_onto_a_session_gives_it_that_list_and_what_only_it_had_goes_first() {
    let (mut pool, ns) = pool(false);
    let (source, other) = (session("source"), session("other"));
    store(&mut pool, ns, None, 0..4);
    store(&mut pool, ns, Some(1), 20..24);
    let both = [hashes(0..2), hashes(20..24)].concat();
    turn(&mut pool, ns, &source, end_turn(0, &hashes(0..4)), 0);
    turn(&mut pool, ns, &other, end_turn(0, &both), 1);
    assert_eq!(pool.fork(ns, &source, &other, 0, 2), Ok(4), "0 is all");
    assert_eq!(pool.fork(ns, &source, &other, 0, 3), Ok(4), "and once more");
    assert_eq!(pool.session_hashes(ns, &other), Ok(hashes(0..4)));
    store(&mut pool, ns, None, 50..60);
    assert_eq!((present(&mut pool, ns, 0..4), present(&mut pool, ns, 20..24)), (4, 2));
    pool.check().unwrap();
}

#[test]
fn a_session_is_remembered_to_the_end_of_its_time_and_whatever_it_does_begins_that_anew() {
    type Does = fn(&mut Pool, NamespaceIndex, &SessionId);
    let does: [(&str, Does); 5] = [
        ("begins a turn", |pool, ns, id| assert_eq!(pool.begin_turn(ns, id, 90).unwrap().turn, 2)),
        ("is cut", |pool, ns, id| assert_eq!(pool.supersede(ns, id, 9, 90), Ok(2))),
        ("reads", |pool, ns, id| {
            let list = hashes(0..2);
            drop(pool.begin_reload(ReloadAsk { session: Some(id), ..read(ns, &list) }, 90).unwrap());
        }),
        ("offers a page", |pool, ns, id| {
            let list = hashes(2..3);
            let offer = OffloadAsk { session: Some(id), ..ask(ns, Some(1), &list) };
            drop(pool.begin_offload(offer, 90).unwrap());
        }),
        ("ended elsewhere", |pool, ns, id| pool.count_turns(ns, id, 5, 90).unwrap()),
    ];
    for (what, does) in does {
        let (mut pool, ns) = pool(false);
        let id = session("s");
        store(&mut pool, ns, None, 0..2);
        turn(&mut pool, ns, &id, EndTurn { ttl_ms: 100, ..end_turn(0, &hashes(0..2)) }, 0);
        does(&mut pool, ns, &id);
        let known = |pool: &mut Pool, now| {
            while !pool.expire(now) {}
            pool.describe_session(ns, &id, now).is_ok()
        };
        assert!(known(&mut pool, 101) && known(&mut pool, 190), "{what} at 90");
        assert!(!known(&mut pool, 191), "{what} at 90");
        assert_eq!(pool.take_forgotten(), [(ns, id.clone())], "{what}");
        pool.check().unwrap();
    }
}

#[test]
fn what_is_asked_about_a_session_is_no_use_of_it() {
    let (mut pool, ns) = pool(false);
    let id = session("s");
    store(&mut pool, ns, None, 0..2);
    turn(&mut pool, ns, &id, EndTurn { ttl_ms: 100, ..end_turn(0, &hashes(0..2)) }, 0);
    for now in [10, 60, 100] {
        let detail = pool.describe_session(ns, &id, now).unwrap();
        assert_eq!((detail.info.idle_ms, detail.forgotten_in_ms), (now, 100 - now));
        assert_eq!(pool.session_record(ns, &id, now).unwrap().idle_ms, now);
        assert_eq!(pool.worth_of_session(ns, &id, now).unwrap().idle_ms, now);
        assert!(pool.has_of_session(ns, &id) && pool.list_sessions(None, 0, now).0.len() == 1);
    }
    pool.expire(101);
    assert_eq!((pool.stats().sessions, pool.has_of_session(ns, &id)), (0, false));
    assert_eq!(pool.worth_of_session(ns, &id, 101), None);
}

#[test]
fn an_end_that_comes_twice_or_late_says_the_same_and_one_for_the_last_time_is_final() {
    let (mut pool, ns) = pool(false);
    let id = session("s");
    store(&mut pool, ns, None, 0..6);
    let (four, six) = (hashes(0..4), hashes(0..6));
    turn(&mut pool, ns, &id, end_turn(0, &six), 0);
    let before = pool.session_record(ns, &id, 0);
    assert_eq!(pool.end_turn(ns, &id, end_turn(0, &six), 0), Ok(6), "twice");
    assert_eq!(pool.session_record(ns, &id, 0), before);
    // In parts, and the next turn begins before the last part: the end is over, and the turn runs.
    pool.begin_turn(ns, &id, 1).unwrap();
    let last = EndTurn { expected_return_ms: 50, last: true, ..end_turn(0, &four) };
    let mut ending = TurnEnd::new(ns, &id, last);
    assert_eq!(pool.end_turn_step(&mut ending, 1), Ok(true));
    assert_eq!(pool.begin_turn(ns, &id, 2).unwrap().turn, 3);
    while pool.end_turn_step(&mut ending, 2).unwrap() {}
    assert_eq!((ending.pages(), pool.stats().sessions_in_turn, pool.stats().sessions_expected), (4, 1, 0));
    // The session is closed in the middle of it: nothing is left to end.
    let mut ending = TurnEnd::new(ns, &id, EndTurn { priority: 5, ..end_turn(0, &four) });
    assert_eq!(pool.end_turn_step(&mut ending, 3), Ok(true));
    pool.close(ns, &id, 3).unwrap();
    while pool.end_turn_step(&mut ending, 3).unwrap() {}
    assert_eq!((pool.stats().sessions, pool.stats().protections), (0, 0));
    assert_eq!(pool.end_turn(ns, &id, end_turn(0, &four), 3), Err(PoolError::SessionUnknown));
    turn(&mut pool, ns, &id, EndTurn { last: true, priority: 5, ..end_turn(0, &four) }, 4);
    assert_eq!((pool.stats().sessions, pool.stats().protections), (0, 0), "no turn follows");
    assert!(pool.take_forgotten().is_empty(), "it was asked for");
    pool.check().unwrap();
}

#[test]
fn an_end_that_contradicts_itself_is_refused_and_the_turn_runs_on() {
    let mut small = config(0);
    small.limits.session_pages_max = 4;
    let (mut pool, ns) = pool_with(small);
    let id = session("s");
    store(&mut pool, ns, None, 0..4);
    pool.begin_turn(ns, &id, 0).unwrap();
    let (list, many) = (hashes(0..4), vec![hash(0); limits::HASHES_PER_CALL_MAX + 1]);
    let before = pool.stats();
    for end in [
        end_turn(0, &many),
        EndTurn { tail_tokens: 16, ..end_turn(0, &list) },
        EndTurn { tail_tokens: 1, ..end_turn(0, &[]) },
    ] {
        assert!(
            matches!(pool.end_turn(ns, &id, end, 0), Err(PoolError::Invalid(_))),
            "{:?}",
            end.tail_tokens
        );
    }
    for end in [end_turn(1, &list), end_turn(5, &[]), end_turn(u32::MAX, &list)] {
        let refused = pool.end_turn(ns, &id, end, 0);
        assert_eq!(refused, Err(PoolError::Limit("session_pages_max")), "{} kept", end.keep);
    }
    assert_eq!(pool.stats(), before);
    assert_eq!(pool.end_turn(ns, &id, EndTurn { tail_tokens: 15, ..end_turn(0, &list) }, 0), Ok(4));
    assert_eq!(pool.begin_turn(ns, &id, 0).unwrap().tail, Some((hash(3), 15)));
    pool.check().unwrap();
}

#[test]
fn sessions_at_rest_are_told_once_each_in_parts_and_none_that_is_busy_or_has_nothing() {
    let (mut pool, ns) = pool(true);
    store(&mut pool, ns, None, 0..8);
    let rests: BTreeSet<SessionId> = (1..=5).map(|at| session(&format!("rests-{at}"))).collect();
    for (at, id) in (1..).zip(&rests) {
        turn(&mut pool, ns, id, end_turn(0, &hashes(0..at)), 0);
    }
    turn(&mut pool, ns, &session("empty"), end_turn(0, &[]), 0);
    turn(&mut pool, ns, &session("busy"), end_turn(0, &hashes(0..3)), 0);
    pool.begin_turn(ns, &session("busy"), 0).unwrap();
    let mut walk = RestingWalk::default();
    for _ in 0..2 {
        // After its end a walk begins anew.
        let (mut all, mut parts) = (Vec::new(), 0);
        loop {
            let mut some = Vec::new();
            let done = pool.resting_some(&mut walk, |_| true, 2, &mut some, 7);
            assert!(some.len() <= 2);
            all.extend(some);
            parts += 1;
            if done {
                break;
            }
        }
        assert!(parts > 2, "{parts} parts");
        let named: BTreeSet<SessionId> = all.iter().map(|one| one.info.session.clone()).collect();
        assert_eq!((all.len(), named), (5, rests.clone()));
        for one in &all {
            assert_eq!((one.last, one.info.idle_ms), (hash(one.info.pages - 1), 7), "{one:?}");
        }
    }
    let mut wanted = Vec::new();
    assert!(pool.resting_some(&mut walk, |one| one.info.pages > 3, 9, &mut wanted, 7));
    assert_eq!(wanted.len(), 2);
}

#[test]
fn of_sessions_those_are_worth_least_to_others_that_are_important_awaited_or_used_just_now() {
    let (mut pool, ns) = pool(false);
    store(&mut pool, ns, None, 0..3);
    let list = hashes(0..3);
    let ends = [
        ("important", EndTurn { priority: 2, ..end_turn(0, &list) }, 0),
        ("awaited", EndTurn { expected_return_ms: 5_000, ..end_turn(0, &list) }, 0),
        ("awaited later", EndTurn { expected_return_ms: 9_000, ..end_turn(0, &list) }, 0),
        ("recent", end_turn(0, &list), 900),
        ("idle", end_turn(0, &list), 0),
    ];
    for (name, end, now) in ends {
        turn(&mut pool, ns, &session(&name.replace(' ', "-")), end, now);
    }
    let worth = |pool: &Pool, now| {
        let of = |name: &str| pool.worth_of_session(ns, &session(&name.replace(' ', "-")), now).unwrap();
        ends.map(|(name, ..)| of(name))
    };
    let now = worth(&pool, 1_000);
    assert!(now.is_sorted(), "{now:?}");
    assert_eq!((now[0].priority, now[1].returns_in_ms, now[3].idle_ms), (Reverse(2), 4_000, 100));
    let later = worth(&pool, 5_001);
    assert_eq!((later[1].returns_in_ms, later[2].returns_in_ms), (u64::MAX, 3_999), "it did not come");
}

#[test]
fn names_are_told_in_parts_and_each_once() {
    let (mut pool, ns) = pool(false);
    let all: BTreeSet<SessionId> =
        (0..=limits::NAMES_PER_CALL).map(|at| session(&format!("s{at}"))).collect();
    for id in &all {
        pool.count_turns(ns, id, 1, 0).unwrap();
    }
    let (first, next) = pool.session_names(0);
    let (rest, end) = pool.session_names(next.unwrap());
    assert_eq!((first.len(), rest.len(), end), (limits::NAMES_PER_CALL as usize, 1, None));
    assert_eq!(first.into_iter().chain(rest).map(|(_, id)| id).collect::<BTreeSet<_>>(), all);
    assert_eq!(pool.session_names(u32::MAX), (vec![], None), "beyond the end there are none");
    assert_eq!(pool.list_sessions(Some(ns), 7, 0).0.len(), 7);
    assert_eq!(pool.list_sessions(Some(ns), 7, 0).1, all.len() as u64);
}
