//! Every verb at its largest legal request: no call takes more steps than its bound, and those that are cut come to their end.
//! Those of sessions are in `steps_sessions`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plain;

use plain::counted::{Counted, PAGES};
use plain::{CLIENT, OTHER, desc, hashes};
use turnkv_pool::limits::{HASHES_PER_LOOK_MAX, LEASE_PAGES_MAX};
use turnkv_pool::*;

#[test]
fn what_leases_do_is_bounded_by_their_pages() {
    let mut all = Counted::new(1 << 17, 1, false, PolicyKind::Session);
    all.store_chain(PAGES);
    let list = all.list.clone();
    let plan = all.reload(&list, CLIENT);
    assert_eq!(plan.pages.len(), LEASE_PAGES_MAX as usize, "one lease has its bound");
    all.call("end of a reload", |pool| pool.end_reload(plan.lease.unwrap(), CLIENT, &[], 0)).unwrap();

    // All of it offered again, and more than there is room for in a lease.
    let more = hashes(PAGES..PAGES + 1);
    let both = [&list[1..], &more[..]].concat();
    let ask = all.ask(Some(list[0]), &both);
    let plan = all.offload("all present", &ask);
    assert!(matches!(plan.outcomes.last(), Some(Outcome::Granted(_))), "{:?}", plan.outcomes.last());
    all.call("abort", |pool| pool.abort_offload(plan.lease.unwrap(), CLIENT)).unwrap();
    let plan = {
        let wanted = hashes(200_000..200_000 + PAGES);
        let ask = all.ask(None, &wanted);
        all.offload("none present", &ask)
    };
    let granted = plan.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Granted(_))).count();
    assert_eq!(granted, LEASE_PAGES_MAX as usize);
    assert_eq!(plan.outcomes.last(), Some(&Outcome::LeaseLimit));
    all.calls("quarantine", |pool| pool.expire(1_000));
    all.calls("a client that is gone", |pool| pool.client_gone(CLIENT, 1_000));
    all.pool.check().unwrap();
}

#[test]
fn held_slots_are_bounded_by_their_lease() {
    let mut all = Counted::new(1 << 14, 1, false, PolicyKind::Lru);
    let ask = ReserveAsk { ns: all.ns, shard: 0, client: CLIENT, lease: None, pages: LEASE_PAGES_MAX };
    let mut reserved = all.call("reserve", |pool| pool.reserve(ask, 0)).unwrap();
    while reserved.short.is_none() && reserved.slots.len() < LEASE_PAGES_MAX as usize {
        let (next, lease) = (reserved.slots.len() as u32, reserved.lease);
        let ask = ReserveAsk { lease, pages: LEASE_PAGES_MAX - next, ..ask };
        let more = all.call("reserve", |pool| pool.reserve_more(ask, next, 0)).unwrap().unwrap();
        assert_eq!(more.first, next, "one run of positions");
        reserved.slots.extend(more.slots);
    }
    let lease = reserved.lease.unwrap();
    let many = vec![lease; 4096];
    assert_eq!(all.call("renew", |pool| pool.renew(CLIENT, &many, 0)), Renewed::default());
    let list = hashes(0..LEASE_PAGES_MAX);
    let filled: Vec<(u32, u64)> = (0..LEASE_PAGES_MAX).map(|at| (at, u64::from(at))).collect();
    let ask = CommitReservedAsk { pages: all.ask(None, &list), lease, filled: &filled, siblings: false };
    let done = all.call("commit", |pool| pool.commit_reserved(ask, 0)).unwrap();
    assert_eq!(done.kept.len(), list.len());
    let every: Vec<u32> = (0..LEASE_PAGES_MAX).collect();
    let some: Vec<u32> = (0..LEASE_PAGES_MAX - 1).collect();
    let twice = [&every[..], &every[..]].concat();
    let refused = all.call("release", |pool| pool.release(lease, CLIENT, &[], &twice, 0));
    assert!(matches!(refused, Err(PoolError::Invalid(_))), "more corrupt positions than the lease has");
    all.call("release", |pool| pool.release(lease, CLIENT, &some, &some, 0)).unwrap();
    all.call("release", |pool| pool.release(lease, CLIENT, &every[every.len() - 1..], &[], 0)).unwrap();
    all.calls("what is corrupt goes", |pool| pool.expire(0));
    assert_eq!((all.pool.stats().pages, all.pool.stats().leases), (0, 0));
    all.pool.check().unwrap();
}

/// As after a restart: what is kept of a pin is enough to have it again, bit by bit.
fn bring_pin_back(all: &mut Counted) {
    let (ns, list) = (all.ns, all.list.clone());
    let pin = list[PAGES as usize - 1];
    let record = all.call("record", |pool| pool.pin_record(ns, &pin, 1)).unwrap();
    assert!(record.hashes.len() < LIST_CHUNK_PAGES as usize && record.ends_in_ms == 100);
    assert_eq!(all.pool.pin_names(0), (vec![(ns, pin)], None));
    assert!(all.call("unpin", |pool| pool.unpin(ns, &pin)).unwrap());
    all.calls("what was pinned is let go", |pool| pool.expire(1));
    assert_eq!(all.pool.pin_record(ns, &pin, 1), None);
    let mut start = None;
    for chunk in list[..PAGES as usize].chunks(LIST_CHUNK_PAGES as usize) {
        start = all.pool.list_start(ns, start, chunk);
    }
    let start = start.unwrap();
    let mut pinning = all.call("pin again", |pool| pool.begin_pin_again(ns, pin, start, 100, 1)).unwrap();
    all.calls("pin again", |pool| pool.pin_again(&mut pinning));
    assert_eq!(all.call("pin again", |pool| pool.end_pin(pinning, 1)).pages, PAGES);
    assert_eq!(all.pool.pin_record(ns, &pin, 1), Some(record));
}

#[test]
fn whole_prefixes_are_looked_up_pinned_and_dropped_bit_by_bit() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        let mut all = Counted::new(1 << 17, 1, true, policy);
        all.store_chain(PAGES);
        all.write_all();
        let (ns, list) = (all.ns, all.list.clone());
        for part in list.chunks(HASHES_PER_LOOK_MAX) {
            let found = all.call("lookup", |pool| pool.lookup(ns, part, 0)).unwrap();
            assert_eq!(found.present as usize, part.len());
        }
        for round in 0..2 {
            let mut pinning = all.call("pin", |pool| pool.begin_pin(ns, &list, 100, round)).unwrap();
            all.calls("pin", |pool| pool.pin_some(&mut pinning, &list));
            let pinned = all.call("pin", |pool| pool.end_pin(pinning, round));
            assert_eq!(pinned.pages, PAGES, "round {round}");
        }
        bring_pin_back(&mut all);
        assert!(all.call("unpin", |pool| pool.unpin(ns, &list[PAGES as usize - 1])).unwrap());
        all.calls("what was pinned is let go", |pool| pool.expire(0));
        assert_eq!(all.pool.stats().protected_pages, 0);
        all.pool.check().unwrap();

        let mut sweep = Sweep::default();
        all.calls("demote", |pool| pool.demote_some(None, &mut sweep));
        assert_eq!(sweep.pages(), u64::from(PAGES));
        all.calls("touch", |pool| {
            pool.touch_pages(ns, &list[..HASHES_PER_LOOK_MAX], 0);
            true
        });
        let mut from = 0;
        let mut reads = vec![];
        all.calls("promote", |pool| {
            reads.extend(pool.begin_promote(ns, &list, 0, &mut from, 0).unwrap());
            reads.len() >= 4096 || from == list.len()
        });
        // The first page's read fails: all that hangs on it goes with it, in the calls that follow.
        let first = reads[0];
        all.call("a read that failed", |pool| {
            pool.promote_failed(first.page, 0, MissCause::Checksum, 0);
        });
        all.calls("what hangs on it", |pool| pool.expire(0));
        assert_eq!(all.pool.stats().pages, 0);
        for read in &reads[1..] {
            assert!(!all.call("a read that is late", |pool| pool.promoted(read.page, 0, 0)));
        }
        all.pool.check().unwrap();
    }
}

#[test]
fn walks_through_the_index_are_cut() {
    let mut all = Counted::new(1 << 17, 1, true, PolicyKind::Session);
    all.store_chain(PAGES);
    let mut sweep = Sweep::default();
    all.calls("admit", |pool| pool.admit_some(&mut sweep, 0));
    all.write_all();
    let mut sweep = Sweep::default();
    let calls = all.calls("evict", |pool| pool.evict_some(None, &mut sweep));
    assert_eq!((sweep.pages(), all.pool.stats().pages), (u64::from(PAGES), 0));
    assert!(calls > 10, "{calls} calls");

    all.store_chain(PAGES);
    all.write_all();
    let mut sweep = Sweep::default();
    all.calls("demote", |pool| pool.demote_some(None, &mut sweep));
    let list = all.list.clone();
    all.reload(&list[..100], OTHER);
    let mut sweep = all.call("the device is lost", |pool| pool.nvme_lost());
    all.calls("what was on it", |pool| pool.lose_some(&mut sweep));
    all.calls("leases end", |pool| pool.client_gone(OTHER, 0));
    assert!(all.pool.stats().pages <= 100);
    all.pool.check().unwrap();
}

#[test]
fn time_ends_thousands_of_leases_bit_by_bit() {
    let mut all = Counted::new(1 << 17, 1, false, PolicyKind::Lru);
    all.store_chain(LEASE_PAGES_MAX);
    let list = hashes(0..64);
    for client in [CLIENT, OTHER] {
        for _ in 0..500 {
            all.reload(&list, client);
        }
    }
    let calls = all.calls("a client that is gone", |pool| pool.client_gone(CLIENT, 0));
    assert!(calls > 5, "{calls} calls");
    assert_eq!(all.pool.stats().leases, 500);
    let calls = all.calls("read leases end by time", |pool| pool.expire(1_000_000));
    assert!(calls > 5, "{calls} calls");
    assert_eq!((all.pool.stats().leases, all.pool.stats().dram.leased_bytes), (0, 0));
    all.pool.check().unwrap();
}

#[test]
fn making_room_is_bounded_however_little_can_go() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        // Everything is dirty: nothing can go, and the search for a victim must not look at all of it at once.
        let mut all = Counted::new(1 << 14, 1, true, policy);
        for at in 0..15 {
            all.store(None, at * 10_000..at * 10_000 + LEASE_PAGES_MAX);
        }
        let other = all.call("open", |pool| pool.open_namespace(desc(2, "b", 8192, 1))).unwrap();
        for ns in [all.ns, other] {
            for round in 0..10 {
                let wanted = hashes(900_000 + round * 2_000..900_000 + round * 2_000 + 2_000);
                let ask = OffloadAsk { ns, ..all.ask(None, &wanted) };
                let plan = all.offload("little can go", &ask);
                if let Some(lease) = plan.lease {
                    all.call("abort", |pool| pool.abort_offload(lease, CLIENT)).unwrap();
                }
                all.call("maintain", |pool| pool.maintain(u64::from(round)));
            }
        }
        all.write_all();
        for round in 0..200 {
            all.call("maintain", |pool| pool.maintain(1_000 + round));
        }
        all.pool.check().unwrap();
    }
}

#[test]
fn pages_read_often_do_not_make_the_search_for_a_victim_long() {
    for policy in [PolicyKind::S3Fifo, PolicyKind::TinyLfu, PolicyKind::Arc] {
        let mut all = Counted::new(1 << 14, 1, false, policy);
        for at in 0..16 {
            all.store(None, at * 10_000..at * 10_000 + LEASE_PAGES_MAX);
        }
        for _ in 0..4 {
            for at in 0..16 {
                let list = hashes(at * 10_000..at * 10_000 + LEASE_PAGES_MAX);
                let plan = all.reload(&list, CLIENT);
                all.call("end of a reload", |pool| pool.end_reload(plan.lease.unwrap(), CLIENT, &[], 0))
                    .unwrap();
            }
        }
        for round in 0..64 {
            all.store(None, 900_000 + round..900_001 + round);
        }
        all.pool.check().unwrap();
    }
}
