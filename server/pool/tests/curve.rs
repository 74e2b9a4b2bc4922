//! What the pool tells its curves: which calls are references, of which shard, and what a namespace has of the tiers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use turnkv_pool::{
    Admit, ClientId, CurveTuning, Limits, MissRatioCurve, NamespaceDesc, NamespaceIndex, NamespaceRoom,
    OffloadAsk, Outcome, PolicyKind, Pool, PoolConfig, PoolError, ReloadAsk,
};
use turnkv_proto::{BlockHash, NamespaceId, Shards};

const CLIENT: ClientId = ClientId(1);
const ONE: Shards = Shards::one(0);
const SLAB: u64 = 1 << 20;
const PAGE: u64 = 64 << 10;

fn pool(nvme_bytes: u64) -> Pool {
    let (limits, policy) = (Limits::default(), PolicyKind::Lru);
    Pool::new(PoolConfig {
        slab_bytes: SLAB,
        slab_count: 4,
        nvme_bytes,
        free_slots_percent: 0,
        limits,
        policy,
        nvme_admit: Admit::All,
        nvme_bytes_per_day: 0,
    })
    .unwrap()
}

fn open(pool: &mut Pool, id: u8, shards: u16) -> NamespaceIndex {
    let (id, tenant) = (NamespaceId([id; 32]), String::new());
    pool.open_namespace(NamespaceDesc { id, tenant, shard_bytes: PAGE, page_tokens: 16, shards }).unwrap()
}

fn chain(seed: u8, pages: u8) -> Vec<BlockHash> {
    (0..pages).map(|page| BlockHash([seed * 16 + page + 1; 32])).collect()
}

fn offload(pool: &mut Pool, ns: NamespaceIndex, hashes: &[BlockHash], shards: Shards) {
    let (session, parent, tail_tokens, client) = (None, None, 0, CLIENT);
    let ask = OffloadAsk { ns, session, parent, hashes, shards, tail_tokens, client };
    let plan = pool.begin_offload(ask, 0).unwrap();
    if let Some(lease) = plan.lease {
        let granted = |(_, outcome): &(u32, &Outcome)| matches!(outcome, Outcome::Granted(_));
        let filled: Vec<(u32, u64)> =
            (0..).zip(&plan.outcomes).filter(granted).map(|(at, _)| (at, 0)).collect();
        pool.commit_offload(lease, CLIENT, &filled, 0).unwrap();
    }
    pool.check().unwrap();
}

fn reload(pool: &mut Pool, ns: NamespaceIndex, hashes: &[BlockHash], shards: Shards) {
    let ask = ReloadAsk { ns, hashes, shards, client: CLIENT, session: None, hold: false };
    let plan = pool.begin_reload(ask, 0).unwrap();
    if let Some(lease) = plan.lease {
        pool.end_reload(lease, CLIENT, &[], 0).unwrap();
    }
    pool.check().unwrap();
}

fn curve(pool: &Pool, ns: NamespaceIndex) -> MissRatioCurve {
    pool.miss_ratio_curve(ns, 0).unwrap()
}

#[test]
fn a_page_is_needed_when_it_is_found_or_computed_and_not_when_it_is_offered_again() {
    let mut pool = pool(0);
    let ns = open(&mut pool, 1, 1);
    let hashes = chain(0, 5);
    reload(&mut pool, ns, &hashes, ONE);
    assert_eq!(curve(&pool, ns).references, 0.0, "what was not there is counted once it is computed");
    offload(&mut pool, ns, &hashes, ONE);
    offload(&mut pool, ns, &hashes, ONE);
    assert_eq!((curve(&pool, ns).references, curve(&pool, ns).found), (5.0, 0.0));
    reload(&mut pool, ns, &hashes, ONE);
    let curve = curve(&pool, ns);
    assert_eq!((curve.references, curve.found, curve.page_bytes), (10.0, 5.0, PAGE));
    assert_eq!(curve.hit_ratio(5 * PAGE), 0.5);
}

#[test]
fn the_ranks_of_a_page_need_it_once() {
    let mut pool = pool(0);
    let ns = open(&mut pool, 1, 2);
    let hashes = chain(0, 3);
    for shard in [0, 1] {
        offload(&mut pool, ns, &hashes, Shards::one(shard));
    }
    for shard in [0, 1] {
        reload(&mut pool, ns, &hashes, Shards::one(shard));
    }
    let counted = curve(&pool, ns);
    assert_eq!((counted.references, counted.found, counted.page_bytes), (6.0, 3.0, 2 * PAGE));
    reload(&mut pool, ns, &hashes, Shards::new(0, 2).unwrap());
    let counted = curve(&pool, ns);
    assert_eq!((counted.references, counted.found), (9.0, 6.0), "both shards in one call are one use");
    let more = [&hashes[..], &chain(1, 2)].concat();
    offload(&mut pool, ns, &more, Shards::new(0, 2).unwrap());
    assert_eq!(curve(&pool, ns).references, 11.0, "a new page of two shards is one reference");
}

#[test]
fn a_page_larger_than_its_pool_is_needed_once_however_often_it_is_declined() {
    let mut pool = pool(0);
    let ns = open(&mut pool, 1, 1);
    let hashes: Vec<BlockHash> = (0..100).map(|page| BlockHash([page + 1; 32])).collect();
    for _ in 0..3 {
        offload_what_fits(&mut pool, ns, &hashes);
    }
    assert_eq!(
        curve(&pool, ns).references,
        100.0,
        "64 slots, half of them a call: pages are declined each time"
    );
}

fn offload_what_fits(pool: &mut Pool, ns: NamespaceIndex, hashes: &[BlockHash]) {
    let (session, parent, tail_tokens, client) = (None, None, 0, CLIENT);
    let ask = OffloadAsk { ns, session, parent, hashes, shards: Shards::one(0), tail_tokens, client };
    let plan = pool.begin_offload(ask, 0).unwrap();
    if let Some(lease) = plan.lease {
        let granted = |(_, outcome): &(usize, &Outcome)| matches!(outcome, Outcome::Granted(_));
        let filled = plan.outcomes.iter().enumerate().filter(granted).map(|(at, _)| (at as u32, 0));
        let filled: Vec<(u32, u64)> = filled.collect();
        pool.commit_offload(lease, CLIENT, &filled, 0).unwrap();
    }
    pool.check().unwrap();
}

#[test]
fn a_namespace_has_its_own_slabs_the_free_ones_and_a_part_of_nvme() {
    let mut pool = pool(64 << 20);
    let (one, two) = (open(&mut pool, 1, 1), open(&mut pool, 2, 1));
    assert_eq!(
        pool.namespace_room(one).unwrap(),
        NamespaceRoom { dram_bytes: 4 * SLAB, nvme_bytes: 64 << 20 },
        "nobody has used anything: all of it may be its own"
    );
    offload(&mut pool, one, &chain(0, 9), ONE);
    offload(&mut pool, two, &chain(1, 3), ONE);
    let room = |ns| pool.namespace_room(ns).unwrap();
    assert_eq!(room(one), NamespaceRoom { dram_bytes: 3 * SLAB, nvme_bytes: 48 << 20 });
    assert_eq!(room(two), NamespaceRoom { dram_bytes: 3 * SLAB, nvme_bytes: 16 << 20 });
    assert_eq!(pool.namespace_room(NamespaceIndex(7, 0)), Err(PoolError::NamespaceUnknown));
}

#[test]
fn a_pool_told_to_keep_no_curve_keeps_none() {
    let mut pool = pool(0);
    let ns = open(&mut pool, 1, 1);
    pool.tune_curves(CurveTuning { samples_max: 0, half_life_ms: 0 });
    offload(&mut pool, ns, &chain(0, 5), ONE);
    assert_eq!((curve(&pool, ns).references, curve(&pool, ns).samples), (0.0, 0));
    assert!(pool.stats().curve_bytes < 2048, "{} bytes", pool.stats().curve_bytes);
}
