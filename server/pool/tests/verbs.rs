//! Each verb by itself: what it does, and what it refuses. Owns: examples and bad input. Must not know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plain;

use plain::*;
use turnkv_pool::*;
use turnkv_proto::{NamespaceId, Shards};

#[test]
fn configurations_that_cannot_work_are_refused() {
    let bad = |change: fn(&mut PoolConfig)| {
        let mut config = config(0);
        change(&mut config);
        Pool::new(config).err().unwrap()
    };
    assert_eq!(bad(|config| config.slab_bytes = 100_000), ConfigError::SlabBytes(100_000));
    assert_eq!(bad(|config| config.slab_count = 0), ConfigError::SlabCount(0));
    assert_eq!(bad(|config| config.slab_count = u32::MAX), ConfigError::SlabCount(u32::MAX));
    assert_eq!(bad(|config| config.free_slots_percent = 91), ConfigError::FreeSlots(91));
    assert_eq!(bad(|config| config.limits.leases_max = 0), ConfigError::Limit("leases_max"));
}

#[test]
fn a_namespace_opens_once_and_only_as_it_is() {
    let (mut pool, ns) = pool(false);
    assert_eq!(pool.open_namespace(desc(1, "a", 8 << 10, 1)), Ok(ns));
    let refused =
        [desc(1, "b", 8 << 10, 1), desc(2, "a", 1 << 20, 1), desc(2, "a", 0, 1), desc(2, "a", 1, 0)];
    for desc in refused {
        assert!(matches!(pool.open_namespace(desc), Err(PoolError::Invalid(_))));
    }
    let unknown = NamespaceIndex(9, 0);
    assert_eq!(pool.lookup(unknown, &[hash(0)], 0), Err(PoolError::NamespaceUnknown));
    assert_eq!(pool.begin_reload(read(unknown, &[hash(0)]), 0), Err(PoolError::NamespaceUnknown));
    assert_eq!(pool.begin_offload(ask(unknown, None, &[hash(0)]), 0), Err(PoolError::NamespaceUnknown));
    assert_eq!(pool.begin_turn(unknown, &session("s"), 0), Err(PoolError::NamespaceUnknown));
}

#[test]
fn bad_offloads_change_nothing() {
    let (mut pool, ns) = pool(true);
    let before = pool.stats();
    let many = vec![hash(0); limits::HASHES_PER_CALL_MAX + 1];
    let one = [hash(0)];
    for bad in [
        ask(ns, None, &[]),
        ask(ns, None, &many),
        OffloadAsk { shards: Shards::one(1), ..ask(ns, None, &one) },
        OffloadAsk { tail_tokens: 16, ..ask(ns, None, &one) },
    ] {
        assert!(matches!(pool.begin_offload(bad, 0), Err(PoolError::Invalid(_))));
    }
    assert_eq!(pool.stats(), before);
    let twice = pool.begin_offload(ask(ns, None, &[hash(0), hash(0)]), 0).unwrap();
    assert_eq!(twice.outcomes[1], Outcome::NoParent, "a page cannot follow itself");
    let orphan = pool.begin_offload(ask(ns, Some(77), &hashes(5..7)), 0).unwrap();
    assert_eq!((orphan.lease, orphan.outcomes), (None, vec![Outcome::NoParent; 2]));
    pool.check().unwrap();
}

#[test]
fn bad_commits_change_nothing() {
    let (mut pool, ns) = pool(true);
    let lease = pool.begin_offload(ask(ns, None, &hashes(0..3)), 0).unwrap().lease.unwrap();
    let before = pool.stats();
    assert_eq!(pool.commit_offload(lease, OTHER, &[(0, 0)], 0), Err(PoolError::LeaseUnknown));
    assert_eq!(pool.commit_offload(LeaseId(0), CLIENT, &[], 0), Err(PoolError::LeaseUnknown));
    assert_eq!(pool.commit_offload(LeaseId(u64::MAX), CLIENT, &[], 0), Err(PoolError::LeaseUnknown));
    assert_eq!(pool.end_reload(lease, CLIENT, &[], 0), Err(PoolError::LeaseUnknown), "not a read lease");
    for filled in [vec![(3, 0)], vec![(1, 0), (0, 0)], vec![(0, 0), (0, 0)], vec![(0, 0); 9]] {
        assert!(matches!(pool.commit_offload(lease, CLIENT, &filled, 0), Err(PoolError::Invalid(_))));
    }
    assert_eq!(pool.stats(), before);
    let done = pool.commit_offload(lease, CLIENT, &[(0, 1), (2, 1)], 0).unwrap();
    assert_eq!((done.kept.len(), done.dropped), (1, vec![2]), "page 2 hangs on a page that was not filled");
    assert_eq!(pool.commit_offload(lease, CLIENT, &[(0, 1)], 0), Err(PoolError::LeaseUnknown), "only once");
    assert_eq!(pool.stats().entries, 1);
    pool.check().unwrap();
}

#[test]
fn a_page_in_flight_is_declined_to_others_and_visible_once_committed() {
    let (mut pool, ns) = pool(true);
    let first = pool.begin_offload(ask(ns, None, &hashes(0..2)), 0).unwrap();
    let list = hashes(0..2);
    let second = OffloadAsk { client: OTHER, ..ask(ns, None, &list) };
    assert_eq!(pool.begin_offload(second, 0).unwrap().outcomes, [Outcome::InFlight; 2]);
    assert_eq!(pool.begin_offload(ask(ns, Some(1), &[hash(2)]), 0).unwrap().outcomes, [Outcome::InFlight]);
    assert_eq!(present(&mut pool, ns, 0..2), 0);
    pool.commit_offload(first.lease.unwrap(), CLIENT, &[(0, 1), (1, 1)], 0).unwrap();
    assert_eq!(pool.begin_offload(second, 0).unwrap().outcomes, [Outcome::Present; 2]);
    assert_eq!(present(&mut pool, ns, 0..2), 2);
}

#[test]
fn a_page_of_two_shards_is_there_when_both_are() {
    let (mut pool, _) = pool(true);
    let ns = pool.open_namespace(desc(2, "a", 8 << 10, 2)).unwrap();
    let list = hashes(0..2);
    for shard in [1, 0] {
        assert_eq!(present(&mut pool, ns, 0..2), 0);
        let plan =
            pool.begin_offload(OffloadAsk { shards: Shards::one(shard), ..ask(ns, None, &list) }, 0).unwrap();
        let reload = pool.begin_reload(read(ns, &list), 0).unwrap();
        assert_eq!(reload.pages, [ReloadStep::Miss(MissCause::Incomplete)]);
        pool.commit_offload(plan.lease.unwrap(), CLIENT, &[(0, 1), (1, 1)], 0).unwrap();
        pool.check().unwrap();
    }
    assert_eq!(present(&mut pool, ns, 0..2), 2);
    assert_eq!(pool.next_writes(u64::MAX, 0).len(), 4);
}

#[test]
fn a_late_writer_keeps_its_slots_but_cannot_commit() {
    let (mut pool, ns) = pool(true);
    let plan = pool.begin_offload(ask(ns, None, &hashes(0..16)), 0).unwrap();
    pool.expire(101);
    let stats = pool.stats();
    assert_eq!((stats.quarantined_bytes, stats.leases_quarantined, stats.entries), (128 << 10, 1, 0));
    pool.expire(1 << 40);
    let list = [hash(0)];
    let other = OffloadAsk { client: OTHER, ..ask(ns, None, &list) };
    assert_eq!(
        pool.begin_offload(other, 0).unwrap().outcomes,
        [Outcome::NoSpace],
        "time alone frees nothing"
    );
    assert_eq!(pool.commit_offload(plan.lease.unwrap(), CLIENT, &[(0, 1)], 0), Err(PoolError::LeaseUnknown));
    assert_eq!(pool.stats().dram.used_bytes, 0, "who tries to commit has finished writing");
    let plan = pool.begin_offload(ask(ns, None, &hashes(0..16)), 1 << 40).unwrap();
    pool.expire(1 << 41);
    assert!(plan.lease.is_some());
    pool.client_gone(CLIENT, 1 << 41);
    assert_eq!(
        (pool.stats().leases, pool.stats().dram.used_bytes, pool.stats().quarantined_bytes),
        (0, 0, 0)
    );
    pool.check().unwrap();
}

#[test]
fn a_late_reader_loses_its_slots_by_time() {
    let (mut pool, ns) = pool(false);
    store(&mut pool, ns, None, 0..2);
    let plan = pool.begin_reload(read(ns, &hashes(0..2)), 0).unwrap();
    assert_eq!(plan.pages.len(), 2);
    pool.expire(150);
    assert_eq!(pool.stats().dram.leased_bytes, 16 << 10, "deadline and grace have not passed");
    pool.expire(151);
    assert_eq!(pool.stats().dram.leased_bytes, 0);
    assert_eq!(pool.end_reload(plan.lease.unwrap(), CLIENT, &[], 151), Err(PoolError::LeaseUnknown));
}

#[test]
fn a_page_that_changed_before_it_was_written_is_gone_with_what_hangs_on_it() {
    let (mut pool, ns) = pool(true);
    store(&mut pool, ns, None, 0..3);
    let keys: Vec<PageKey> =
        (0..3).map(|page| pool.page_key(ns, &hashes(page..page + 1)[0]).unwrap()).collect();
    assert_eq!(pool.make_durable(&keys), keys);
    let writes = pool.next_writes(u64::MAX, 0);
    assert_eq!(writes.len(), 3);
    pool.written(writes[0].page, 0, NvmePlace { segment: 0, generation: 0, block: 1 }, 0);
    pool.write_changed(writes[1].page, 0, 0);
    pool.check().unwrap();
    assert_eq!(present(&mut pool, ns, 0..3), 1);
    assert_eq!(keys.iter().map(|key| pool.is_on_nvme(*key)).collect::<Vec<_>>(), [Some(true), None, None]);
    let place = NvmePlace { segment: 0, generation: 0, block: 9 };
    assert!(!pool.written(writes[2].page, 0, place, 0), "what was in flight above it is of no use");
    assert_eq!((pool.stats().dropped_pages, pool.stats().dram.used_bytes), (2, 8 << 10));
    pool.check().unwrap();
}

#[test]
fn a_moving_page_that_changed_in_memory_is_still_on_nvme() {
    let (mut pool, ns) = pool(true);
    store(&mut pool, ns, None, 0..2);
    write_all(&mut pool);
    let page = pool.page_key(ns, &hashes(1..2)[0]).unwrap();
    assert_eq!(pool.rewrite(page, 0), Rewrite::Dirty);
    let writes = pool.next_writes(u64::MAX, 0);
    assert!(writes.len() == 1 && writes[0].moves);
    pool.write_changed(page, 0, 0);
    pool.check().unwrap();
    assert_eq!(pool.lookup(ns, &hashes(0..2), 0), Ok(Found { present: 2, dram: 1 }), "NVMe still has it");
    assert!(matches!(pool.rewrite(page, 0), Rewrite::Promotion(_)), "it moves by way of that copy");
    pool.check().unwrap();
}

#[test]
fn a_slot_that_changed_is_given_up_unless_it_is_another_pages_by_now() {
    let (mut pool, ns) = pool(false);
    store(&mut pool, ns, None, 0..2);
    let plan = pool.begin_reload(read(ns, &hashes(0..2)), 0).unwrap();
    let ReloadStep::Ready { page, slot, .. } = plan.pages[1] else { panic!("{plan:?}") };
    let ReloadStep::Ready { slot: other, .. } = plan.pages[0] else { panic!("{plan:?}") };
    pool.slot_changed(page, 0, other, 0);
    assert_eq!(present(&mut pool, ns, 0..2), 2);
    pool.slot_changed(page, 0, slot, 0);
    assert_eq!(present(&mut pool, ns, 0..2), 1);
    pool.end_reload(plan.lease.unwrap(), CLIENT, &[1], 0).unwrap();
    pool.check().unwrap();
}

#[test]
fn bad_ends_change_nothing_and_corrupt_pages_go() {
    let (mut pool, ns) = pool(true);
    store(&mut pool, ns, None, 0..3);
    write_all(&mut pool);
    let lease = pool.begin_reload(read(ns, &hashes(0..3)), 0).unwrap().lease.unwrap();
    assert_eq!(pool.end_reload(lease, OTHER, &[], 0), Err(PoolError::LeaseUnknown));
    assert!(matches!(pool.end_reload(lease, CLIENT, &[3], 0), Err(PoolError::Invalid(_))));
    for twice in [&[0; 9][..], &[1, 1], &[2, 1], &[1, 0, 1]] {
        assert!(matches!(pool.end_reload(lease, CLIENT, twice, 0), Err(PoolError::Invalid(_))), "{twice:?}");
    }
    pool.end_reload(lease, CLIENT, &[1], 0).unwrap();
    assert_eq!(pool.lookup(ns, &hashes(0..3), 0), Ok(Found { present: 3, dram: 2 }), "NVMe still has it");
    let plan = pool.begin_reload(read(ns, &hashes(0..3)), 0).unwrap();
    let ReloadStep::Promote(promotion) = plan.pages[1] else { panic!("{plan:?}") };
    let joined = pool.begin_reload(read(ns, &hashes(0..3)), 0).unwrap();
    assert!(matches!(joined.pages[1], ReloadStep::Join { .. }));
    pool.promote_failed(promotion.page, 0, MissCause::Checksum, 0);
    assert_eq!(present(&mut pool, ns, 0..3), 1, "the page and what hung on it are gone");
    assert!(!pool.promoted(promotion.page, 0, 0), "a stale key");
    pool.check().unwrap();
    assert_eq!(dead_places(&mut pool).len(), 2);
}

#[test]
fn stale_keys_name_nothing() {
    let (mut pool, ns) = pool(true);
    let page = store(&mut pool, ns, None, 0..1)[0];
    pool.evict_namespace(Some(ns));
    store(&mut pool, ns, None, 0..1);
    let before = pool.stats();
    pool.drop_page(page);
    pool.write_failed(page, 0, 0);
    assert!(!pool.written(page, 0, NvmePlace { segment: 0, generation: 0, block: 0 }, 0));
    assert!(!pool.promoted(page, 9, 0));
    assert_eq!((pool.is_on_nvme(page), pool.rewrite(page, 0)), (None, Rewrite::Gone));
    assert!(pool.make_durable(&[page, PageKey { index: u32::MAX, generation: 0 }]).is_empty());
    assert_eq!(pool.stats(), before);
    assert_eq!(pool.slot_place(SlotKey { slab: 99, slot: 0 }), None);
    assert_eq!(pool.slot_place(SlotKey { slab: 0, slot: 99 }), None);
}

#[test]
fn without_nvme_tails_go_before_heads() {
    let (mut pool, ns) = pool(false);
    store(&mut pool, ns, None, 0..16);
    store(&mut pool, ns, None, 100..104);
    assert_eq!(present(&mut pool, ns, 0..16), 12);
    assert_eq!(present(&mut pool, ns, 100..104), 4);
    assert_eq!(pool.stats().evicted_pages, 4);
    pool.check().unwrap();
}

#[test]
fn dirty_pages_are_never_evicted_and_clean_ones_only_demoted() {
    let (mut pool, ns) = pool(true);
    store(&mut pool, ns, None, 0..16);
    let full = pool.begin_offload(ask(ns, None, &hashes(100..102)), 0).unwrap();
    assert_eq!((full.lease, full.outcomes), (None, vec![Outcome::NoSpace; 2]));
    write_all(&mut pool);
    store(&mut pool, ns, None, 100..104);
    assert_eq!(pool.lookup(ns, &hashes(0..16), 0), Ok(Found { present: 16, dram: 12 }));
    pool.check().unwrap();
}

#[test]
fn limits_of_leases_are_outcomes_or_errors() {
    let mut small = config(0);
    small.limits.lease_pages_max = 2;
    small.limits.client_slots_max = 3;
    small.limits.leases_max = 3;
    let (mut pool, ns) = pool_with(small);
    let plan = pool.begin_offload(ask(ns, None, &hashes(0..4)), 0).unwrap();
    assert_eq!(plan.outcomes[2..], [Outcome::LeaseLimit; 2]);
    pool.commit_offload(plan.lease.unwrap(), CLIENT, &[(0, 1), (1, 1)], 0).unwrap();
    let first = pool.begin_reload(read(ns, &hashes(0..2)), 0).unwrap();
    let second = pool.begin_reload(read(ns, &hashes(0..2)), 0).unwrap();
    assert_eq!((first.pages.len(), second.pages.len()), (2, 1));
    let third = pool.begin_reload(read(ns, &hashes(0..2)), 0).unwrap();
    assert_eq!((third.lease, third.pages), (None, vec![ReloadStep::NoSlot]));
    let list = hashes(0..2);
    pool.begin_reload(ReloadAsk { client: OTHER, ..read(ns, &list) }, 0).unwrap();
    assert_eq!(pool.begin_reload(read(ns, &list), 0), Err(PoolError::LeaseShare(LeaseShare::All)));
    pool.check().unwrap();
}

#[test]
fn a_full_index_drops_the_coldest_leaf() {
    let mut small = config(1 << 30);
    small.limits.pages_max = 4;
    let (mut pool, ns) = pool_with(small);
    store(&mut pool, ns, None, 0..4);
    assert_eq!(pool.begin_offload(ask(ns, None, &[hash(9)]), 0).unwrap().outcomes, [Outcome::NoSpace]);
    write_all(&mut pool);
    store(&mut pool, ns, None, 9..10);
    assert_eq!((present(&mut pool, ns, 0..4), present(&mut pool, ns, 9..10)), (3, 1));
    pool.check().unwrap();
}

#[test]
fn an_empty_slab_is_cut_for_another_namespace_and_renewed_for_another_tenant() {
    let (mut pool, ns) = pool(true);
    store(&mut pool, ns, None, 0..16);
    write_all(&mut pool);
    let sibling = pool.open_namespace(desc(2, "a", 30_000, 1)).unwrap();
    let stranger = pool.open_namespace(desc(3, "b", 8 << 10, 1)).unwrap();
    store(&mut pool, sibling, None, 0..1);
    assert!(pool.take_effects().renew.is_empty(), "the same tenant keeps its memory file");
    write_all(&mut pool);
    store(&mut pool, stranger, None, 0..1);
    let actions = pool.take_effects().renew;
    assert!(
        matches!(&actions[..], [SlabAction::Renew { generation: 1, tenant, .. }] if tenant == "b"),
        "{actions:?}"
    );
    assert_eq!(present(&mut pool, ns, 0..16), 16, "demoted, not lost");
    assert_eq!(pool.stats().recut_slabs, 2);
    pool.check().unwrap();
}

#[test]
fn a_retired_slab_is_never_cut_again() {
    let (mut pool, ns) = pool(false);
    let page = store(&mut pool, ns, None, 0..1)[0];
    pool.retire_slab(0);
    pool.drop_page(page);
    let plan = pool.begin_offload(ask(ns, None, &hashes(0..9)), 0).unwrap();
    assert_eq!(plan.outcomes[8], Outcome::NoSpace);
    assert_eq!((pool.stats().retired_slabs, pool.stats().free_slabs), (1, 0));
    pool.retire_slab(77);
    pool.check().unwrap();
}

#[test]
fn a_slab_that_was_retired_serves_again_once_it_is_renewed() {
    let (mut pool, ns) = pool_with(PoolConfig { slab_count: 1, ..config(0) });
    store(&mut pool, ns, None, 0..1);
    let all = pool.stats().dram.capacity_bytes;
    for is_in_use in [true, false] {
        let lease = pool.begin_reload(read(ns, &hashes(0..1)), 0).unwrap().lease.unwrap();
        pool.retire_slab(0);
        if !is_in_use {
            pool.end_reload(lease, CLIENT, &[], 0).unwrap();
            pool.evict_namespace(Some(ns));
        }
        let plan = pool.begin_offload(ask(ns, None, &hashes(10..11)), 0).unwrap();
        assert_eq!(plan.outcomes, [Outcome::NoSpace]);
        pool.slab_renewed(0);
        pool.slab_renewed(0);
        pool.check().unwrap();
        let plan = pool.begin_offload(ask(ns, None, &hashes(10..11)), 0).unwrap();
        pool.abort_offload(plan.lease.unwrap(), CLIENT).unwrap();
        assert_eq!((pool.stats().retired_slabs, pool.stats().dram.capacity_bytes), (0, all));
        if is_in_use {
            pool.end_reload(lease, CLIENT, &[], 0).unwrap();
        }
    }
    pool.slab_renewed(77);
    pool.check().unwrap();
}

#[test]
fn durable_means_the_page_and_its_ancestors() {
    let (mut pool, ns) = pool(true);
    let pages = store(&mut pool, ns, None, 0..3);
    let urgent = store(&mut pool, ns, None, 50..51);
    assert_eq!(pool.make_durable(&urgent), urgent);
    let writes = pool.next_writes(8 << 10, 0);
    assert_eq!((writes.len(), writes[0].page), (1, urgent[0]));
    assert!(pool.next_writes(100, 0).is_empty(), "it does not fit, and one is in flight");
    pool.write_failed(urgent[0], 0, 0);
    assert_eq!(pool.next_writes(8 << 10, 0)[0].page, urgent[0], "first again");
    assert_eq!(pool.make_durable(&pages[2..]), pages);
    write_all(&mut pool);
    assert!(pool.make_durable(&pages).is_empty());
    assert_eq!(pool.is_on_nvme(pages[2]), Some(true));
}

#[test]
fn reclaim_moves_what_stays() {
    let (mut pool, ns) = pool(true);
    store(&mut pool, ns, None, 0..2);
    let writes = pool.next_writes(u64::MAX, 0);
    for write in &writes {
        pool.written(write.page, 0, NvmePlace { segment: 4, generation: 0, block: write.page.index }, 0);
    }
    let at = |write: &WriteBehind| NvmePlace { segment: 4, generation: 0, block: write.page.index };
    let id = NamespaceId([1; 32]);
    let lease = pool.begin_reload(read(ns, &hashes(0..1)), 0).unwrap().lease.unwrap();
    pool.end_reload(lease, CLIENT, &[], 0).unwrap();
    let elsewhere = NvmePlace { segment: 9, generation: 0, block: 9 };
    assert_eq!(pool.reclaim_verdict(&id, &hash(0), 0, elsewhere), Reclaim::Dead);
    assert_eq!(pool.reclaim_verdict(&id, &hash(0), 3, at(&writes[0])), Reclaim::Dead);
    assert_eq!(pool.reclaim_verdict(&id, &hash(0), 0, at(&writes[0])), Reclaim::Hot(writes[0].page));
    assert_eq!(pool.reclaim_verdict(&id, &hash(1), 0, at(&writes[1])), Reclaim::Hot(writes[1].page));
    assert_eq!(pool.rewrite(writes[0].page, 0), Rewrite::Dirty);
    assert_eq!(pool.demote_all(None), 1, "only the other page: this one's old place is about to go");
    let again = pool.next_writes(u64::MAX, 0);
    pool.written(again[0].page, 0, elsewhere, 0);
    assert_eq!(dead_places(&mut pool), [(at(&writes[0]), 8 << 10)]);
    assert_eq!(pool.reclaim_verdict(&id, &hash(0), 0, elsewhere), Reclaim::Hot(writes[0].page));
    pool.demote_all(None);
    assert!(matches!(pool.rewrite(writes[0].page, 0), Rewrite::Promotion(_)));
    assert_eq!(pool.rewrite(writes[0].page, 0), Rewrite::Busy);
    pool.check().unwrap();
}

#[test]
fn a_page_that_is_half_in_dram_and_moves_can_be_evicted_when_its_move_ends() {
    let (mut pool, _) = pool(true);
    let ns = pool.open_namespace(desc(2, "a", 8 << 10, 2)).unwrap();
    let list = hashes(0..1);
    for shard in [0, 1] {
        let plan =
            pool.begin_offload(OffloadAsk { shards: Shards::one(shard), ..ask(ns, None, &list) }, 0).unwrap();
        pool.commit_offload(plan.lease.unwrap(), CLIENT, &[(0, 1)], 0).unwrap();
    }
    write_all(&mut pool);
    assert_eq!(pool.demote_all(None), 1);
    let plan = pool.begin_reload(read(ns, &list), 0).unwrap();
    let ReloadStep::Promote(half) = plan.pages[0] else { panic!("{plan:?}") };
    assert!(pool.promoted(half.page, 0, 0));
    pool.end_reload(plan.lease.unwrap(), CLIENT, &[], 0).unwrap();
    let Rewrite::Promotion(other) = pool.rewrite(half.page, 1) else { panic!("it is on NVMe alone") };
    assert!(pool.promoted(other.page, 1, 0));
    assert_eq!(pool.demote_all(None), 0, "it is about to be written");
    pool.rewrite_ended(other.page);
    assert_eq!(pool.demote_all(None), 1);
    pool.check().unwrap(); // a search for victims would find it again and again
    assert_eq!(pool.demote_all(None), 0);
}

#[test]
fn a_lost_device_leaves_what_is_in_dram() {
    let (mut pool, ns) = pool(true);
    store(&mut pool, ns, None, 0..2);
    write_all(&mut pool);
    pool.demote_all(None);
    store(&mut pool, ns, None, 10..12);
    let writes = pool.next_writes(u64::MAX, 0);
    let mut sweep = pool.nvme_lost();
    while !pool.lose_some(&mut sweep) {}
    assert!(!pool.written(writes[0].page, 0, NvmePlace { segment: 0, generation: 0, block: 0 }, 0));
    pool.write_failed(writes[1].page, 0, 0);
    assert_eq!((present(&mut pool, ns, 0..2), present(&mut pool, ns, 10..12)), (0, 2));
    assert_eq!((pool.stats().dirty_bytes, pool.stats().nvme.used_bytes), (0, 0));
    store(&mut pool, ns, None, 20..36);
    pool.check().unwrap();
}

#[test]
fn an_index_of_100k_pages_costs_at_most_128_bytes_a_page() {
    let mut big = config(1 << 40);
    (big.slab_bytes, big.slab_count) = (64 << 20, 8);
    let mut pool = Pool::new(big).unwrap();
    let ns = pool.open_namespace(desc(1, "a", 4096, 1)).unwrap();
    for at in (0..100_000_u32).step_by(1000) {
        store(&mut pool, ns, at.checked_sub(1), at..at + 1000);
        write_all(&mut pool);
    }
    let stats = pool.stats();
    assert_eq!((stats.pages, stats.dram.pages, stats.nvme.pages), (100_000, 100_000, 100_000));
    assert!(stats.index_bytes <= 128 * stats.pages, "{} bytes a page", stats.index_bytes / stats.pages);
}

#[test]
fn a_client_leases_only_its_share_of_the_slots() {
    let mut half = config(0);
    half.limits.client_slots_percent = 50;
    let (mut pool, ns) = pool_with(half); // 16 slots
    let plan = pool.begin_offload(ask(ns, None, &hashes(0..12)), 0).unwrap();
    assert_eq!(plan.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Granted(_))).count(), 8);
    assert_eq!(plan.outcomes[8..], [Outcome::LeaseLimit; 4]);
    let list = hashes(100..112);
    let others = pool.begin_offload(OffloadAsk { client: OTHER, ..ask(ns, None, &list) }, 0).unwrap();
    let granted =
        |plan: &OffloadPlan| plan.outcomes.iter().filter(|one| matches!(one, Outcome::Granted(_))).count();
    assert_eq!(granted(&others), 3, "as much of what is left of the user's share");
    let third = pool
        .begin_offload(OffloadAsk { client: ClientId(3), ..ask(ns, None, &hashes(200..212)) }, 0)
        .unwrap();
    assert_eq!(granted(&third), 1, "and there is something for the next one");
    pool.check().unwrap();
}
