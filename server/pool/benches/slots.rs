//! What an offload costs the pool a page, where what slots hold is told and where it is not. Owns: the measurement. Must not know:
//! who keeps a table of it.
#![allow(clippy::print_stdout, reason = "the table is the product")]
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

use std::hint::black_box;
use std::time::{Duration, Instant};
use turnkv_pool::{Admit, ClientId, Limits, NamespaceDesc, OffloadAsk, PolicyKind, Pool, PoolConfig};
use turnkv_proto::{BlockHash, NamespaceId, Shards};

const PAGE: u64 = 4096;
const CLIENT: ClientId = ClientId(1);
/// Pages of one offload, and offloads of one round: twice what DRAM holds, so that half of them evict.
const PAGES: usize = 64;
const OFFLOADS: usize = 512;
/// Rounds of each, by turns; the middle one counts.
const ROUNDS: usize = 15;

fn main() {
    let (mut told, mut untold) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        untold.push(round(false));
        told.push(round(true));
    }
    let middle = |mut rounds: Vec<Duration>| {
        rounds.sort_unstable();
        rounds[ROUNDS / 2].as_nanos() as f64 / (PAGES * OFFLOADS) as f64
    };
    let (told, untold) = (middle(told), middle(untold));
    println!(
        "| what slots hold is | ns a page |\n|---|---|\n| not told | {untold:.0} |\n| told | {told:.0} |"
    );
}

fn round(tells: bool) -> Duration {
    let slab_bytes = (PAGES * OFFLOADS / 2) as u64 * PAGE;
    let mut pool = Pool::new(PoolConfig {
        slab_bytes,
        slab_count: 1,
        nvme_bytes: 0,
        nvme_admit: Admit::All,
        nvme_bytes_per_day: 0,
        free_slots_percent: 0,
        limits: Limits { client_slots_percent: 100, ..Limits::default() },
        policy: PolicyKind::Lru,
    })
    .unwrap();
    if tells {
        pool.tell_slots();
    }
    let desc = NamespaceDesc {
        id: NamespaceId([1; 32]),
        tenant: "a".to_owned(),
        shard_bytes: PAGE,
        page_tokens: 16,
        shards: 1,
    };
    let ns = pool.open_namespace(desc).unwrap();
    let began = Instant::now();
    for offload in 0..OFFLOADS as u32 {
        let mut hashes: Vec<BlockHash> = Vec::with_capacity(PAGES);
        for page in 0..PAGES as u32 {
            let mut hash = [7; 32];
            hash[..8].copy_from_slice(&(u64::from(offload) << 32 | u64::from(page)).to_le_bytes());
            hashes.push(BlockHash(hash));
        }
        let shards = Shards::one(0);
        let ask = OffloadAsk {
            ns,
            session: None,
            parent: None,
            hashes: &hashes,
            shards,
            tail_tokens: 0,
            client: CLIENT,
        };
        let plan = pool.begin_offload(ask, u64::from(offload)).unwrap();
        drop(black_box(pool.take_effects()));
        let filled: Vec<(u32, u64)> = (0..PAGES as u32).map(|at| (at, u64::from(at))).collect();
        pool.commit_offload(plan.lease.unwrap(), CLIENT, &filled, u64::from(offload)).unwrap();
        drop(black_box(pool.take_effects()));
    }
    began.elapsed()
}
