//! What was learned goes on in the next process: the same curve, the same weights; damaged, it begins anew. Owns: that. Must not know:
//! what is learned.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../benches/turns/mod.rs"]
#[allow(dead_code, reason = "of what benches share, a turn is enough")]
mod turns;

use turnkv_pool::*;
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

const PAGE: u64 = 4096;

fn pool(policy: PolicyKind) -> (Pool, NamespaceIndex) {
    let mut pool = Pool::new(PoolConfig {
        slab_bytes: 256 * PAGE,
        slab_count: 4,
        nvme_bytes: 0,
        nvme_admit: Admit::All,
        nvme_bytes_per_day: 0,
        free_slots_percent: 0,
        limits: Limits { client_slots_percent: 100, ..Limits::default() },
        policy,
    })
    .unwrap();
    let desc = NamespaceDesc {
        id: NamespaceId([1; 32]),
        tenant: "a".to_owned(),
        shard_bytes: PAGE,
        page_tokens: 16,
        shards: 1,
    };
    let ns = pool.open_namespace(desc).unwrap();
    (pool, ns)
}

fn hash(session: u64, page: u64) -> BlockHash {
    // All sessions begin alike.
    let session = if page < 4 { 0 } else { session };
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&session.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    hash[8..16].copy_from_slice(&page.to_le_bytes());
    BlockHash(hash)
}

/// Sessions of growing turns, some of which return soon, and some never.
fn work(pool: &mut Pool, ns: NamespaceIndex, turns: std::ops::Range<u64>) {
    for turn in turns {
        let session = turn * turn % 61;
        let hashes: Vec<BlockHash> = (0..8 + turn % 24).map(|page| hash(session, page)).collect();
        let id = SessionId::parse(&session.to_string()).unwrap();
        let found = pool.lookup(ns, &hashes, turn * 700).unwrap().present;
        turns::turn(pool, ns, &id, &hashes, Some(found as usize), turn * 700);
        drop(pool.take_effects());
        pool.note_prefill(ns, 1_000, 20_000);
        pool.maintain(turn * 700);
    }
}

/// What a pool that worked has learned: of the pool, and of the namespace.
fn learned(policy: PolicyKind) -> (Pool, NamespaceIndex, [Vec<u8>; 2]) {
    let (mut pool, ns) = pool(policy);
    work(&mut pool, ns, 0..400);
    let learned = [pool.learned(None).unwrap(), pool.learned(Some(ns)).unwrap()];
    (pool, ns, learned)
}

#[test]
fn the_next_process_goes_on_with_the_same_curve_and_weights() {
    for policy in [PolicyKind::Session, PolicyKind::Gittins, PolicyKind::Lru] {
        let (before, ns, [of_pool, of_ns]) = learned(policy);
        let (mut next, there) = pool(policy);
        assert!(next.learn_again(None, &of_pool, 0), "{policy:?}");
        assert!(next.learn_again(Some(there), &of_ns, 0), "{policy:?}");
        next.check().unwrap();
        let (had, has) =
            (before.miss_ratio_curve(ns, 400 * 700).unwrap(), next.miss_ratio_curve(there, 0).unwrap());
        assert!(had.references > 1_000.0 && had.found > 0.0, "{had:?}");
        for kib in [0, 4, 100, 1_000, 4_000, 1 << 20] {
            assert!(
                (had.hit_ratio(kib << 10) - has.hit_ratio(kib << 10)).abs() < 1e-9,
                "{policy:?} at {kib} KiB"
            );
        }
        assert_eq!(
            (had.references, had.found, had.knee_bytes()),
            (has.references, has.found, has.knee_bytes())
        );
        assert_eq!(next.prefill_us(there, 500), Some(10_000));
        assert_eq!([next.learned(None).unwrap(), next.learned(Some(there)).unwrap()], [of_pool, of_ns]);
        // And learns on.
        work(&mut next, there, 0..200);
        next.check().unwrap();
        assert!(next.miss_ratio_curve(there, 0).unwrap().references > has.references);
    }
}

#[test]
fn what_is_damaged_or_of_another_policy_begins_anew() {
    let (_, _, [of_pool, of_ns]) = learned(PolicyKind::Session);
    let (mut other, ns) = pool(PolicyKind::Lru);
    assert!(!other.learn_again(None, &of_pool, 0) && !other.learn_again(Some(ns), &of_ns, 0));
    let mut dice = 7u64;
    for round in 0..400 {
        let (mut pool, ns) = pool(PolicyKind::Session);
        for (of, learned) in [(None, &of_pool), (Some(ns), &of_ns)] {
            dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let (mut bytes, at) = (learned.clone(), (dice >> 20) as usize % learned.len());
            match round % 3 {
                0 => bytes.truncate(at),
                1 => bytes[at] ^= 1 << (dice >> 60 & 7),
                _ => bytes[at..].iter_mut().for_each(|byte| *byte = (dice >> 32) as u8),
            }
            // A number that is possible may be taken for one; whoever keeps the bytes has a checksum of them.
            let read = pool.learn_again(of, &bytes, 0);
            assert!(round % 3 > 0 || !read, "what is cut short is not read");
        }
        pool.check().unwrap();
        if round % 40 == 0 {
            work(&mut pool, ns, 0..40);
            pool.check().unwrap();
        }
    }
}

#[test]
fn what_is_cut_short_or_followed_by_more_counts_for_nothing() {
    for policy in [PolicyKind::Session, PolicyKind::Lru] {
        let (_, _, [of_pool, of_ns]) = learned(policy);
        let longer = |bytes: &[u8]| [bytes, &[0]].concat();
        let (mut fresh, ns) = pool(policy);
        let before = [fresh.learned(None).unwrap(), fresh.learned(Some(ns)).unwrap()];
        assert!(
            !fresh.learn_again(None, &longer(&of_pool), 0)
                && !fresh.learn_again(Some(ns), &longer(&of_ns), 0)
        );
        for cut in [0, 1, 2, of_ns.len() / 2, of_ns.len() - 1] {
            assert!(!fresh.learn_again(Some(ns), &of_ns[..cut], 0), "{cut} bytes");
        }
        let curve = fresh.miss_ratio_curve(ns, 0).unwrap();
        assert_eq!(
            (curve.references, curve.found, fresh.prefill_us(ns, 500)),
            (0.0, 0.0, None),
            "{policy:?}"
        );
        assert_eq!([fresh.learned(None).unwrap(), fresh.learned(Some(ns)).unwrap()], before, "{policy:?}");
        let unknown = NamespaceIndex(7, 0);
        assert!(!fresh.learn_again(Some(unknown), &of_ns, 0), "nobody is there to go on");
        // What is good is still taken after that.
        assert!(fresh.learn_again(None, &of_pool, 0) && fresh.learn_again(Some(ns), &of_ns, 0));
        assert_eq!([fresh.learned(None).unwrap(), fresh.learned(Some(ns)).unwrap()], [of_pool, of_ns]);
        fresh.check().unwrap();
    }
}
