//! One call moves several shards of its pages. Owns: what writers and readers of different widths see of one page. Must not know:
//! the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plain;

use plain::*;
use turnkv_pool::limits::{HASHES_PER_CALL_MAX, LEASE_PAGES_MAX, STEPS_PER_CALL_MAX, UNFINISHED_MS_MAX};
use turnkv_pool::*;
use turnkv_proto::{BlockHash, Shards};

/// Shards of a page here.
const WHOLE: u16 = 4;

fn some(first: u32, count: u32) -> Shards {
    Shards::new(first, count).unwrap()
}

fn open(pool: &mut Pool) -> NamespaceIndex {
    pool.open_namespace(desc(2, "a", PAGE, WHOLE)).unwrap()
}

/// 32 slots, so 8 pages.
fn sharded(nvme: bool) -> (Pool, NamespaceIndex) {
    let (mut pool, _) = pool(nvme);
    let ns = open(&mut pool);
    (pool, ns)
}

fn begin(pool: &mut Pool, ns: NamespaceIndex, hashes: &[BlockHash], shards: Shards) -> OffloadPlan {
    let plan = pool.begin_offload(OffloadAsk { shards, ..ask(ns, None, hashes) }, 0).unwrap();
    pool.check().unwrap();
    plan
}

fn granted(plan: &OffloadPlan) -> Vec<u32> {
    let granted = |(_, outcome): &(u32, &Outcome)| matches!(outcome, Outcome::Granted(_));
    (0..).zip(&plan.outcomes).filter(granted).map(|(at, _)| at).collect()
}

/// The checksum of a shard of a page of `hashes(0..)`.
fn sum(page: usize, shard: u16) -> u64 {
    1000 + page as u64 * 10 + u64::from(shard)
}

fn commit(pool: &mut Pool, plan: &OffloadPlan, shards: Shards) -> Committed {
    let filled = |at: u32| (at, sum(shards.page(at as usize), shards.shard(at as usize)));
    let filled: Vec<(u32, u64)> = granted(plan).into_iter().map(filled).collect();
    let done = pool.commit_offload(plan.lease.unwrap(), CLIENT, &filled, 0).unwrap();
    pool.check().unwrap();
    done
}

fn reload(pool: &mut Pool, ns: NamespaceIndex, hashes: &[BlockHash], shards: Shards) -> ReloadPlan {
    let plan = pool.begin_reload(ReloadAsk { shards, ..read(ns, hashes) }, 0).unwrap();
    pool.check().unwrap();
    plan
}

/// The checksums that a reload tells of, position by position, up to its end.
fn sums(plan: &ReloadPlan) -> Vec<u64> {
    let sum = |step: &ReloadStep| match step {
        ReloadStep::Ready { checksum, .. } | ReloadStep::Join { checksum, .. } => Some(*checksum),
        ReloadStep::Promote(promotion) => Some(promotion.checksum),
        ReloadStep::NoSlot | ReloadStep::Miss(_) => None,
    };
    plan.pages.iter().filter_map(sum).collect()
}

#[test]
fn what_two_ranks_wrote_one_reader_or_four_read() {
    let (mut pool, ns) = sharded(true);
    let list = hashes(0..3);
    for first in [2, 0] {
        assert_eq!(present(&mut pool, ns, 0..3), 0);
        let shards = some(first, 2);
        let plan = begin(&mut pool, ns, &list, shards);
        assert_eq!(granted(&plan), [0, 1, 2, 3, 4, 5]);
        let done = commit(&mut pool, &plan, shards);
        assert_eq!((done.kept.len(), done.dropped.len(), done.freed), (3, 0, 0), "a page is kept once");
    }
    assert_eq!(present(&mut pool, ns, 0..3), 3);
    let all: Vec<u64> = (0..3).flat_map(|page| (0..WHOLE).map(move |shard| sum(page, shard))).collect();
    let wide = reload(&mut pool, ns, &list, some(0, 4));
    assert_eq!(sums(&wide), all);
    for shard in 0..WHOLE {
        let one: Vec<u64> = (0..3).map(|page| sum(page, shard)).collect();
        assert_eq!(sums(&reload(&mut pool, ns, &list, Shards::one(shard))), one);
    }
    assert_eq!(sums(&reload(&mut pool, ns, &list, some(1, 2)))[..2], all[1..3], "any neighbours");
    let again = begin(&mut pool, ns, &list, some(0, 4));
    assert_eq!((again.lease, again.outcomes), (None, vec![Outcome::Present; 12]));
    assert_eq!(pool.next_writes(u64::MAX, 0).len(), 12, "each shard once");
}

#[test]
fn what_one_wrote_whole_two_ranks_read_after_nvme_had_it_alone() {
    let (mut pool, ns) = sharded(true);
    let (list, all) = (hashes(0..2), some(0, 4));
    let plan = begin(&mut pool, ns, &list, all);
    commit(&mut pool, &plan, all);
    write_all(&mut pool);
    assert_eq!(pool.demote_all(None), 2);
    for first in [0, 2] {
        let plan = reload(&mut pool, ns, &list, some(first, 2));
        assert!(plan.pages.iter().all(|step| matches!(step, ReloadStep::Promote(_))), "{plan:?}");
        let first = first as u16;
        assert_eq!(sums(&plan), [sum(0, first), sum(0, first + 1), sum(1, first), sum(1, first + 1)]);
        for step in &plan.pages {
            let ReloadStep::Promote(promotion) = step else { panic!("{step:?}") };
            assert!(pool.promoted(promotion.page, promotion.shard, 0));
        }
        pool.check().unwrap();
    }
}

#[test]
fn a_page_of_which_a_rank_died_is_not_there_until_another_completes_it() {
    let (mut pool, ns) = sharded(true);
    let list = hashes(0..2);
    let plan = begin(&mut pool, ns, &list, some(0, 2));
    commit(&mut pool, &plan, some(0, 2));
    let dying = OffloadAsk { shards: some(2, 2), client: OTHER, ..ask(ns, None, &list) };
    assert_eq!(granted(&pool.begin_offload(dying, 0).unwrap()).len(), 4);
    let wide = begin(&mut pool, ns, &list, some(0, 4));
    assert_eq!((wide.lease, wide.outcomes), (None, vec![Outcome::InFlight; 8]), "all of a page, or none");
    pool.client_gone(OTHER, 0);
    for shards in [some(0, 4), some(0, 2), Shards::one(3)] {
        let plan = reload(&mut pool, ns, &list, shards);
        assert_eq!((plan.lease, plan.pages), (None, vec![ReloadStep::Miss(MissCause::Incomplete)]));
    }
    assert_eq!(present(&mut pool, ns, 0..2), 0);
    let wide = begin(&mut pool, ns, &list, some(0, 4));
    assert_eq!(granted(&wide), [2, 3, 6, 7], "what is there is not moved again");
    assert_eq!(commit(&mut pool, &wide, some(0, 4)).kept.len(), 2);
    assert_eq!(present(&mut pool, ns, 0..2), 2);
}

#[test]
fn a_page_declined_in_its_middle_is_declined_whole() {
    let (mut pool, ns) = sharded(true);
    let list = hashes(0..12);
    let held = begin(&mut pool, ns, &list[..2], some(0, 3));
    commit(&mut pool, &held, some(0, 3)); // 6 of 32 slots
    let shards = some(0, 3);
    let plan = begin(&mut pool, ns, &list, shards);
    assert_eq!(granted(&plan), (6..30).collect::<Vec<u32>>(), "26 slots are free: room for 8 pages, not 9");
    assert_eq!(plan.outcomes[..6], [Outcome::Present; 6]);
    assert_eq!(plan.outcomes[30..], [Outcome::NoSpace; 6]);
    assert_eq!(pool.stats().dram.leased_bytes, 24 * PAGE, "what the ninth had for a moment is free");
    assert_eq!(pool.stats().entries, 10);
    assert_eq!(commit(&mut pool, &plan, shards).kept.len(), 8);
}

#[test]
fn a_call_that_no_page_finds_room_in_holds_nothing() {
    let mut small = config(1 << 30);
    small.limits.client_slots_max = 3;
    let mut pool = Pool::new(small).unwrap();
    let ns = open(&mut pool);
    let list = hashes(0..2);
    let plan = begin(&mut pool, ns, &list, some(0, 4));
    assert_eq!((plan.lease, plan.outcomes), (None, vec![Outcome::NoSpace; 8]));
    assert_eq!((pool.stats().leases, pool.stats().entries, pool.stats().dram.used_bytes), (0, 0, 0));
    let plan = begin(&mut pool, ns, &list, some(0, 2));
    assert_eq!((granted(&plan), plan.outcomes[2]), (vec![0, 1], Outcome::LeaseLimit));
    commit(&mut pool, &plan, some(0, 2));
    let plan = begin(&mut pool, ns, &list, some(2, 2));
    commit(&mut pool, &plan, some(2, 2));
    let plan = reload(&mut pool, ns, &list, some(0, 4));
    assert_eq!(
        (plan.lease, plan.pages),
        (None, vec![ReloadStep::NoSlot]),
        "three slots hold no page of four"
    );
}

#[test]
fn a_commit_that_drops_a_shard_keeps_the_others_and_says_which() {
    let (mut pool, ns) = sharded(true);
    let (list, shards) = (hashes(0..3), some(0, 2));
    let plan = begin(&mut pool, ns, &list, shards);
    // Shard 1 of page 0 is not filled: that of page 1 hangs on it.
    let filled = [(0, 1), (2, 1), (3, 1), (4, 1), (5, 1)];
    let done = pool.commit_offload(plan.lease.unwrap(), CLIENT, &filled, 0).unwrap();
    assert_eq!(done.dropped, [3, 5]);
    assert_eq!((done.kept.len(), done.freed), (1, 3), "pages 1 and 2 are torn");
    pool.check().unwrap();
    assert_eq!(pool.stats().dram.leased_bytes, 0);
    let again = begin(&mut pool, ns, &list, shards);
    assert_eq!(granted(&again), [1, 3, 5], "what was kept is there");
    assert_eq!(commit(&mut pool, &again, shards).kept.len(), 3);
    let rest = begin(&mut pool, ns, &list, some(2, 2));
    assert_eq!(commit(&mut pool, &rest, some(2, 2)).kept.len(), 3);
    assert_eq!(present(&mut pool, ns, 0..3), 3);
}

#[test]
fn a_reload_covers_whole_pages_and_what_it_began_to_read_beyond_goes_on() {
    let (mut pool, ns) = sharded(true);
    let (list, all) = (hashes(0..8), some(0, 4));
    let plan = begin(&mut pool, ns, &list, all);
    commit(&mut pool, &plan, all);
    write_all(&mut pool);
    assert_eq!(pool.demote_all(None), 8);
    // 24 of the 32 slots wait to be written to NVMe, and two are being filled.
    let other: Vec<BlockHash> = hashes(100..107);
    let busy = begin(&mut pool, ns, &other[..6], all);
    assert_eq!(commit(&mut pool, &busy, all).kept.len(), 6);
    let busy = OffloadAsk { shards: some(0, 2), client: OTHER, ..ask(ns, Some(105), &other[6..]) };
    assert_eq!(granted(&pool.begin_offload(busy, 0).unwrap()).len(), 2);
    let plan = reload(&mut pool, ns, &list, all);
    assert_eq!((plan.pages.len(), plan.ahead.len()), (5, 2), "a page, and half of another");
    assert_eq!(plan.pages[4], ReloadStep::NoSlot);
    assert_eq!(pool.stats().dram.leased_bytes, 6 * PAGE, "the half is held by its reads alone");
    for promotion in &plan.ahead {
        assert!(pool.promoted(promotion.page, promotion.shard, 0));
    }
    pool.end_reload(plan.lease.unwrap(), CLIENT, &[], 0).unwrap();
    pool.client_gone(OTHER, 0);
    let plan = reload(&mut pool, ns, &list[1..2], all);
    let ready = plan.pages.iter().filter(|step| matches!(step, ReloadStep::Ready { .. })).count();
    assert_eq!((ready, plan.pages.len()), (2, 4), "what was read ahead is here");
}

#[test]
fn a_shard_that_does_not_verify_is_dropped_by_its_position() {
    let (mut pool, ns) = sharded(true);
    let (list, all) = (hashes(0..2), some(0, 4));
    let plan = begin(&mut pool, ns, &list, all);
    commit(&mut pool, &plan, all);
    write_all(&mut pool);
    let plan = reload(&mut pool, ns, &list, some(1, 3));
    pool.end_reload(plan.lease.unwrap(), CLIENT, &[4], 0).unwrap(); // page 1, shard 2
    let again = reload(&mut pool, ns, &list, all);
    let read: Vec<usize> = (0..8).filter(|at| matches!(again.pages[*at], ReloadStep::Promote(_))).collect();
    assert_eq!(read, [6], "from NVMe, that shard of that page alone");
}

#[test]
fn the_last_page_is_the_tail_whoever_writes_it() {
    let (mut pool, ns) = sharded(true);
    let (list, name) = (hashes(0..2), session("s"));
    for first in [0, 2] {
        let shards = some(first, 2);
        let asked = OffloadAsk { shards, tail_tokens: 5, session: Some(&name), ..ask(ns, None, &list) };
        let plan = pool.begin_offload(asked, 0).unwrap();
        commit(&mut pool, &plan, shards);
    }
    let writes = pool.next_writes(u64::MAX, 0);
    let tails: Vec<u32> = writes.iter().map(|write| write.tail_tokens).collect();
    assert_eq!(tails.iter().filter(|tail| **tail == 5).count(), 4, "{tails:?}");
    assert_eq!(pool.begin_turn(ns, &name, 0).unwrap().pages, 2);
}

#[test]
fn calls_over_more_than_there_is_are_refused_and_change_nothing() {
    let (mut pool, ns) = sharded(true);
    let one = hashes(0..1);
    let many = vec![hash(0); HASHES_PER_CALL_MAX / 4 + 1];
    let before = pool.stats();
    for (hashes, shards) in
        [(&one, some(0, 5)), (&one, some(3, 2)), (&one, some(60_000, 2)), (&many, some(0, 4))]
    {
        let refused = pool.begin_offload(OffloadAsk { shards, ..ask(ns, None, hashes) }, 0);
        assert!(matches!(refused, Err(PoolError::Invalid(_))), "{shards:?}");
        let refused = pool.begin_reload(ReloadAsk { shards, ..read(ns, hashes) }, 0);
        assert!(matches!(refused, Err(PoolError::Invalid(_))), "{shards:?}");
    }
    assert_eq!(pool.stats(), before);
    let mut narrow = config(0);
    narrow.limits.lease_pages_max = 3;
    let mut pool = Pool::new(narrow).unwrap();
    let ns = open(&mut pool);
    let refused = pool.begin_offload(OffloadAsk { shards: some(0, 4), ..ask(ns, None, &one) }, 0);
    assert!(
        matches!(refused, Err(PoolError::Invalid(_))),
        "a lease of three slots holds no page of four shards"
    );
    let refused = pool.begin_reload(ReloadAsk { shards: some(0, 4), ..read(ns, &one) }, 0);
    assert!(matches!(refused, Err(PoolError::Invalid(_))));
    assert_eq!(granted(&begin(&mut pool, ns, &one, some(0, 3))).len(), 3);
}

#[test]
fn reserved_slots_are_of_one_shard() {
    let (mut pool, ns) = sharded(true);
    let reserve = ReserveAsk { ns, shard: 0, client: CLIENT, lease: None, pages: 2 };
    let lease = pool.reserve(reserve, 0).unwrap().lease.unwrap();
    pool.renew(CLIENT, &[lease], 0);
    let list = hashes(0..2);
    let pages = OffloadAsk { shards: some(0, 2), ..ask(ns, None, &list) };
    let commit = CommitReservedAsk { pages, lease, filled: &[(0, 1), (1, 1)], siblings: false };
    assert!(matches!(pool.commit_reserved(commit, 0), Err(PoolError::Invalid(_))));
    pool.check().unwrap();
}

#[test]
fn a_large_call_is_bounded_and_cut_in_the_middle_of_pages() {
    let mut large = config(1 << 40);
    large.slab_bytes = 64 << 20;
    let mut pool = Pool::new(large).unwrap();
    let ns = pool.open_namespace(desc(2, "a", PAGE, 8)).unwrap();
    let (list, shards) = (hashes(0..1000), some(0, 7));
    let asked = OffloadAsk { shards, ..ask(ns, None, &list) };
    let mut offloading = pool.start_offload(&asked, 0).unwrap();
    let mut slices = 1;
    loop {
        let before = pool.steps();
        let done = pool.offload_some(&asked, &mut offloading, 0).unwrap();
        assert!(pool.steps() - before <= STEPS_PER_CALL_MAX);
        pool.check().unwrap();
        if done {
            break;
        }
        slices += 1;
    }
    let plan = pool.offload_plan(offloading);
    let whole = LEASE_PAGES_MAX / 7 * 7;
    assert!(slices > 1);
    assert_eq!(granted(&plan), (0..whole).collect::<Vec<u32>>(), "a lease's slots, in whole pages");
    assert_eq!(plan.outcomes.len(), 7000);
    assert_eq!(commit(&mut pool, &plan, shards).kept.len() as u32, whole / 7);
    let rest = begin(&mut pool, ns, &list[..whole as usize / 7], Shards::one(7));
    commit(&mut pool, &rest, Shards::one(7));
    write_all(&mut pool);
    pool.demote_all(None);
    let before = pool.steps();
    let read = reload(&mut pool, ns, &list, some(0, 8));
    assert_eq!(read.pages.len(), LEASE_PAGES_MAX as usize, "128 whole pages");
    assert!(pool.steps() - before <= STEPS_PER_CALL_MAX);
}

#[test]
fn a_page_is_told_of_once_when_it_comes_and_when_it_does_not_verify() {
    let (mut pool, ns) = sharded(true);
    let (list, all) = (hashes(0..2), some(0, 4));
    for (shards, shown) in [(some(2, 2), 0), (Shards::one(0), 0)] {
        let plan = begin(&mut pool, ns, &list, shards);
        assert_eq!(commit(&mut pool, &plan, shards).shown, shown, "{shards:?}");
    }
    let reserve = ReserveAsk { ns, shard: 1, client: CLIENT, lease: None, pages: 2 };
    let lease = pool.reserve(reserve, 0).unwrap().lease.unwrap();
    pool.renew(CLIENT, &[lease], 0);
    let pages = OffloadAsk { shards: Shards::one(1), ..ask(ns, None, &list) };
    let filled = [(0, sum(0, 1)), (1, sum(1, 1))];
    let done = pool.commit_reserved(CommitReservedAsk { pages, lease, filled: &filled, siblings: false }, 0);
    assert_eq!(done.unwrap().shown, 2, "its shards were the last");
    assert_eq!(pool.release(lease, CLIENT, &[], &[], 0), Ok(0));
    write_all(&mut pool);
    let plan = reload(&mut pool, ns, &list, all);
    assert_eq!(pool.end_reload(plan.lease.unwrap(), CLIENT, &[0, 3, 6], 0), Ok(2), "shards of two pages");
    let plan = reload(&mut pool, ns, &list, all);
    let reads = plan.pages.iter().filter_map(|step| match step {
        ReloadStep::Promote(read) => Some(*read),
        _ => None,
    });
    let reads: Vec<Promotion> = reads.collect();
    let dropped = |read: &Promotion| pool.promote_failed(read.page, read.shard, MissCause::Checksum, 0);
    assert_eq!(reads.iter().map(dropped).collect::<Vec<bool>>(), [true, false, false], "and what hung on it");
    pool.check().unwrap();
}

/// Four pages of a namespace of which three shards of four came: 12 of 32 slots.
fn begin_unfinished(pool: &mut Pool, ns: NamespaceIndex) -> Vec<BlockHash> {
    let list = hashes(0..4);
    let shards = some(0, 3);
    let plan = begin(pool, ns, &list, shards);
    commit(pool, &plan, shards);
    assert_eq!(pool.stats().unfinished_pages, 4);
    list
}

/// Fills what room there is with whole pages of another namespace, at a time. Returns those that all stay.
fn store_whole(pool: &mut Pool, ns: NamespaceIndex, list: &[BlockHash], now: Now) -> usize {
    let shards = some(0, u32::from(WHOLE));
    for hash in list {
        let ask = OffloadAsk { shards, ..ask(ns, None, std::slice::from_ref(hash)) };
        let plan = pool.begin_offload(ask, now).unwrap();
        let filled: Vec<(u32, u64)> = granted(&plan).into_iter().map(|at| (at, 7)).collect();
        if let Some(lease) = plan.lease {
            pool.commit_offload(lease, CLIENT, &filled, now).unwrap();
        }
        pool.check().unwrap();
    }
    list.iter().filter(|hash| pool.lookup(ns, std::slice::from_ref(*hash), now).unwrap().present == 1).count()
}

#[test]
fn every_shard_that_was_taken_and_left_unread_is_counted() {
    let (mut pool, ns) = sharded(false);
    let (one, pages) = (some(0, 1), 100);
    for hash in hashes(0..pages) {
        let ask = OffloadAsk { shards: one, ..ask(ns, None, std::slice::from_ref(&hash)) };
        let plan = pool.begin_offload(ask, 0).unwrap();
        let done = commit(&mut pool, &plan, one);
        assert_eq!(done.kept.len(), 1);
    }
    let stats = pool.stats();
    assert!(stats.unfinished_drops > 0, "there is no room for all of them");
    assert_eq!(stats.unfinished_pages + stats.unfinished_drops, u64::from(pages));
}

#[test]
fn a_page_whose_shards_do_not_come_goes_before_another_namespaces_pages() {
    for own in [true, false] {
        let (mut pool, ns) = sharded(false);
        let half = begin_unfinished(&mut pool, ns);
        let good = if own { ns } else { pool.open_namespace(desc(3, "b", PAGE, WHOLE)).unwrap() };
        let late = Now::from(config(0).limits.lease_ms);
        assert_eq!(store_whole(&mut pool, good, &hashes(100..108), late), 8, "all the room there is");
        assert_eq!(pool.stats().unfinished_pages, 0);
        assert_eq!(pool.stats().unfinished_drops, 4, "the first one, with what hung on it");
        let again = begin(&mut pool, ns, &half, some(0, 3));
        assert!(!again.outcomes.contains(&Outcome::Present));
    }
}

#[test]
fn a_page_whose_shards_do_not_come_goes_by_itself_but_not_while_one_is_on_its_way() {
    let (mut pool, ns) = sharded(false);
    let list = begin_unfinished(&mut pool, ns);
    assert!(pool.expire(UNFINISHED_MS_MAX - 1));
    assert_eq!(pool.stats().unfinished_pages, 4);
    let plan = pool
        .begin_offload(OffloadAsk { shards: Shards::one(3), ..ask(ns, None, &list) }, UNFINISHED_MS_MAX - 1)
        .unwrap();
    assert!(pool.expire(UNFINISHED_MS_MAX));
    assert_eq!(pool.stats().unfinished_pages, 4, "the last shards are being written");
    let filled: Vec<(u32, u64)> = granted(&plan).into_iter().map(|at| (at, 7)).collect();
    pool.commit_offload(plan.lease.unwrap(), CLIENT, &filled[..1], UNFINISHED_MS_MAX).unwrap();
    assert_eq!(pool.stats().unfinished_pages, 3);
    assert!(pool.expire(3 * UNFINISHED_MS_MAX));
    pool.check().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.unfinished_pages, stats.pages, stats.entries), (0, 1, 1), "what is whole stays");
    assert_eq!(stats.dram.used_bytes, 4 * PAGE);
}
