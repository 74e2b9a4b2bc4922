//! Routes follow the pages, then the load, within bounds.

use crate::limits::{CANDIDATES_MAX, ENGINES_MAX, HALF_LIFE_MS, HOLDERS_MAX, NAME_BYTES_MAX, SESSIONS_MAX};
use crate::{Candidate, Ranked, RouteAsk, RouteError, RouteNamespace, Router};
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
    assert_eq!(router.ran(ask(&chain(2, 500), &[]), "b", 10 * HALF_LIFE_MS), Ok(()));
    let found = best(&mut router, &chain(3, 10), &all, 10 * HALF_LIFE_MS);
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

fn names(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("engine-{at}")).collect()
}

#[test]
fn a_refused_route_changes_nothing() {
    let mut router = Router::default();
    let (id, list) = (session("s"), chain(1, 40));
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    for bad in ["", &long] {
        let all = [engine("a"), engine("b"), engine(bad)];
        assert_eq!(router.route(ask(&list, &all), 0), Err(RouteError::EngineName));
        let known = RouteAsk { session: Some(&id), ..ask(&list, &all) };
        assert_eq!(router.ran(known, bad, 0), Err(RouteError::EngineName));
    }
    assert_eq!((router.engines(), router.sessions(), router.marks()), (0, 0, 0));
    // Nor does it take the place of an engine that is known, or make one seem heard of.
    let names = names(ENGINES_MAX);
    let ids: Vec<SessionId> = names.iter().map(|name| session(name)).collect();
    for (at, (name, id)) in names.iter().zip(&ids).enumerate() {
        assert_eq!(router.ran(RouteAsk { session: Some(id), ..ask(&[], &[]) }, name, at as u64), Ok(()));
    }
    let all = [engine("engine-0"), engine("new"), engine(&long)];
    assert_eq!(router.route(ask(&list, &all), 9_999), Err(RouteError::EngineName));
    assert_eq!(router.ran(ask(&[], &[]), "another", 10_000), Ok(()));
    let homes = [router.home(NS, &ids[0]), router.home(NS, &ids[1])];
    assert_eq!(homes, [None, Some("engine-1")], "only the one not heard of for longest made room");
}

#[test]
fn names_and_candidates_are_taken_up_to_their_limits_and_not_beyond() {
    let mut router = Router::default();
    let list = chain(1, 9);
    let names = names(CANDIDATES_MAX + 1);
    let all: Vec<Candidate<'_>> = names.iter().map(|name| engine(name)).collect();
    assert_eq!(router.route(ask(&list, &all), 0), Err(RouteError::Candidates));
    assert_eq!(router.route(ask(&list, &[]), 0), Err(RouteError::Candidates));
    let most = &all[..CANDIDATES_MAX];
    assert_eq!(router.route(ask(&list, most), 0).map(|ranked| ranked.len()), Ok(CANDIDATES_MAX));
    assert_eq!(router.ran(ask(&list, &[]), &"x".repeat(NAME_BYTES_MAX), 0), Ok(()));
    assert_eq!(router.ran(ask(&list, &[]), &"x".repeat(NAME_BYTES_MAX + 1), 0), Err(RouteError::EngineName));
    // Bytes count, not letters.
    assert_eq!(
        router.ran(ask(&list, &[]), &"ä".repeat(NAME_BYTES_MAX / 2 + 1), 0),
        Err(RouteError::EngineName)
    );
}

#[test]
fn every_candidate_is_ranked_once_by_its_score_and_no_number_is_too_large() {
    let mut router = Router::default();
    let list = chain(1, 500);
    for (at, name) in ["a", "b", "c"].iter().enumerate() {
        assert_eq!(router.ran(ask(&chain(1, 100 * at as u32), &[]), name, 0), Ok(()));
    }
    let most = Candidate {
        name: "d",
        capacity_pages: u64::MAX,
        used_pages: u64::MAX,
        running: u32::MAX,
        waiting: u32::MAX,
    };
    let tiny = Candidate { name: "e", capacity_pages: 1, ..most };
    let all =
        [engine("a"), most, engine("b"), tiny, engine("c"), engine("a"), Candidate { name: "f", ..tiny }];
    for hashes in [&list[..], &list[..1], &[]] {
        for now in [0, HALF_LIFE_MS, u64::MAX, 5] {
            let ranked = router.route(ask(hashes, &all), now).unwrap();
            let mut places: Vec<usize> = ranked.iter().map(|one| one.candidate).collect();
            assert!(ranked.windows(2).all(|pair| pair[0].score >= pair[1].score), "{ranked:?}");
            assert!(
                ranked.iter().all(|one| one.score.is_finite() && one.overflow_pages <= hashes.len() as u64)
            );
            assert!(ranked.iter().all(|one| one.held_pages <= hashes.len() as u64));
            places.sort_unstable();
            assert_eq!(places, [0, 1, 2, 3, 4, 5, 6]);
        }
    }
}

#[test]
fn a_session_weighs_once_where_it_lives_however_often_it_ran() {
    let list = chain(1, 200);
    let (one, two) = (session("one"), session("two"));
    let ran = |router: &mut Router, id, name, hashes: &[BlockHash]| {
        assert_eq!(router.ran(RouteAsk { session: Some(id), ..ask(hashes, &[]) }, name, 0), Ok(()));
    };
    let fresh = chain(9, 10);
    let first = |router: &mut Router, names: [&str; 2]| {
        let all = names.map(engine);
        names[best(router, &fresh, &all, 0).candidate].to_owned()
    };
    let mut router = Router::default();
    (0..60).for_each(|_| ran(&mut router, &one, "a", &list));
    ran(&mut router, &two, "b", &chain(2, 200));
    // As much lives at either: whoever is named first is first.
    assert_eq!([first(&mut router, ["a", "b"]), first(&mut router, ["b", "a"])], ["a", "b"]);
    // It moves, and with it its weight.
    ran(&mut router, &one, "b", &list);
    assert_eq!([first(&mut router, ["a", "b"]), first(&mut router, ["b", "a"])], ["a", "a"]);
    assert_eq!(router.home(NS, &one), Some("b"));
    router.forget(NS, &one, 0);
    router.forget(NS, &one, 0);
    router.forget(NS, &two, 0);
    assert_eq!(
        [first(&mut router, ["a", "b"]), first(&mut router, ["b", "a"])],
        ["a", "b"],
        "nothing is left"
    );
    assert_eq!((router.home(NS, &one), router.sessions()), (None, 0));
}

#[test]
fn an_engine_that_was_forgotten_comes_back_with_nothing() {
    let mut router = Router::default();
    let (id, list) = (session("s"), chain(1, 64));
    let known = RouteAsk { session: Some(&id), ..ask(&list, &[]) };
    assert_eq!(router.ran(known, "old", 0), Ok(()));
    for (at, name) in names(ENGINES_MAX).iter().enumerate() {
        assert_eq!(router.ran(ask(&[], &[]), name, 1 + at as u64), Ok(()));
    }
    assert_eq!((router.engines(), router.home(NS, &id)), (ENGINES_MAX, None), "it went, and was its home");
    let all = [engine("old"), engine("engine-9")];
    let ranked = router.route(RouteAsk { session: Some(&id), ..ask(&list, &all) }, 9_000).unwrap();
    assert!(ranked.iter().all(|one| one.held_pages == 0 && !one.is_home), "{ranked:?}");
    // Who is told that the session is over takes nothing from whoever has the name now.
    router.forget(NS, &id, 9_001);
    assert_eq!(router.ran(known, "old", 9_002), Ok(()));
    assert_eq!(router.home(NS, &id), Some("old"));
}

#[test]
fn namespaces_have_pages_and_sessions_of_their_own() {
    let mut router = Router::default();
    let (id, list) = (session("s"), chain(1, 80));
    let there = RouteNamespace(1);
    let all = [engine("a"), engine("b")];
    let here = RouteAsk { session: Some(&id), ..ask(&list, &all) };
    assert_eq!(router.ran(here, "b", 0), Ok(()));
    let other = router.route(RouteAsk { ns: there, ..here }, 0).unwrap();
    assert!(other.iter().all(|one| one.held_pages == 0 && !one.is_home), "{other:?}");
    router.forget(there, &id, 0);
    let own = router.route(here, 0).unwrap();
    assert_eq!((own[0].candidate, own[0].held_pages, own[0].is_home), (1, 80, true));
}

#[test]
fn of_more_engines_than_a_page_remembers_those_that_ran_it_last_are_known_to_hold_it() {
    let mut router = Router::default();
    let list = chain(1, 33);
    let names = names(HOLDERS_MAX + 2);
    for name in &names {
        assert_eq!(router.ran(ask(&list, &[]), name, 0), Ok(()));
    }
    let all: Vec<Candidate<'_>> = names.iter().map(|name| engine(name)).collect();
    let mut holds: Vec<usize> = router
        .route(ask(&list, &all), 0)
        .unwrap()
        .iter()
        .filter(|one| one.held_pages == 33)
        .map(|one| one.candidate)
        .collect();
    holds.sort_unstable();
    assert_eq!(holds, (2..HOLDERS_MAX + 2).collect::<Vec<_>>());
}

#[test]
fn a_cache_holds_a_page_until_as_many_new_ones_came_as_it_has_room_for() {
    for (new, holds) in [(0, true), (39, true), (40, false), (41, false)] {
        let mut router = Router::default();
        let small = [Candidate { capacity_pages: 40, ..engine("a") }];
        let first = chain(1, 8);
        best(&mut router, &first, &small, 0);
        assert_eq!(router.ran(ask(&first, &[]), "a", 0), Ok(()));
        assert_eq!(router.ran(ask(&chain(2, new), &[]), "a", 0), Ok(()));
        assert_eq!(
            best(&mut router, &first, &small, 0).held_pages,
            if holds { 8 } else { 0 },
            "{new} new pages"
        );
        // What was there already is not new: to run it again pushes nothing out.
        assert_eq!(router.ran(ask(&chain(2, new), &[]), "a", 0), Ok(()));
        assert_eq!(
            best(&mut router, &first, &small, 0).held_pages,
            if holds { 8 } else { 0 },
            "{new} new pages"
        );
    }
}
