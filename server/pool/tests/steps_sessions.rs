//! The longest session, and many: no call takes more steps than its bound, and what is cut comes to its end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plain;

use plain::counted::{Counted, PAGES, SESSION_PAGES};
use plain::{desc, end_turn, hash, hashes, present, session};
use turnkv_pool::limits::LEASE_PAGES_MAX;
use turnkv_pool::*;
use turnkv_proto::SessionId;

#[test]
fn what_is_asked_of_the_longest_session_is_answered_bit_by_bit() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        let (mut all, id) = Counted::long_session(policy, true, 1);
        let ns = all.ns;
        let mut describing = Describing::default();
        let calls = all.calls("describe", |pool| pool.describe_some(ns, &id, &mut describing).unwrap());
        let detail = all.call("describe", |pool| pool.described(ns, &id, &describing, 1)).unwrap();
        assert_eq!((detail.info.pages, detail.dram_pages), (SESSION_PAGES, SESSION_PAGES));
        assert_eq!((detail.bytes, calls > 1), (u64::from(SESSION_PAGES) * 4096, true));
        let mut naming = Naming::default();
        assert!(all.calls("name", |pool| pool.name_some(ns, &id, &mut naming).unwrap()) > 1);
        assert!(naming.hashes() == hashes(0..SESSION_PAGES));
        let mut expecting = all.call("expect", |pool| pool.start_expecting(ns, &id, 60_000, 1)).unwrap();
        assert!(all.calls("expect", |pool| pool.expect_some(&mut expecting, 1).unwrap()) > 10);
        assert_eq!(expecting.dram_pages(), SESSION_PAGES);
        let begun = all.begin_turn(&id);
        assert_eq!((begun.pages, begun.dram), (SESSION_PAGES, SESSION_PAGES));
        let mut record = None;
        all.call("record", |pool| record = pool.session_record(ns, &id, 1));
        assert_eq!(record.unwrap().hashes.len() as u32, SESSION_PAGES % LIST_CHUNK_PAGES);
        all.pool.check().unwrap();
    }
}

#[test]
fn what_the_longest_session_leaves_goes_first_bit_by_bit() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        let (mut all, id) = Counted::long_session(policy, false, 1);
        let (ns, fork, half) = (all.ns, session("fork"), SESSION_PAGES / 2);
        assert!(all.pool.stats().protected_pages > 0);
        assert_eq!(all.call("fork", |pool| pool.fork(ns, &id, &fork, half, 1)), Ok(half));
        assert_eq!(all.call("supersede", |pool| pool.supersede(ns, &fork, 1, 1)), Ok(1));
        assert_eq!(all.call("fork", |pool| pool.fork(ns, &id, &fork, half, 1)), Ok(half));
        all.tick(1);
        // The end of a turn that leaves the second half of the list.
        all.begin_turn(&id);
        assert_eq!(all.end_turn("end that leaves a branch", &id, end_turn(half, &[])), half);
        all.tick(1);
        assert_eq!(all.pool.stats().left_branches, 0);
        let wanted = hashes(900_000..901_000);
        let ask = all.ask(None, &wanted);
        all.pool.begin_offload(ask, 2).unwrap();
        let more = hashes(910_000..910_000 + 4 * 1024);
        for part in more.chunks(1024) {
            let ask = all.ask(None, part);
            all.offload("in place of what was left", &ask);
        }
        let left = present(&mut all.pool, ns, 0..PAGES);
        assert_eq!(left, PAGES, "the tail goes before the head");
        for id in [&fork, &id] {
            all.call("close", |pool| pool.close(ns, id, 3)).unwrap();
        }
        all.tick(3);
        assert_eq!((all.pool.stats().protected_pages, all.pool.stats().left_branches), (0, 0));
    }
}

#[test]
fn a_commit_that_waits_for_the_longest_session_is_begun_bit_by_bit() {
    let mut all = Counted::new(u64::from(SESSION_PAGES), 1, true, PolicyKind::Session);
    all.store_chain(SESSION_PAGES);
    let ns = all.ns;
    let key = |pool: &Pool, at: u32| pool.page_key(ns, &hash(at)).unwrap();
    let keys: Vec<PageKey> =
        (SESSION_PAGES - LEASE_PAGES_MAX..SESSION_PAGES).map(|at| key(&all.pool, at)).collect();
    for round in 0..3 {
        let (mut durable, mut missing) = (all.pool.begin_durable(&keys), vec![]);
        all.calls("durable", |pool| {
            let (some, done) = pool.hurry_some(&mut durable);
            missing.extend(some);
            done
        });
        assert_eq!(missing.len() as u32, SESSION_PAGES, "round {round}");
        assert!(missing[0] == key(&all.pool, 0) && missing[PAGES as usize] == key(&all.pool, PAGES));
    }
    assert!(all.pool.stats().waiting_writes <= 2 * u64::from(SESSION_PAGES), "none waits in one lane twice");
    all.write_all();
    all.pool.check().unwrap();
    assert!(all.pool.make_durable(&keys).is_empty());
}

#[test]
fn stale_writes_are_sifted_bit_by_bit() {
    let mut all = Counted::new(u64::from(PAGES), 1, true, PolicyKind::Lru);
    for _ in 0..4 {
        // Dirty pages that are dropped leave their places in the queue.
        all.store_chain(PAGES);
        let mut sweep = Sweep::default();
        all.calls("evict", |pool| pool.evict_some(None, &mut sweep));
        for now in 0..64 {
            all.call("maintain", |pool| pool.maintain(now));
        }
    }
    let waiting = all.pool.stats().waiting_writes;
    assert!(waiting < 2 * u64::from(PAGES), "{waiting} stale places");
    all.write_all();
    assert_eq!(all.pool.stats().waiting_writes, 0);
}

#[test]
fn the_last_page_written_may_make_a_long_path_durable() {
    let mut all = Counted::new(u64::from(PAGES), 1, true, PolicyKind::Lru);
    all.store_chain(PAGES);
    let mut writes = vec![];
    while writes.len() < PAGES as usize {
        writes.extend(all.call("writes", |pool| pool.next_writes(u64::MAX, 0)));
    }
    for write in writes.iter().rev() {
        let place = NvmePlace { segment: 0, generation: 0, block: write.page.index };
        assert!(all.call("written, tails first", |pool| pool.written(write.page, 0, place, 0)));
    }
    let last = writes[PAGES as usize - 1].page;
    for round in 0..2 {
        let mut durable = all.pool.begin_durable(&[last]);
        let calls = all.calls("durable", |pool| pool.hurry_some(&mut durable).1);
        assert_eq!(calls == 1, round == 1, "what was found to be durable once is known to be: {calls} calls");
    }
    all.pool.check().unwrap();
}

#[test]
fn the_prefetch_of_the_longest_session_keeps_its_place() {
    let (mut all, id) = Counted::long_session(PolicyKind::Session, true, 0);
    let ns = all.ns;
    all.write_all();
    let mut sweep = Sweep::default();
    all.calls("demote", |pool| pool.demote_some(None, &mut sweep));
    all.pool.expect_return(ns, &id, 1, 1).unwrap();
    let (mut reads, mut calls) = (0, 0);
    while reads < SESSION_PAGES as usize {
        let (mut prefetching, mut some) = (Prefetching::new(64 << 20), vec![]);
        calls += all.calls("prefetch", |pool| pool.prefetch_some(&mut prefetching, &mut some, 2));
        assert!(!some.is_empty(), "{reads} pages are read");
        for read in &some {
            assert!(all.call("landed", |pool| pool.promoted(read.page, read.shard, 2)));
        }
        reads += some.len();
    }
    assert!(calls < 1_000, "{calls} calls");
    assert_eq!(all.begin_turn(&id).dram, SESSION_PAGES);
}

#[test]
fn the_longest_path_leaves_nvme_bit_by_bit() {
    let (mut all, _) = Counted::long_session(PolicyKind::Lru, true, 0);
    all.write_all();
    let mut sweep = Sweep::default();
    all.calls("demote", |pool| pool.demote_some(None, &mut sweep));
    let first = all.pool.page_key(all.ns, &hash(0)).unwrap();
    assert!(all.calls("what leaves NVMe", |pool| pool.drop_page(first)) > 100);
    assert_eq!(all.pool.stats().pages, 0);
    all.pool.check().unwrap();
}

#[test]
fn ten_thousand_sessions_are_listed_bit_by_bit() {
    let mut all = Counted::new(1024, 1, false, PolicyKind::Lru);
    for at in 0..20_000 {
        all.pool.begin_turn(all.ns, &session(&format!("s{at}")), 0).unwrap();
    }
    let mut listing = Listing::default();
    assert!(all.calls("list", |pool| pool.list_some(|_| true, 0, &mut listing, 0)) > 4);
    let mut names: Vec<SessionId> = listing.sessions().into_iter().map(|info| info.session).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), limits::SESSION_LIST_MAX);
    assert_eq!(all.pool.session_count(None), 20_000);
}

#[test]
fn the_namespaces_of_tenants_are_found_bit_by_bit() {
    let mut all = Counted::new(1024, 1, false, PolicyKind::Lru);
    for at in 2..=limits::STEPS_PER_SLICE * 3 {
        let tenant = ["b", "c", "d"][at as usize % 3];
        let mut one = desc(2, tenant, 4096, 1);
        one.id.0[..8].copy_from_slice(&at.to_be_bytes());
        let ns = all.pool.open_namespace(one).unwrap();
        all.pool.begin_turn(ns, &session("s"), 0).unwrap();
    }
    let tenants = ["a", "b", "none"].map(str::to_owned).into();
    let mut finding = TenantNamespaces::default();
    assert!(all.calls("find", |pool| pool.find_of_tenants(&tenants, &mut finding)) > 2);
    let tenant = |ns: &NamespaceIndex| all.pool.namespace_desc(*ns).unwrap().tenant.clone();
    assert!(finding.found.iter().all(|ns| ["a", "b"].contains(&tenant(ns).as_str())));
    let (found, many) = (finding.found.len() as u64, limits::STEPS_PER_SLICE);
    assert_eq!(
        (found, finding.sessions),
        (many + 1, many),
        "all of b's, and the one of a's without a session"
    );
}
