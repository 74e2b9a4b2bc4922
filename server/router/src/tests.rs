//! Routes follow the pages, then the load, within bounds.

use crate::limits::{ENGINES_MAX, SESSIONS_MAX};
use crate::{Candidate, Ranked, RouteAsk, RouteNamespace, Router};
use turnkv_proto::{BlockHash, SessionId};

const NS: RouteNamespace = RouteNamespace(0);

fn chain(seed: u32, pages: u32) -> Vec<BlockHash> {
    let page = |at: u32| {
        let mut bytes = [1; 32];
        bytes[..4].copy_from_slice(&seed.to_le_bytes());
        bytes[24..28].copy_from_slice(&at.to_le_bytes());
        BlockHash(bytes)
    };
    (0..pages).map(page).collect()
}

fn session(name: &str) -> SessionId {
    SessionId::parse(name).unwrap_or_else(|_| unreachable!("a short name"))
}

fn engine(name: &str) -> Candidate<'_> {
    Candidate { name, capacity_pages: 1000, used_pages: 0, running: 0, waiting: 0 }
}

fn ask<'a>(hashes: &'a [BlockHash], candidates: &'a [Candidate<'a>]) -> RouteAsk<'a> {
    RouteAsk { ns: NS, session: None, hashes, candidates }
}

fn best(router: &mut Router, hashes: &[BlockHash], candidates: &[Candidate<'_>], now: u64) -> Ranked {
    router
        .route(ask(hashes, candidates), now)
        .map(|ranked| ranked[0])
        .unwrap_or_else(|_| unreachable!("good input"))
}

#[test]
fn a_turn_goes_back_to_where_its_pages_are() {
    let mut router = Router::default();
    let all = [engine("a"), engine("b"), engine("c")];
    assert_eq!(router.ran(ask(&chain(1, 100), &[]), "b", 0), Ok(()));
    let longer = chain(1, 105);
    let found = best(&mut router, &longer, &all, 10);
    assert_eq!((found.candidate, found.held_pages), (1, 96), "to the eighth page");
    assert_eq!(
        best(&mut router, &chain(2, 100), &all, 10).candidate,
        0,
        "a stranger goes where least was done"
    );
}

#[test]
fn new_sessions_spread_by_size() {
    let mut router = Router::default();
    let all = [engine("a"), engine("b")];
    for (seed, pages) in [(1, 300), (2, 100), (3, 100), (4, 100)] {
        let list = chain(seed, pages);
        let chosen = all[best(&mut router, &list, &all, 0).candidate].name;
        assert_eq!(chosen, if seed == 1 { "a" } else { "b" }, "chain {seed}");
        assert_eq!(router.ran(ask(&list, &[]), chosen, 0), Ok(()));
    }
}

#[test]
fn pages_that_an_engine_must_have_evicted_do_not_count() {
    let mut router = Router::default();
    let all = [engine("a"), engine("b")];
    let first = chain(1, 400);
    best(&mut router, &first, &all, 0); // the engines say how much they hold
    assert_eq!(router.ran(ask(&first, &[]), "a", 0), Ok(()));
    assert_eq!(best(&mut router, &first, &all, 0).held_pages, 400);
    for seed in 2..5 {
        assert_eq!(router.ran(ask(&chain(seed, 400), &[]), "a", 0), Ok(()));
    }
    let found = best(&mut router, &first, &all, 0);
    assert_eq!((found.candidate, found.held_pages), (1, 0), "1200 new pages went through 1000");
}

#[test]
fn an_engine_that_is_full_with_what_runs_there_is_passed_over() {
    let mut router = Router::default();
    let list = chain(1, 100);
    assert_eq!(router.ran(ask(&list, &[]), "a", 0), Ok(()));
    let full = Candidate { used_pages: 1000, running: 8, ..engine("a") };
    let found = best(&mut router, &list, &[full, engine("b")], 0);
    assert_eq!(found.candidate, 1);
    let growing = Candidate { used_pages: 880, running: 0, ..engine("a") };
    assert_eq!(best(&mut router, &list, &[growing, engine("b")], 0).candidate, 0, "it fits");
    let growing = Candidate { running: 20, ..growing };
    assert_eq!(
        best(&mut router, &list, &[growing, engine("b")], 0).candidate,
        1,
        "room is kept for what runs"
    );
}

#[test]
fn home_breaks_ties_and_is_forgotten_with_the_session() {
    let mut router = Router::default();
    let id = session("s");
    let all = [engine("a"), engine("b")];
    let with = |hashes| RouteAsk { session: Some(&id), ..ask(hashes, &all) };
    assert_eq!(router.ran(with(&[]), "b", 0), Ok(()));
    let home = |router: &mut Router| router.route(with(&[]), 0).map(|ranked| ranked[0]);
    assert!(home(&mut router).is_ok_and(|found| found.is_home && found.candidate == 1));
    router.forget(NS, &id, 0);
    assert!(home(&mut router).is_ok_and(|found| !found.is_home && found.candidate == 0));
}

#[test]
fn old_work_is_forgotten() {
    let mut router = Router::default();
    let all = [engine("a"), engine("b")];
    assert_eq!(router.ran(ask(&chain(1, 1000), &[]), "a", 0), Ok(()));
    assert_eq!(router.ran(ask(&chain(2, 500), &[]), "b", 10 * crate::limits::HALF_LIFE_MS), Ok(()));
    let found = best(&mut router, &chain(3, 10), &all, 10 * crate::limits::HALF_LIFE_MS);
    assert_eq!(found.candidate, 0);
}

#[test]
fn tables_are_bounded_and_bad_names_are_refused() {
    let mut router = Router::default();
    for at in 0..3 * ENGINES_MAX {
        assert_eq!(router.ran(ask(&chain(1, 9), &[]), &format!("engine-{at}"), at as u64), Ok(()));
    }
    assert_eq!(router.engines(), ENGINES_MAX);
    for at in 0..2 * SESSIONS_MAX {
        let id = session(&format!("s{at}"));
        assert_eq!(router.ran(RouteAsk { session: Some(&id), ..ask(&[], &[]) }, "one", 0), Ok(()));
    }
    assert!(router.sessions() <= SESSIONS_MAX && router.sessions() >= SESSIONS_MAX / 2);
    assert!(router.ran(ask(&[], &[]), "", 0).is_err());
    assert!(router.ran(ask(&[], &[]), &"x".repeat(200), 0).is_err());
    assert!(router.route(ask(&[], &[]), 0).is_err());
}
