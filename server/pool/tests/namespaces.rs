//! Namespaces that come and go: those that retire, and what NVMe has of those that are not open. Owns: promises about both.
//! Must not know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::*;
use turnkv_pool::limits::{NAMESPACE_SPARED_MS, STRANGERS_MS_MAX};
use turnkv_pool::*;
use turnkv_proto::NamespaceId;
use turnkv_proto::limits::SHARDS_MAX;

const BYTES: u32 = 8 << 10;

fn few(namespaces_max: u16) -> Pool {
    let mut config = config(1 << 30);
    config.limits.namespaces_max = namespaces_max;
    Pool::new(config).unwrap()
}

fn open(pool: &mut Pool, at: u8) -> NamespaceIndex {
    pool.open_namespace(desc(at, "a", u64::from(BYTES), 1)).unwrap()
}

/// Drops what retires; how many calls that took.
fn retire_all(pool: &mut Pool) -> u32 {
    let mut calls = 1;
    while pool.retire_step() {
        calls += 1;
        pool.check().unwrap();
    }
    pool.check().unwrap();
    calls
}

#[test]
fn a_page_has_as_many_shards_as_the_wire_allows() {
    let mut pool = few(4);
    let most = u16::try_from(SHARDS_MAX).unwrap();
    assert!(pool.open_namespace(desc(1, "a", u64::from(BYTES), most)).is_ok());
    for shards in [0, most + 1, u16::MAX] {
        let refused = pool.open_namespace(desc(2, "a", u64::from(BYTES), shards)).unwrap_err();
        assert!(refused.to_string().contains(&format!("1 to {most} shards")), "{shards}: {refused}");
    }
}

fn stranger(at: u32, parent: Option<u32>, block: u32) -> Stranger {
    Stranger {
        hash: hash(at),
        parent: parent.map(hash),
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        bytes: BYTES,
        checksum: 5,
        place: NvmePlace { segment: 1, generation: 0, block },
        sequence: u64::from(block),
        leaving: false,
    }
}

fn keep(pool: &mut Pool, ns: u8, found: impl IntoIterator<Item = Stranger>) -> u64 {
    let id = NamespaceId([ns; 32]);
    pool.keep_strangers(found.into_iter().map(|stranger| (id, stranger)))
}

/// Opens a namespace and takes in what NVMe has of it; how many pages.
fn adopt(pool: &mut Pool, at: u8) -> (NamespaceIndex, u64) {
    let ns = open(pool, at);
    let Some(adoption) = pool.begin_adoption(ns) else { return (ns, 0) };
    let mut adoption = adoption.plan(pool.namespace_desc(ns).unwrap());
    while pool.adopt(&mut adoption, u64::MAX) {
        pool.check().unwrap();
    }
    pool.check().unwrap();
    (ns, adoption.adopted())
}

fn dead_blocks(pool: &mut Pool) -> Vec<u32> {
    let mut blocks: Vec<u32> = dead_places(pool).iter().map(|(place, _)| place.block).collect();
    blocks.sort_unstable();
    blocks
}

#[test]
fn at_the_limit_the_namespace_nobody_used_for_longest_makes_way() {
    let mut pool = few(3);
    let first = open(&mut pool, 1);
    let ids: Vec<NamespaceId> = (1..=3).map(|at| NamespaceId([at; 32])).collect();
    for at in 2..=3 {
        open(&mut pool, at);
    }
    assert_eq!(pool.open_namespace(desc(4, "a", 8 << 10, 1)), Err(PoolError::Limit("namespaces_max")));
    assert!(pool.use_namespace(&ids[0], 10).is_some());
    assert_eq!(pool.retire_oldest("a", 20), Some(ids[1]), "the first one was used since");
    let fourth = open(&mut pool, 4);
    retire_all(&mut pool);
    assert_eq!((pool.stats().namespaces, pool.retiring()), (3, 0));
    assert_eq!(pool.namespace(&ids[1]), None);
    assert_eq!(pool.namespace(&ids[0]), Some(first));
    store(&mut pool, fourth, None, 0..3);
    assert_eq!(present(&mut pool, fourth, 0..3), 3);
    pool.check().unwrap();
}

#[test]
fn what_named_a_retired_namespace_names_nothing_ever() {
    let mut pool = few(1);
    let old = open(&mut pool, 1);
    store(&mut pool, old, None, 0..3);
    pool.begin_turn(old, &session("s"), 0).unwrap();
    let later = NAMESPACE_SPARED_MS + 1;
    assert_eq!(pool.retire_oldest("a", later), Some(NamespaceId([1; 32])));
    assert_eq!(pool.lookup(old, &hashes(0..3), later), Err(PoolError::NamespaceUnknown), "at once");
    retire_all(&mut pool);
    let new = open(&mut pool, 2);
    assert_eq!(new.0, old.0, "the place is taken again");
    store(&mut pool, new, None, 0..3);
    pool.begin_turn(new, &session("s"), later).unwrap();
    assert_eq!(pool.lookup(old, &hashes(0..3), later), Err(PoolError::NamespaceUnknown));
    assert_eq!(pool.page_key(old, &hash(0)), None);
    assert_eq!(pool.begin_offload(ask(old, None, &[hash(9)]), later), Err(PoolError::NamespaceUnknown));
    assert_eq!(pool.begin_reload(read(old, &[hash(0)]), later), Err(PoolError::NamespaceUnknown));
    assert_eq!(pool.session_record(old, &session("s"), later), None);
    assert_eq!(pool.prefill_us(old, 1), None);
    assert_eq!((pool.evict_namespace(Some(old)), pool.demote_all(Some(old))), (0, 0));
    assert_eq!(present(&mut pool, new, 0..3), 3, "nothing of it was done to who has its place");
}

/// One namespace whose place another one has by now, with pages and a session of the same names.
fn replaced(before: impl FnOnce(&mut Pool, NamespaceIndex)) -> (Pool, NamespaceIndex, NamespaceIndex) {
    let mut pool = few(1);
    let old = open(&mut pool, 1);
    before(&mut pool, old);
    let later = NAMESPACE_SPARED_MS + 1;
    assert_eq!(pool.retire_oldest("a", later), Some(NamespaceId([1; 32])));
    retire_all(&mut pool);
    let new = open(&mut pool, 2);
    assert_eq!((new.0, new == old), (old.0, false));
    store(&mut pool, new, None, 0..3);
    write_all(&mut pool);
    pool.begin_turn(new, &session("s"), later).unwrap();
    pool.end_turn(new, &session("s"), end_turn(0, &hashes(0..3)), later).unwrap();
    (pool, old, new)
}

#[test]
fn what_is_asked_without_an_answer_of_a_retired_namespace_is_done_to_no_other() {
    let (mut pool, old, new) = replaced(|_, _| ());
    let nowhere = NamespaceIndex(900, 0);
    pool.tell_slots();
    assert_eq!(pool.take_effects().used.len(), 0);
    for gone in [old, nowhere] {
        pool.touch_pages(gone, &hashes(0..3), 0);
        pool.leave_prefix(gone, &hash(2), 0, 0);
        assert_eq!(
            (pool.list_start(gone, None, &hashes(0..3)), pool.list_chunks(gone, &hash(2), 9)),
            (None, vec![])
        );
        let to = pool.list_start(new, None, &hashes(0..3)).unwrap();
        pool.extend_list(gone, &session("s"), None, to, 0);
        assert_eq!(
            pool.continue_session(
                gone,
                &session("t"),
                &FromElsewhere { turns: 1, start: Some(to), ..FromElsewhere::default() },
                0
            ),
            Err(PoolError::NamespaceUnknown)
        );
        assert_eq!(pool.begin_promote(gone, &hashes(0..3), 0, &mut 0, 0), Err(PoolError::NamespaceUnknown));
        assert_eq!(pool.unpin(gone, &hash(2)), Err(PoolError::NamespaceUnknown));
        assert_eq!((pool.pin_ends_in(gone, &hash(2), 0), pool.pin_record(gone, &hash(2), 0)), (None, None));
        assert_eq!(pool.outline_of(gone, &hashes(0..3)), []);
        assert!(!pool.has_of_session(gone, &session("s")));
        assert_eq!(pool.learned(Some(gone)), Err(PoolError::NamespaceUnknown));
        let effects = pool.take_effects();
        assert_eq!(
            (effects.used, effects.notes),
            (vec![], vec![]),
            "{gone:?}: nothing was used, and nothing leaves"
        );
        pool.check().unwrap();
    }
    // Asked of the one that is there, each of these says or does something.
    pool.touch_pages(new, &hashes(0..3), 0);
    pool.leave_prefix(new, &hash(2), 0, 0);
    assert!(!pool.take_effects().used.is_empty() && pool.list_chunks(new, &hash(2), 9).len() == 1);
}

#[test]
fn what_began_before_its_namespace_retired_ends_without_touching_who_has_its_place() {
    let (mut pinning, mut again, mut offloading) = (None, None, None);
    let list = hashes(0..3);
    let (mut pool, old, new) = replaced(|pool, old| {
        store(pool, old, None, 0..3);
        pinning = Some(pool.begin_pin(old, &list, 0, 0).unwrap());
        let start = pool.list_start(old, None, &list).unwrap();
        again = Some(pool.begin_pin_again(old, hash(2), start, 0, 0).unwrap());
        offloading = Some(pool.start_offload(&ask(old, None, &[hash(7)]), 0).unwrap());
    });
    let (mut pinning, mut again, mut offloading) = (pinning.unwrap(), again.unwrap(), offloading.unwrap());
    assert!(pool.pin_some(&mut pinning, &list));
    assert_eq!(pool.end_pin(pinning, 0).pages, 0);
    assert!(pool.pin_again(&mut again));
    assert_eq!(pool.end_pin(again, 0).pages, 0);
    assert_eq!((pool.stats().pins, pool.stats().protected_pages), (0, 0));
    let refused = pool.offload_some(&ask(old, None, &[hash(7)]), &mut offloading, 0);
    assert_eq!(refused, Err(PoolError::NamespaceUnknown));
    assert_eq!((pool.stats().leases, pool.stats().entries, present(&mut pool, new, 0..3)), (0, 3, 3));
    pool.check().unwrap();
}

#[test]
fn a_namespace_in_use_does_not_make_way() {
    let mut pool = few(2);
    let (leased, recent) = (open(&mut pool, 1), open(&mut pool, 2));
    store(&mut pool, leased, None, 0..2);
    pool.begin_reload(read(leased, &hashes(0..2)), 0).unwrap();
    store(&mut pool, recent, None, 0..2);
    let later = NAMESPACE_SPARED_MS + 1;
    pool.use_namespace(&NamespaceId([2; 32]), later - 5).unwrap();
    assert_eq!(pool.retire_oldest("a", later), None, "one has slots under a lease, one was used just now");
    pool.client_gone(CLIENT, later);
    assert_eq!(pool.retire_oldest("a", later), Some(NamespaceId([1; 32])));
    retire_all(&mut pool);
}

#[test]
fn what_holds_nothing_makes_way_before_what_holds_pages() {
    let mut pool = few(2);
    let full = open(&mut pool, 1);
    store(&mut pool, full, None, 0..2);
    open(&mut pool, 2);
    for at in 3..40 {
        pool.use_namespace(&NamespaceId([at - 1; 32]), 1).unwrap();
        assert_eq!(pool.retire_oldest("a", 1), Some(NamespaceId([at - 1; 32])));
        open(&mut pool, at);
        retire_all(&mut pool);
    }
    assert_eq!(present(&mut pool, full, 0..2), 2);
}

#[test]
fn all_of_a_namespace_goes_in_bounded_steps_and_what_is_in_flight_first_ends() {
    let mut config = config(1 << 30);
    config.slab_count = 200;
    config.limits.namespaces_max = 2;
    config.limits.protected_percent = 50;
    let mut pool = Pool::new(config).unwrap();
    let (old, other) = (open(&mut pool, 1), open(&mut pool, 2));
    store(&mut pool, old, None, 0..1000); // one branch: its leaf is far from its root
    store(&mut pool, old, Some(999), 1000..1200);
    pool.pin(old, &hashes(0..900), 0, 0).unwrap();
    for name in 0..50 {
        pool.begin_turn(old, &session(&format!("s{name}")), 0).unwrap();
        pool.end_turn(old, &session(&format!("s{name}")), end_turn(0, &hashes(0..40)), 0).unwrap();
    }
    store(&mut pool, other, None, 0..5);
    let writes = pool.next_writes(3 * u64::from(BYTES), 0);
    let later = NAMESPACE_SPARED_MS + 1;
    pool.use_namespace(&NamespaceId([2; 32]), later).unwrap();
    assert_eq!(pool.retire_oldest("a", later), Some(NamespaceId([1; 32])));
    assert!(retire_all(&mut pool) > 3, "in one call it would hold everybody up");
    assert_eq!(pool.retiring(), 1, "pages that are being written keep their slots");
    for (at, write) in writes.iter().enumerate() {
        pool.written(write.page, 0, NvmePlace { segment: 0, generation: 0, block: at as u32 }, later);
    }
    retire_all(&mut pool);
    let stats = pool.stats();
    assert_eq!((pool.retiring(), stats.namespaces, stats.sessions, stats.pins), (0, 1, 0, 0));
    assert_eq!((stats.entries, stats.dram.used_bytes), (5, 5 * u64::from(BYTES)));
    assert_eq!(present(&mut pool, other, 0..5), 5);
}

#[test]
fn memory_of_a_retired_tenant_is_renewed_for_the_next_one_whatever_its_number() {
    let mut pool = few(1);
    let mut renewed = 0;
    for at in 0..3000u32 {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&at.to_le_bytes());
        let desc =
            NamespaceDesc { id: NamespaceId(id), tenant: format!("tenant {at}"), ..desc(1, "", 60 << 10, 1) };
        let now = u64::from(at) * (NAMESPACE_SPARED_MS + 1);
        let ns = pool.open_namespace(desc).unwrap();
        store(&mut pool, ns, None, 0..1);
        renewed += pool.take_effects().renew.len();
        let SlotKey { slab, .. } = pool.begin_reload(read(ns, &hashes(0..1)), now).map(slot_of).unwrap();
        assert_eq!(pool.slab_tenant(slab).unwrap().0, format!("tenant {at}"), "nobody gets another's memory");
        pool.client_gone(CLIENT, now);
        pool.retire_oldest("a", now + NAMESPACE_SPARED_MS).unwrap();
        while pool.retire_step() {}
    }
    assert!(renewed >= 2998, "every change of tenant renews: {renewed}");
    pool.check().unwrap();
}

fn slot_of(plan: ReloadPlan) -> SlotKey {
    match plan.pages[0] {
        ReloadStep::Ready { slot, .. } => slot,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn strangers_wait_for_their_namespace_and_only_whole_prefixes_are_taken_in() {
    let mut pool = few(4);
    let found = [(2, Some(1), 2), (1, Some(0), 1), (0, None, 0), (1, Some(0), 8), (9, Some(8), 9)];
    let mut found: Vec<Stranger> =
        found.iter().map(|(at, parent, block)| stranger(*at, *parent, *block)).collect();
    found.extend([stranger(20, Some(21), 20), stranger(21, Some(20), 21), stranger(40, Some(40), 40)]);
    found.push(Stranger { shard: 7, ..stranger(30, None, 30) });
    found.push(Stranger { bytes: 1, ..stranger(31, None, 31) });
    found.push(Stranger { tail_tokens: 16, ..stranger(32, None, 32) });
    keep(&mut pool, 7, found);
    let stats = pool.stats();
    assert_eq!((stats.stranger_namespaces, stats.stranger_extents), (1, 11));
    assert_eq!(pool.forget_strangers(STRANGERS_MS_MAX - 1), (false, vec![]), "they wait");
    let (ns, adopted) = adopt(&mut pool, 7);
    assert_eq!((adopted, present(&mut pool, ns, 0..3)), (3, 3));
    assert_eq!(pool.forget_strangers(0), (false, vec![NamespaceId([7; 32])]));
    assert_eq!(dead_blocks(&mut pool), [1, 9, 20, 21, 30, 31, 32, 40]);
    assert_eq!((pool.stats().stranger_namespaces, pool.stats().stranger_bytes), (0, 0));
    let plan = pool.begin_reload(read(ns, &hashes(0..3)), 0).unwrap();
    let ReloadStep::Promote(promotion) = plan.pages[1] else { panic!("{plan:?}") };
    let latest = NvmePlace { segment: 1, generation: 0, block: 8 };
    assert_eq!((promotion.place, promotion.checksum), (latest, 5));
    pool.check().unwrap();
}

#[test]
fn pages_of_several_shards_are_taken_in_when_all_are_there() {
    let mut pool = few(4);
    let shard = |at, shard, block| Stranger { shard, shards: 2, ..stranger(at, None, block) };
    keep(&mut pool, 7, [shard(0, 0, 1), shard(0, 1, 2), shard(5, 1, 3)]);
    let ns = pool.open_namespace(desc(7, "a", u64::from(BYTES), 2)).unwrap();
    let mut adoption = pool.begin_adoption(ns).unwrap().plan(pool.namespace_desc(ns).unwrap());
    while pool.adopt(&mut adoption, u64::MAX) {}
    assert_eq!((adoption.adopted(), present(&mut pool, ns, 0..1)), (1, 1));
    pool.forget_strangers(0);
    assert_eq!(dead_blocks(&mut pool), [3]);
    pool.check().unwrap();
}

#[test]
fn a_long_prefix_is_taken_in_by_bounded_steps_beside_whoever_offloads_and_reclaims() {
    let mut pool = few(4);
    keep(&mut pool, 7, (0..4000).map(|at| stranger(at, at.checked_sub(1), 4000 - at)));
    let ns = open(&mut pool, 7);
    let mut adoption = pool.begin_adoption(ns).unwrap().plan(pool.namespace_desc(ns).unwrap());
    store(&mut pool, ns, None, 0..2); // offloaded anew before it was taken in
    let gone = NvmePlace { segment: 1, generation: 0, block: 4000 - 3000 };
    assert_eq!(pool.reclaim_verdict(&NamespaceId([7; 32]), &hash(3000), 0, gone), Reclaim::Dead);
    let mut steps = 1;
    while pool.adopt(&mut adoption, u64::MAX) {
        steps += 1;
        pool.check().unwrap();
    }
    assert!(steps > 5, "in one call it would hold everybody up");
    assert_eq!(present(&mut pool, ns, 0..4000), 3000, "up to the page whose segment was reclaimed");
    while pool.forget_strangers(0).0 {}
    assert_eq!(dead_places(&mut pool).len(), 2 + 1 + 999);
    assert_eq!(pool.stats().stranger_extents, 0);
    pool.check().unwrap();
}

#[test]
fn strangers_are_bounded_by_age_and_number_and_go_with_their_device() {
    let mut pool = few(4);
    keep(&mut pool, 7, (0..5000).map(|at| stranger(at, at.checked_sub(1), at)));
    let (more, gone) = pool.forget_strangers(STRANGERS_MS_MAX);
    assert!(more && gone.is_empty(), "a bounded number a call");
    let (more, gone) = pool.forget_strangers(STRANGERS_MS_MAX);
    assert_eq!((more, gone), (false, vec![NamespaceId([7; 32])]));
    assert_eq!(dead_places(&mut pool).len(), 5000);

    let mut config = config(1 << 30);
    config.limits.pages_max = 10;
    let mut pool = Pool::new(config).unwrap();
    keep(&mut pool, 7, (0..30).map(|at| stranger(at, at.checked_sub(1), at)));
    assert_eq!(pool.stats().stranger_extents, 10);
    assert_eq!(
        dead_blocks(&mut pool),
        (10..30).collect::<Vec<_>>(),
        "nothing could be read without the first ones"
    );
    let mut sweep = pool.nvme_lost();
    while !pool.lose_some(&mut sweep) {}
    assert_eq!(pool.stats().stranger_extents, 0);
    assert_eq!(adopt(&mut pool, 7).1, 0);
}

#[test]
fn the_bound_on_strangers_counts_pages_not_shards() {
    let mut config = config(1 << 30);
    config.limits.pages_max = 10;
    let mut pool = Pool::new(config).unwrap();
    let shard = |at: u32, shard| Stranger {
        shard,
        shards: 2,
        ..stranger(at, at.checked_sub(1), at * 2 + u32::from(shard))
    };
    keep(&mut pool, 7, (0..10).flat_map(|at| [shard(at, 0), shard(at, 1)]));
    assert_eq!(pool.stats().stranger_extents, 20);
}

#[test]
fn a_full_index_starts_with_whole_prefixes_of_the_latest_use() {
    let mut config = config(1 << 30);
    config.limits.pages_max = 7;
    let mut pool = Pool::new(config).unwrap();
    let mut found = vec![
        stranger(0, None, 0),
        stranger(1, Some(0), 1),
        // Nothing was written on this one for longest.
        stranger(10, None, 2),
        stranger(11, Some(10), 3),
        // Nobody can read this one: the page before it is not there.
        stranger(21, Some(20), 8),
        stranger(2, Some(1), 4),
        stranger(3, Some(2), 5),
        stranger(12, Some(10), 6),
        stranger(4, Some(3), 7),
    ];
    // A page that was written again is one page, and its first copy dead.
    found.push(stranger(0, None, 9));
    assert_eq!((keep(&mut pool, 7, found), pool.stats().crowded_out_pages), (1, 1), "what goes is told");
    assert_eq!(
        dead_blocks(&mut pool),
        [0, 3, 8],
        "the replaced copy, the oldest tail, what hangs on nothing"
    );
    let (ns, adopted) = adopt(&mut pool, 7);
    assert_eq!((adopted, present(&mut pool, ns, 0..5)), (7, 5));
}

#[test]
fn what_a_full_index_has_no_room_for_when_a_namespace_is_opened_is_counted() {
    let mut config = config(1 << 30);
    config.limits.pages_max = 6;
    let mut pool = Pool::new(config).unwrap();
    let other = NamespaceId([8; 32]);
    let four = (0..4).map(|at| (other, stranger(at, at.checked_sub(1), 100 + at)));
    let two = (0..2).map(|at| (NamespaceId([7; 32]), stranger(at, at.checked_sub(1), at)));
    assert_eq!(pool.keep_strangers(four.chain(two)), 0, "so many fit");
    let ns = open(&mut pool, 9);
    store(&mut pool, ns, None, 0..3);
    assert_eq!(adopt(&mut pool, 8).1, 3);
    assert_eq!(adopt(&mut pool, 7).1, 0);
    assert_eq!(pool.stats().crowded_out_pages, 3, "the tail of one, and all of the other");
}

#[test]
fn the_reclaim_of_a_segment_drops_its_strangers() {
    let mut pool = few(4);
    keep(&mut pool, 7, [stranger(0, None, 0), stranger(1, Some(0), 1)]);
    let id = NamespaceId([7; 32]);
    assert_eq!(
        pool.kept_by_segment().get(1),
        None,
        "nothing of it is to stay: it is the first to be emptied"
    );
    let place = NvmePlace { segment: 1, generation: 0, block: 1 };
    assert_eq!(pool.reclaim_verdict(&id, &hash(1), 0, place), Reclaim::Dead);
    assert_eq!(pool.stats().stranger_extents, 1);
    let (ns, adopted) = adopt(&mut pool, 7);
    assert_eq!((adopted, present(&mut pool, ns, 0..2)), (1, 1));
}

/// The segment may be kept after all: its time was over, or a page of it could not move.
#[test]
fn what_reclaim_drops_of_strangers_is_dead_whatever_becomes_of_their_segment() {
    let mut pool = few(4);
    keep(&mut pool, 7, [stranger(0, None, 0), stranger(1, Some(0), 1)]);
    let id = NamespaceId([7; 32]);
    let place = |block| NvmePlace { segment: 1, generation: 0, block };
    assert_eq!(pool.reclaim_verdict(&id, &hash(1), 0, place(1)), Reclaim::Dead);
    assert_eq!(dead_blocks(&mut pool), [1], "who counts what is alive in the segment has to hear of it");
    assert_eq!(pool.reclaim_verdict(&id, &hash(1), 0, place(1)), Reclaim::Dead);
    assert_eq!(dead_blocks(&mut pool), [], "once");
    assert_eq!(pool.stats().stranger_drops, 1, "it was kept for somebody who may come");
    let ns = open(&mut pool, 7);
    assert_eq!(
        pool.reclaim_verdict(&id, &hash(0), 0, place(0)),
        Reclaim::Dead,
        "opened, and not taken in yet"
    );
    assert_eq!(dead_blocks(&mut pool), [0]);
    assert_eq!((pool.stats().stranger_extents, present(&mut pool, ns, 0..1)), (0, 0));
    pool.check().unwrap();
}
