//! Leases in time: those whose slots are being filled, read or mapped, up to the moment at which each ends, and what
//! comes late or twice. Must not know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plain;

use plain::*;
use turnkv_pool::*;
use turnkv_proto::Shards;

/// When a lease ends: to be filled, and (with the grace) to be read.
const FILL_MS: u64 = 100;
const READ_MS: u64 = 150;

fn reserve(lease: Option<LeaseId>, ns: NamespaceIndex, pages: u32) -> ReserveAsk {
    ReserveAsk { ns, shard: 0, client: CLIENT, lease, pages }
}

#[test]
fn a_writer_that_goes_on_is_not_late() {
    let (mut pool, ns) = pool(true);
    let plan = pool.begin_offload(ask(ns, None, &hashes(0..16)), 0).unwrap();
    let lease = plan.lease.unwrap();
    for now in [60, 155, 250] {
        assert!(pool.keep_filling(CLIENT, lease, now) && !pool.keep_filling(OTHER, lease, now));
        pool.expire(now + 90);
        assert_eq!(pool.stats().leases_quarantined, 0);
    }
    pool.check().unwrap();
    pool.expire(351);
    assert_eq!(pool.stats().leases_quarantined, 1, "it stopped");
    assert!(!pool.keep_filling(CLIENT, lease, 352), "a quarantine is not taken back");
    pool.abort_offload(lease, CLIENT).unwrap();
    assert_eq!((pool.stats().leases, pool.stats().dram.used_bytes), (0, 0));
    pool.check().unwrap();
}

#[test]
fn a_commit_counts_up_to_its_deadline_and_not_a_moment_longer() {
    for (late, counts) in [(FILL_MS, true), (FILL_MS + 1, false)] {
        for expires in [false, true] {
            let (mut pool, ns) = pool(true);
            let lease = pool.begin_offload(ask(ns, None, &hashes(0..2)), 0).unwrap().lease.unwrap();
            if expires {
                pool.expire(late);
            }
            let done = pool.commit_offload(lease, CLIENT, &[(0, 1), (1, 1)], late);
            assert_eq!(done.is_ok(), counts, "{late} ms");
            assert_eq!(present(&mut pool, ns, 0..2), if counts { 2 } else { 0 });
            let stats = pool.stats();
            assert_eq!((stats.leases, stats.quarantined_bytes), (0, 0), "who commits has finished writing");
            assert_eq!(stats.expired_leases, u64::from(!counts), "a late one is counted once");
            assert_eq!(stats.dram.used_bytes, if counts { 16 << 10 } else { 0 });
            pool.check().unwrap();
        }
    }
}

#[test]
fn a_read_may_end_up_to_its_grace_and_what_it_found_to_be_wrong_goes() {
    for (late, counts) in [(READ_MS, true), (READ_MS + 1, false)] {
        let (mut pool, ns) = pool(false);
        store(&mut pool, ns, None, 0..3);
        let lease = pool.begin_reload(read(ns, &hashes(0..3)), 0).unwrap().lease.unwrap();
        let ended = pool.end_reload(lease, CLIENT, &[1], late);
        assert_eq!(ended, if counts { Ok(1) } else { Err(PoolError::LeaseUnknown) }, "{late} ms");
        // A reader that came too late may have read another page's bytes: its word says nothing of this one.
        assert_eq!(present(&mut pool, ns, 0..3), if counts { 1 } else { 3 });
        assert_eq!((pool.stats().leases, pool.stats().dram.leased_bytes), (0, 0));
        assert_eq!(pool.stats().expired_leases, u64::from(!counts));
        assert_eq!(pool.end_reload(lease, CLIENT, &[1], late), Err(PoolError::LeaseUnknown), "twice");
        pool.check().unwrap();
    }
}

#[test]
fn a_reservation_that_nobody_renews_ends_by_time_and_a_held_one_never() {
    let (mut pool, ns) = pool(false);
    let first = pool.reserve(reserve(None, ns, 3), 0).unwrap();
    let kept = pool.reserve(reserve(None, ns, 2), 0).unwrap().lease.unwrap();
    assert_eq!((first.first, first.slots.len(), first.short), (0, 3, None));
    assert_eq!(pool.renew(CLIENT, &[kept], READ_MS), Renewed::default(), "in the last moment");
    pool.expire(READ_MS + 1);
    let lost = first.lease.unwrap();
    assert_eq!(pool.renew(CLIENT, &[lost, kept, LeaseId(0)], READ_MS + 1).gone, [lost, LeaseId(0)]);
    assert_eq!(pool.reserve(reserve(Some(lost), ns, 1), READ_MS + 1), Err(PoolError::LeaseUnknown));
    assert_eq!(pool.stats().dram.leased_bytes, 16 << 10);
    for later in [1 << 20, 1 << 40] {
        pool.expire(later);
        let stats = pool.stats();
        assert_eq!((stats.leases_quarantined, stats.quarantined_bytes), (1, 16 << 10), "it is not heard of");
        assert_eq!(pool.renew(CLIENT, &[kept], later), Renewed::default());
        assert_eq!(pool.stats().leases_quarantined, 0, "and is again");
        pool.check().unwrap();
    }
    assert_eq!(pool.stats().expired_leases, 3, "one ended, and one was silent twice");
    assert!(pool.client_gone(CLIENT, 1 << 41));
    assert_eq!((pool.stats().leases, pool.stats().dram.used_bytes), (0, 0));
    pool.check().unwrap();
}

#[test]
fn a_lease_grows_to_its_bound_and_positions_never_come_back() {
    let mut small = config(0);
    small.limits.lease_pages_max = 4;
    let (mut pool, ns) = pool_with(small);
    let begun = pool.reserve(reserve(None, ns, 3), 0).unwrap();
    let lease = begun.lease.unwrap();
    let more = pool.reserve(reserve(Some(lease), ns, 2), 0).unwrap();
    assert_eq!((more.first, more.slots.len(), more.short), (3, 1, Some(Outcome::LeaseLimit)));
    pool.release(lease, CLIENT, &[0, 3], &[], 0).unwrap();
    let again = pool.reserve(reserve(Some(lease), ns, 2), 0).unwrap();
    assert_eq!((again.first, again.slots.len(), again.short), (4, 2, None));
    for positions in [&[0][..], &[1, 1], &[2, 1], &[6], &[1, 2, 4, 5, 6]] {
        let refused = pool.release(lease, CLIENT, positions, &[], 0);
        assert!(matches!(refused, Err(PoolError::Invalid(_))), "{positions:?}");
        let refused = pool.release(lease, CLIENT, &[], positions, 0);
        assert!(matches!(refused, Err(PoolError::Invalid(_))), "{positions:?} are wrong bytes");
    }
    // Another call grew it meanwhile: whoever goes on with the older one hears so.
    assert_eq!(pool.reserve_more(reserve(Some(lease), ns, 1), 4, 0), Ok(None));
    let other = pool.open_namespace(desc(2, "a", 8 << 10, 1)).unwrap();
    assert_eq!(pool.reserve_more(reserve(Some(lease), other, 1), 6, 0), Ok(None));
    assert!(matches!(pool.reserve(reserve(Some(lease), other, 1), 0), Err(PoolError::Invalid(_))));
    assert!(matches!(pool.reserve(reserve(Some(lease), ns, 0), 0), Err(PoolError::Invalid(_))));
    let foreign = ReserveAsk { client: OTHER, ..reserve(Some(lease), ns, 1) };
    assert_eq!(pool.reserve(foreign, 0), Err(PoolError::LeaseUnknown));
    assert!(matches!(
        pool.reserve(ReserveAsk { shard: 1, ..reserve(None, ns, 1) }, 0),
        Err(PoolError::Invalid(_))
    ));
    pool.release(lease, CLIENT, &[], &[], 0).unwrap();
    assert_eq!(pool.release(lease, CLIENT, &[], &[], 0), Err(PoolError::LeaseUnknown), "twice");
    assert_eq!((pool.stats().leases, pool.stats().dram.used_bytes), (0, 0));
    pool.check().unwrap();
}

#[test]
fn what_is_committed_in_place_stays_mapped_and_what_was_there_already_keeps_its_own_bytes() {
    let (mut pool, ns) = pool(true);
    store(&mut pool, ns, None, 0..2);
    let lease = pool.reserve(reserve(None, ns, 4), 0).unwrap().lease.unwrap();
    let list = hashes(1..4);
    let pages = ask(ns, Some(0), &list);
    let commit = |filled| CommitReservedAsk { pages, lease, filled, siblings: false };
    for filled in [&[(0, 7), (1, 7)][..], &[(0, 7), (0, 7), (1, 7)], &[(0, 7), (1, 7), (9, 7)]] {
        let refused = pool.commit_reserved(commit(filled), 0);
        assert!(matches!(refused, Err(PoolError::Invalid(_))), "{filled:?}");
    }
    let done = pool.commit_reserved(commit(&[(3, 7), (1, 8), (0, 9)]), 0).unwrap();
    assert_eq!(done.outcomes, [Outcome::Present, Outcome::Stored, Outcome::Stored]);
    assert_eq!((done.kept.len(), done.shown, present(&mut pool, ns, 0..4)), (2, 2, 4));
    let plan = pool.begin_reload(ReloadAsk { client: OTHER, ..read(ns, &hashes(0..4)) }, 0).unwrap();
    let sums = |step: &ReloadStep| match step {
        ReloadStep::Ready { checksum, .. } => *checksum,
        other => panic!("{other:?}"),
    };
    assert_eq!(plan.pages.iter().map(sums).collect::<Vec<_>>(), [0, 1, 8, 9], "the first to come counts");
    // The slot of the page that was there is still to be written: it takes another page.
    let next = hashes(4..5);
    let pages = ask(ns, Some(3), &next);
    let commit = CommitReservedAsk { pages, lease, filled: &[(3, 5)], siblings: false };
    assert_eq!(pool.commit_reserved(commit, 0).unwrap().outcomes, [Outcome::Stored]);
    // A page whose mapped bytes were found to be wrong goes with all that hangs on it, and is told of once.
    pool.release(lease, CLIENT, &[], &[1], 0).unwrap();
    assert_eq!(present(&mut pool, ns, 0..5), 2);
    pool.end_reload(plan.lease.unwrap(), OTHER, &[], 0).unwrap();
    assert_eq!((pool.stats().leases, pool.stats().dram.used_bytes), (0, 16 << 10));
    pool.check().unwrap();
}

#[test]
fn a_lease_is_of_one_kind_and_no_verb_of_another_kind_ends_it() {
    let (mut pool, ns) = pool(true);
    store(&mut pool, ns, None, 0..2);
    let write = pool.begin_offload(ask(ns, Some(1), &hashes(2..4)), 0).unwrap().lease.unwrap();
    let held = pool.begin_reload(read(ns, &hashes(0..2)), 0).unwrap().lease.unwrap();
    assert_eq!(pool.renew(CLIENT, &[held, held], 0), Renewed::default());
    assert_eq!(pool.end_reload(held, CLIENT, &[], 0), Err(PoolError::LeaseUnknown), "it is mapped");
    assert_eq!(pool.end_reload(write, CLIENT, &[], 0), Err(PoolError::LeaseUnknown));
    assert_eq!(pool.release(write, CLIENT, &[], &[], 0), Err(PoolError::LeaseUnknown));
    assert_eq!(pool.renew(CLIENT, &[write], 0).gone, [write]);
    assert_eq!(pool.reserve(reserve(Some(write), ns, 1), 0), Err(PoolError::LeaseUnknown));
    assert_eq!(pool.abort_offload(held, CLIENT), Err(PoolError::LeaseUnknown));
    assert_eq!(pool.commit_offload(held, CLIENT, &[], 0), Err(PoolError::LeaseUnknown));
    assert!(!pool.keep_filling(CLIENT, held, 0) && !pool.keep_filling(CLIENT, LeaseId(u64::MAX), 0));
    let stats = pool.stats();
    assert_eq!((stats.leases, stats.dram.leased_bytes), (2, 32 << 10), "both are as they were");
    pool.abort_offload(write, CLIENT).unwrap();
    assert_eq!(pool.abort_offload(write, CLIENT), Err(PoolError::LeaseUnknown), "twice");
    pool.release(held, CLIENT, &[], &[], 0).unwrap();
    assert_eq!((pool.stats().leases, present(&mut pool, ns, 0..4)), (0, 2));
    pool.check().unwrap();
}

#[test]
fn a_client_that_is_gone_leaves_nothing_whatever_it_held_and_others_keep_theirs() {
    let (mut pool, _) = pool(true);
    let ns = pool.open_namespace(desc(2, "a", 8 << 10, 2)).unwrap();
    [CLIENT, OTHER].iter().for_each(|client| pool.introduce_client(*client, UserId(client.0)));
    let (list, both) = (hashes(0..2), Shards::new(0, 2).unwrap());
    let whole = OffloadAsk { shards: both, ..ask(ns, None, &list) };
    let lease = pool.begin_offload(whole, 0).unwrap().lease.unwrap();
    pool.commit_offload(lease, CLIENT, &[(0, 1), (1, 1), (2, 1), (3, 1)], 0).unwrap();
    for client in [CLIENT, OTHER] {
        let page = hashes(10 + client.0 as u32..11 + client.0 as u32);
        pool.begin_offload(OffloadAsk { client, ..ask(ns, None, &page) }, 0).unwrap();
        let held = pool.begin_reload(ReloadAsk { client, shards: both, ..read(ns, &list) }, 0).unwrap();
        pool.renew(client, &[held.lease.unwrap()], 0);
        pool.begin_reload(ReloadAsk { client, ..read(ns, &list) }, 0).unwrap();
        pool.reserve(ReserveAsk { client, ..reserve(None, ns, 1) }, 0).unwrap();
    }
    assert_eq!(pool.stats().leases, 8);
    pool.expire(FILL_MS + 1); // what they fill is in quarantine
    assert!(pool.client_gone(CLIENT, FILL_MS + 1));
    assert_eq!((pool.stats().leases, pool.stats().leases_quarantined), (4, 1));
    assert!(!pool.is_present(CLIENT) && pool.is_present(OTHER));
    assert!(pool.client_gone(CLIENT, FILL_MS + 1), "twice");
    assert_eq!((pool.stats().leases, present(&mut pool, ns, 0..2)), (4, 2));
    pool.check().unwrap();
    assert!(pool.client_gone(OTHER, FILL_MS + 1));
    let stats = pool.stats();
    assert_eq!((stats.leases, stats.lasting_bytes, stats.dram.leased_bytes, stats.entries), (0, 0, 0, 2));
    pool.check().unwrap();
}
