//! Plain pools and calls for examples. Owns: one namespace, short ways to say a verb. Must not know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, dead_code, missing_docs, unreachable_pub)]

pub mod counted;

use turnkv_pool::*;
use turnkv_proto::{BlockHash, NamespaceId, SessionId, Shards};

pub const CLIENT: ClientId = ClientId(1);
pub const OTHER: ClientId = ClientId(2);

pub fn config(nvme_bytes: u64) -> PoolConfig {
    let limits = Limits { lease_ms: 100, lease_grace_ms: 50, client_slots_percent: 100, ..Limits::default() };
    PoolConfig {
        slab_bytes: 64 << 10,
        slab_count: 2,
        nvme_bytes,
        nvme_admit: Admit::All,
        nvme_bytes_per_day: 0,
        free_slots_percent: 0,
        limits,
        policy: PolicyKind::Lru,
    }
}

pub fn desc(at: u8, tenant: &str, shard_bytes: u64, shards: u16) -> NamespaceDesc {
    NamespaceDesc { id: NamespaceId([at; 32]), tenant: tenant.into(), shard_bytes, page_tokens: 16, shards }
}

pub fn pool_with(config: PoolConfig) -> (Pool, NamespaceIndex) {
    let mut pool = Pool::new(config).unwrap();
    let ns = pool.open_namespace(desc(1, "a", 8 << 10, 1)).unwrap();
    (pool, ns)
}

/// Places whose bytes nobody needs any more, with the bytes of each, since notes were taken last.
pub fn dead_places(pool: &mut Pool) -> Vec<(NvmePlace, u64)> {
    let dead = |(place, note)| match note {
        PlaceNote::Dead(bytes) | PlaceNote::Moved(bytes) => Some((place, bytes)),
        PlaceNote::Leaving(_) => None,
    };
    pool.take_effects().notes.into_iter().filter_map(dead).collect()
}

/// Bytes of a page of [`one_slab`].
pub const PAGE: u64 = 4096;

/// A pool of one slab with so many slots, and so many pages of NVMe.
pub fn one_slab(slots: u64, nvme_pages: u64, policy: PolicyKind) -> (Pool, NamespaceIndex) {
    let limits = Limits { client_slots_percent: 100, lease_pages_max: 100_000, ..Limits::default() };
    let slab =
        PoolConfig { slab_bytes: slots * PAGE, slab_count: 1, limits, policy, ..config(nvme_pages * PAGE) };
    let mut pool = Pool::new(slab).unwrap();
    let ns = pool.open_namespace(desc(1, "", PAGE, 1)).unwrap();
    (pool, ns)
}

pub fn pool(nvme: bool) -> (Pool, NamespaceIndex) {
    pool_with(config(if nvme { 1 << 30 } else { 0 }))
}

pub fn hash(at: u32) -> BlockHash {
    let mut bytes = [3; 32];
    bytes[..4].copy_from_slice(&at.to_le_bytes());
    BlockHash(bytes)
}

pub fn hashes(range: std::ops::Range<u32>) -> Vec<BlockHash> {
    range.map(hash).collect()
}

pub fn ask<'a>(ns: NamespaceIndex, parent: Option<u32>, hashes: &'a [BlockHash]) -> OffloadAsk<'a> {
    OffloadAsk {
        ns,
        session: None,
        parent: parent.map(hash),
        hashes,
        shards: Shards::one(0),
        tail_tokens: 0,
        client: CLIENT,
    }
}

pub fn read<'a>(ns: NamespaceIndex, hashes: &'a [BlockHash]) -> ReloadAsk<'a> {
    ReloadAsk { ns, hashes, shards: Shards::one(0), client: CLIENT, session: None, hold: false }
}

/// Offloads pages that are all granted, and returns their keys.
pub fn store(
    pool: &mut Pool,
    ns: NamespaceIndex,
    parent: Option<u32>,
    range: std::ops::Range<u32>,
) -> Vec<PageKey> {
    let plan = pool.begin_offload(ask(ns, parent, &hashes(range.clone())), 0).unwrap();
    let filled: Vec<(u32, u64)> = (0..range.len() as u32).map(|at| (at, u64::from(at))).collect();
    let done = pool.commit_offload(plan.lease.unwrap(), CLIENT, &filled, 0).unwrap();
    assert_eq!(done.kept.len(), range.len());
    done.kept
}

/// The end of a session's turn that has these pages, all its own: offloads what is granted. What was said of each page, and
/// the pages kept.
pub fn finish_turn(
    pool: &mut Pool,
    ns: NamespaceIndex,
    session: &SessionId,
    hashes: &[BlockHash],
    priority: u32,
    now: Now,
) -> (Vec<Outcome>, Vec<PageKey>) {
    let plan =
        pool.begin_offload(OffloadAsk { session: Some(session), ..ask(ns, None, hashes) }, now).unwrap();
    let granted = |(_, outcome): &(u32, &Outcome)| matches!(outcome, Outcome::Granted(_));
    let filled: Vec<(u32, u64)> = (0..).zip(&plan.outcomes).filter(granted).map(|(at, _)| (at, 0)).collect();
    let kept = plan.lease.map(|lease| pool.commit_offload(lease, CLIENT, &filled, now).unwrap().kept);
    let end =
        EndTurn { keep: 0, hashes, tail_tokens: 0, expected_return_ms: 0, ttl_ms: 0, priority, last: false };
    pool.end_turn(ns, session, end, now).unwrap();
    (plan.outcomes, kept.unwrap_or_default())
}

pub fn write_all(pool: &mut Pool) {
    let some = |pool: &mut Pool| Some(pool.next_writes(u64::MAX, 0)).filter(|some| !some.is_empty());
    let all: Vec<WriteBehind> = std::iter::from_fn(|| some(pool)).flatten().collect();
    for (at, write) in all.into_iter().enumerate() {
        assert!(pool.written(
            write.page,
            write.shard,
            NvmePlace { segment: write.page.index as u16, generation: 0, block: at as u32 },
            0
        ));
    }
}

pub fn present(pool: &mut Pool, ns: NamespaceIndex, range: std::ops::Range<u32>) -> u32 {
    pool.lookup(ns, &hashes(range), 0).unwrap().present
}

pub fn session(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

pub fn end_turn(keep: u32, hashes: &[BlockHash]) -> EndTurn<'_> {
    EndTurn { keep, hashes, tail_tokens: 0, expected_return_ms: 0, ttl_ms: 0, priority: 0, last: false }
}
