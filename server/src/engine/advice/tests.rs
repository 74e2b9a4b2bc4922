//! The arithmetic of advice, on a curve that can be followed by hand.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::{Facts, GIB, advise};
use crate::engine::stats::TierName;
use turnkv_pool::{
    ClientId, CurveTuning, Limits, MissRatioCurve, NamespaceDesc, NamespaceRoom, OffloadAsk, PolicyKind,
    Pool, PoolConfig, ReloadAsk,
};
use turnkv_proto::{BlockHash, NamespaceId, Shards};

const CLIENT: ClientId = ClientId(1);

/// Ten sessions of ten pages in turn, each page found once more after all others: it takes a hundred pages to find any, and the
/// last ones. Ten seconds went by. A page counts as one GiB.
fn curve() -> MissRatioCurve {
    let config = PoolConfig {
        slab_bytes: 1 << 20,
        slab_count: 1,
        nvme_bytes: 0,
        free_slots_percent: 0,
        limits: Limits::default(),
        policy: PolicyKind::Lru,
        nvme_admit: turnkv_pool::Admit::All,
        nvme_bytes_per_day: 0,
    };
    let mut pool = Pool::new(config).unwrap();
    pool.tune_curves(CurveTuning { half_life_ms: 0, ..CurveTuning::default() });
    let desc = NamespaceDesc {
        id: NamespaceId([1; 32]),
        tenant: String::new(),
        shard_bytes: 4096,
        page_tokens: 100,
        shards: 1,
    };
    let ns = pool.open_namespace(desc).unwrap();
    let chain = |session: u8| -> Vec<BlockHash> {
        (0..10u8).map(|page| BlockHash([session * 10 + page + 1; 32])).collect()
    };
    for session in 0..10 {
        let hashes = chain(session);
        let (hashes, parent) = (hashes.as_slice(), None);
        let ask = OffloadAsk {
            ns,
            session: None,
            parent,
            hashes,
            shards: Shards::one(0),
            tail_tokens: 0,
            client: CLIENT,
        };
        let lease = pool.begin_offload(ask, 0).unwrap().lease.unwrap();
        let filled: Vec<(u32, u64)> = (0..10).map(|at| (at, 0)).collect();
        pool.commit_offload(lease, CLIENT, &filled, 0).unwrap();
    }
    for session in 0..10 {
        let ask = ReloadAsk {
            ns,
            hashes: &chain(session),
            shards: Shards::one(0),
            client: CLIENT,
            session: None,
            hold: false,
        };
        let lease = pool.begin_reload(ask, 0).unwrap().lease.unwrap();
        pool.end_reload(lease, CLIENT, &[], 0).unwrap();
    }
    let mut curve = pool.miss_ratio_curve(ns, 10_000).unwrap();
    curve.page_bytes = GIB;
    curve
}

fn facts(dram: u64, nvme: u64) -> Facts {
    Facts {
        room: NamespaceRoom { dram_bytes: dram * GIB, nvme_bytes: nvme * GIB },
        prefill_tokens_per_s: 500.0,
        gpu_hour: 4.0,
        dram_gib_month: 3.0,
        nvme_gib_month: 0.1,
    }
}

#[test]
fn what_memory_buys_is_tokens_seconds_and_money() {
    let advice = advise(&curve(), &facts(50, 0));
    assert_eq!((advice.references, advice.references_per_s), (200.0, 20.0));
    assert_eq!((advice.hit_ratio, advice.hit_ratio_max, advice.found_ratio), (0.0, 0.5, 0.5));
    let dram = advice.purchases.iter().find(|one| one.tier == TierName::Dram && one.bytes == 64 * GIB);
    let dram = dram.unwrap();
    // 114 pages find all: half of 20 pages a second, 100 tokens each.
    assert_eq!((dram.hit_ratio, dram.dram_hit_ratio, dram.tokens_per_s), (0.5, 0.5, 1000.0));
    assert_eq!((dram.gpu_s_per_hour, dram.cost_per_month, dram.saving_per_month), (7200.0, 192.0, 5840.0));
    let nvme = advice.purchases.iter().find(|one| one.tier == TierName::Nvme && one.bytes == 128 * GIB);
    let nvme = nvme.unwrap();
    assert_eq!((nvme.hit_ratio, nvme.dram_hit_ratio), (0.5, 0.0), "found, but on NVMe");
    let small = advice.purchases.iter().find(|one| one.tier == TierName::Nvme && one.bytes == 64 * GIB);
    assert_eq!(small.unwrap().tokens_per_s, 0.0, "NVMe smaller than what finds anything buys nothing");
    assert!(advice.advice.starts_with("below the knee") && advice.advice.contains("128.0 GiB more NVMe"));
    assert!(advice.knee_bytes >= 90 * GIB && advice.knee_bytes <= 112 * GIB, "{}", advice.knee_bytes);
}

#[test]
fn a_pool_that_has_all_is_told_so() {
    let advice = advise(&curve(), &facts(200, 400));
    assert!(advice.advice.starts_with("large enough"), "{}", advice.advice);
    assert!(advice.purchases.iter().all(|purchase| purchase.tokens_per_s == 0.0));
    assert_eq!(advice.purchases.len(), 8, "doublings and three steps of each tier");
    let unknown = advise(&curve(), &Facts { prefill_tokens_per_s: 0.0, ..facts(50, 0) });
    assert!(unknown.purchases.iter().all(|one| one.gpu_s_per_hour == 0.0 && one.saving_per_month == 0.0));
}

#[test]
fn sizes_ascend_to_the_one_that_finds_all() {
    let advice = advise(&curve(), &facts(50, 0));
    assert!(
        advice.sizes.is_sorted_by(|one, other| one.bytes < other.bytes && one.hit_ratio <= other.hit_ratio)
    );
    assert_eq!(advice.sizes.last().unwrap().hit_ratio, advice.hit_ratio_max);
}
