//! What a verb of sessions costs, all its slices together, on long sessions whose pages are in DRAM, under the default policy.
//! Owns: the measurement. Must not know: how lists are kept.
#![allow(clippy::print_stdout, reason = "the table is the product")]
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::time::{Duration, Instant};
use turnkv_pool::{
    Admit, ClientId, EndTurn, Limits, NamespaceDesc, NamespaceIndex, OffloadAsk, Outcome, PolicyKind, Pool,
    PoolConfig,
};
use turnkv_proto::{BlockHash, NamespaceId, SessionId, Shards};

const PAGE: u64 = 4096;
const CLIENT: ClientId = ClientId(1);
const LENGTHS: [usize; 3] = [4_000, 40_000, 131_072];
/// Times that each verb is measured; the middle one counts.
const ROUNDS: usize = 5;

fn main() {
    println!(
        "| verb | {} |\n|---|---|---|---|",
        LENGTHS.map(|pages| format!("ms, {pages} pages")).join(" | ")
    );
    let tables = LENGTHS.map(measure);
    for (at, (verb, _)) in tables[0].iter().enumerate() {
        let row = tables.iter().map(|table| format!("{:.3}", table[at].1.as_secs_f64() * 1e3));
        println!("| {verb} | {} |", row.collect::<Vec<_>>().join(" | "));
    }
}

fn name(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

fn pool(pages: usize) -> (Pool, NamespaceIndex) {
    let slab_bytes = (pages as u64 * 2 + 64) * PAGE;
    let limits = Limits {
        client_slots_percent: 100,
        client_slots_max: 1 << 20,
        lease_pages_max: 1 << 20,
        ..Limits::default()
    };
    let mut pool = Pool::new(PoolConfig {
        slab_bytes,
        slab_count: 1,
        nvme_bytes: slab_bytes * 4,
        nvme_admit: Admit::All,
        nvme_bytes_per_day: 0,
        free_slots_percent: 0,
        limits,
        policy: PolicyKind::Session,
    })
    .unwrap();
    let desc = NamespaceDesc {
        id: NamespaceId([1; 32]),
        tenant: String::new(),
        shard_bytes: PAGE,
        page_tokens: 16,
        shards: 1,
    };
    let ns = pool.open_namespace(desc).unwrap();
    (pool, ns)
}

fn chain(seed: u32, pages: usize) -> Vec<BlockHash> {
    let mut hashes: Vec<BlockHash> = Vec::with_capacity(pages);
    for page in 0..pages as u32 {
        hashes.push(BlockHash::chain(hashes.last(), &[seed, page]));
    }
    hashes
}

/// Offloads and ends a turn in calls of a size that a client uses.
fn store(pool: &mut Pool, ns: NamespaceIndex, session: &SessionId, list: &[BlockHash]) {
    pool.begin_turn(ns, session, 0).unwrap();
    let mut parent = None;
    for part in list.chunks(4_096) {
        let ask = OffloadAsk {
            ns,
            session: Some(session),
            parent,
            hashes: part,
            shards: Shards::one(0),
            tail_tokens: 0,
            client: CLIENT,
        };
        let plan = pool.begin_offload(ask, 0).unwrap();
        assert!(plan.outcomes.iter().all(|outcome| matches!(outcome, Outcome::Granted(_))));
        let filled: Vec<(u32, u64)> = (0..part.len() as u32).map(|at| (at, 0)).collect();
        pool.commit_offload(plan.lease.unwrap(), CLIENT, &filled, 0).unwrap();
        parent = part.last().copied();
    }
    for (at, part) in list.chunks(65_536).enumerate() {
        pool.end_turn(ns, session, end(at * 65_536, part), 0).unwrap();
    }
}

fn end(keep: usize, hashes: &[BlockHash]) -> EndTurn<'_> {
    EndTurn {
        keep: keep as u32,
        hashes,
        tail_tokens: 0,
        expected_return_ms: 0,
        ttl_ms: 0,
        priority: 0,
        last: false,
    }
}

fn measure(pages: usize) -> Vec<(&'static str, Duration)> {
    let (mut pool, ns) = pool(pages);
    let (trunk, fork, list) = (name("trunk"), name("fork"), chain(1, pages));
    store(&mut pool, ns, &trunk, &list);
    let half = pages as u32 / 2;
    let mut table = Vec::new();
    let mut time = |verb: &'static str, pool: &mut Pool, call: &mut dyn FnMut(&mut Pool)| {
        let mut took: Vec<Duration> = (0..ROUNDS)
            .map(|_| {
                let began = Instant::now();
                call(pool);
                began.elapsed()
            })
            .collect();
        took.sort();
        table.push((verb, took[ROUNDS / 2]));
    };
    time("fork, all", &mut pool, &mut |pool| {
        pool.fork(ns, &trunk, &fork, 0, 0).unwrap();
    });
    time("fork, the first page", &mut pool, &mut |pool| {
        pool.fork(ns, &trunk, &name("one"), 1, 0).unwrap();
    });
    time("begin turn", &mut pool, &mut |pool| {
        pool.begin_turn(ns, &trunk, 0).unwrap();
    });
    time("end turn, nothing new", &mut pool, &mut |pool| {
        pool.end_turn(ns, &trunk, end(pages, &[]), 0).unwrap();
    });
    let told = pages.min(65_536);
    time("end turn, all told", &mut pool, &mut |pool| {
        pool.end_turn(ns, &trunk, end(pages - told, &list[pages - told..]), 0).unwrap();
    });
    time("end turn, expected and important", &mut pool, &mut |pool| {
        let end = EndTurn { expected_return_ms: 60_000, priority: 1, ..end(pages, &[]) };
        pool.end_turn(ns, &trunk, end, 0).unwrap();
    });
    time("begin turn, expected", &mut pool, &mut |pool| {
        pool.expect_return(ns, &trunk, 60_000, 0).unwrap();
        pool.begin_turn(ns, &trunk, 0).unwrap();
    });
    time("describe", &mut pool, &mut |pool| drop(pool.describe_session(ns, &trunk, 0).unwrap()));
    time("hashes", &mut pool, &mut |pool| drop(pool.session_hashes(ns, &trunk).unwrap()));
    time("record", &mut pool, &mut |pool| drop(pool.session_record(ns, &trunk, 0).unwrap()));
    time("list", &mut pool, &mut |pool| drop(pool.list_sessions(None, 0, 0)));
    for at in 0..ROUNDS {
        pool.fork(ns, &trunk, &name(&format!("cut {at}")), 0, 0).unwrap();
    }
    let mut at = 0;
    time("supersede half, shared", &mut pool, &mut |pool| {
        pool.supersede(ns, &name(&format!("cut {at}")), half, 0).unwrap();
        at += 1;
    });
    let began = Instant::now();
    for other in ["fork", "one", "cut 0", "cut 1", "cut 2", "cut 3", "cut 4"] {
        pool.close(ns, &name(other), 0).unwrap();
    }
    table.push(("close, shared (seven)", began.elapsed()));
    let began = Instant::now();
    pool.close(ns, &trunk, 0).unwrap();
    table.push(("close, alone and protected", began.elapsed()));
    table
}
