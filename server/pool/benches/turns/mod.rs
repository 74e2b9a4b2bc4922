//! Turns to measure: sessions of one length, played against a pool. Owns: the calls of a turn, CPU time. Must not know: what is
//! measured.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub, reason = "a bench fails by panicking")]

use turnkv_pool::{
    Admit, ClientId, EndTurn, Limits, NamespaceDesc, NamespaceIndex, OffloadAsk, Outcome, PolicyKind, Pool,
    PoolConfig, ReloadAsk,
};
use turnkv_proto::{BlockHash, NamespaceId, SessionId, Shards};

const CLIENT: ClientId = ClientId(1);
/// Pages of a session.
pub const SESSION_PAGES: u64 = 200;

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Time that this thread spent on a core: others share the machine.
pub fn cpu_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// A whole turn: reloads the first `found` pages (none: what the pool has), offloads the rest, ends.
pub fn turn(
    pool: &mut Pool,
    ns: NamespaceIndex,
    session: &SessionId,
    hashes: &[BlockHash],
    found: Option<usize>,
    now: u64,
) {
    let begun = pool.begin_turn(ns, session, now).unwrap();
    let found = found.unwrap_or(begun.pages as usize);
    if found > 0 {
        let (hashes, session) = (&hashes[..found], Some(session));
        let ask = ReloadAsk { ns, hashes, shards: Shards::one(0), client: CLIENT, session, hold: false };
        let plan = pool.begin_reload(ask, now).unwrap();
        pool.end_reload(plan.lease.unwrap(), CLIENT, &[], now).unwrap();
    }
    let parent = found.checked_sub(1).map(|at| hashes[at]);
    if found < hashes.len() {
        let (rest, session) = (&hashes[found..], Some(session));
        let ask = OffloadAsk {
            ns,
            session,
            parent,
            hashes: rest,
            shards: Shards::one(0),
            tail_tokens: 0,
            client: CLIENT,
        };
        let plan = pool.begin_offload(ask, now).unwrap();
        let granted = |(_, outcome): &(usize, &Outcome)| matches!(outcome, Outcome::Granted(_));
        let filled: Vec<(u32, u64)> =
            plan.outcomes.iter().enumerate().filter(granted).map(|(at, _)| (at as u32, 0)).collect();
        if let Some(lease) = plan.lease {
            pool.commit_offload(lease, CLIENT, &filled, now).unwrap();
        }
    }
    let end = EndTurn {
        keep: 0,
        hashes,
        tail_tokens: 0,
        expected_return_ms: 0,
        ttl_ms: 0,
        priority: 0,
        last: false,
    };
    pool.end_turn(ns, session, end, now).unwrap();
}

pub fn chain(session: u64) -> Vec<BlockHash> {
    let mut before = BlockHash::chain(None, &[session as u32]);
    let link = |page: u64| {
        before = BlockHash::chain(Some(&before), &[page as u32]);
        before
    };
    (0..SESSION_PAGES).map(link).collect()
}

/// One namespace, with room for so many pages of 4 KiB.
pub fn pool(policy: PolicyKind, slots: u64) -> (Pool, NamespaceIndex) {
    let config = PoolConfig {
        slab_bytes: slots * 4096,
        slab_count: 1,
        nvme_bytes: 0,
        free_slots_percent: 0,
        limits: Limits { lease_pages_max: 8192, ..Limits::default() },
        policy,
        nvme_admit: Admit::All,
        nvme_bytes_per_day: 0,
    };
    let mut pool = Pool::new(config).unwrap();
    let (id, tenant) = (NamespaceId([1; 32]), String::new());
    let desc = NamespaceDesc { id, tenant, shard_bytes: 4096, page_tokens: 16, shards: 1 };
    let ns = pool.open_namespace(desc).unwrap();
    (pool, ns)
}
