//! DRAM that grows and shrinks: which pages go, which stay, and what keeps them. Must not know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::*;
use turnkv_pool::*;

/// Slots of a slab.
const SLOTS: u32 = 8;
const SLAB: u64 = 64 << 10;

fn pool_of(slabs: u32, nvme_bytes: u64) -> (Pool, NamespaceIndex) {
    pool_with(PoolConfig { slab_count: slabs, ..config(nvme_bytes) })
}

/// Goes on with a change of size as far as it comes; the slabs that left.
fn follow(pool: &mut Pool, now: Now) -> (Shrink, Vec<u32>) {
    let mut left = Vec::new();
    loop {
        while let Some((slab, _)) = pool.slab_to_make() {
            pool.slab_made(slab);
        }
        let shrunk = pool.shrink_some(now);
        pool.check().unwrap();
        left.extend(pool.take_left_slabs(usize::MAX).into_iter().map(|(slab, _)| slab));
        if shrunk != Shrink::Now {
            return (shrunk, left);
        }
    }
}

fn found(pool: &mut Pool, ns: NamespaceIndex, pages: std::ops::Range<u32>) -> usize {
    let hashes = hashes(pages);
    hashes.iter().filter(|hash| pool.page_key(ns, hash).is_some()).count()
}

/// Writes everything that waits for it.
fn write_all(pool: &mut Pool) {
    loop {
        let writes = pool.next_writes(1 << 30, 0);
        if writes.is_empty() {
            return;
        }
        for (at, write) in writes.iter().enumerate() {
            let place = NvmePlace { segment: 1, generation: 1, block: write.page.index * 8 + at as u32 };
            pool.written(write.page, write.shard, place, 0);
        }
    }
}

#[test]
fn empty_slabs_come_and_go_at_once() {
    let (mut pool, ns) = pool_of(2, 0);
    pool.resize_dram(5, 0);
    assert_eq!(follow(&mut pool, 0).0, Shrink::Done);
    assert_eq!((pool.stats().free_slabs, pool.stats().dram.capacity_bytes), (5, 5 * SLAB));
    store(&mut pool, ns, None, 0..SLOTS);
    pool.resize_dram(1, 0);
    let (shrunk, left) = follow(&mut pool, 0);
    assert_eq!((shrunk, left.len()), (Shrink::Done, 4));
    assert_eq!(found(&mut pool, ns, 0..SLOTS), SLOTS as usize, "pages stay while there are empty slabs");
    assert_eq!(pool.stats().dram_present_bytes, SLAB);
}

#[test]
fn without_nvme_the_slab_used_longest_ago_goes_and_no_other() {
    let (mut pool, ns) = pool_of(4, 0);
    for at in 0..4 {
        store(&mut pool, ns, None, at * SLOTS..(at + 1) * SLOTS);
    }
    pool.lookup(ns, &hashes(0..SLOTS), 1).unwrap();
    let first = hashes(0..SLOTS);
    let plan = pool.begin_reload(read(ns, &first), 2).unwrap();
    pool.end_reload(plan.lease.unwrap(), CLIENT, &[], 2).unwrap();
    pool.resize_dram(3, 3);
    assert_eq!(follow(&mut pool, 3).0, Shrink::Done);
    assert_eq!(found(&mut pool, ns, 0..SLOTS), SLOTS as usize, "what was used since is there");
    assert_eq!(found(&mut pool, ns, SLOTS..2 * SLOTS), 0, "what was used longest ago is not");
    assert_eq!(found(&mut pool, ns, 2 * SLOTS..4 * SLOTS), 2 * SLOTS as usize);
}

#[test]
fn with_nvme_nothing_is_lost_and_what_is_dirty_is_written_first() {
    let (mut pool, ns) = pool_of(4, 1 << 30);
    store(&mut pool, ns, None, 0..4 * SLOTS);
    pool.resize_dram(1, 0);
    assert_eq!(follow(&mut pool, 0).0, Shrink::Soon, "everything is dirty");
    assert_eq!(pool.stats().dram_present_bytes, 4 * SLAB);
    write_all(&mut pool);
    assert_eq!(follow(&mut pool, 0).0, Shrink::Done);
    assert_eq!(pool.stats().dram_present_bytes, SLAB);
    assert_eq!(found(&mut pool, ns, 0..4 * SLOTS), 4 * SLOTS as usize);
}

#[test]
fn what_is_leased_is_said_and_goes_when_the_lease_ends() {
    let (mut pool, ns) = pool_of(2, 0);
    store(&mut pool, ns, None, 0..SLOTS);
    store(&mut pool, ns, None, SLOTS..2 * SLOTS);
    let both = [hashes(0..1), hashes(SLOTS..SLOTS + 1)];
    let leases = both.map(|one| pool.begin_reload(read(ns, &one), 0).unwrap().lease.unwrap());
    pool.resize_dram(1, 0);
    assert_eq!(follow(&mut pool, 0).0, Shrink::Soon);
    assert_eq!(pool.stats().leaving_leased_bytes, 8 << 10);
    assert_eq!(pool.stats().leaving_slabs, 1);
    for lease in leases {
        pool.end_reload(lease, CLIENT, &[], 1).unwrap();
    }
    assert_eq!(follow(&mut pool, 1).0, Shrink::Done);
    assert_eq!((pool.stats().leaving_leased_bytes, pool.stats().dram_present_bytes), (0, SLAB));
}

#[test]
fn a_slab_that_only_leases_keep_stays_where_another_can_go() {
    let (mut pool, ns) = pool_of(2, 0);
    store(&mut pool, ns, None, 0..SLOTS);
    let lease = pool.begin_reload(read(ns, &hashes(0..1)), 0).unwrap().lease.unwrap();
    store(&mut pool, ns, None, SLOTS..2 * SLOTS);
    let other = pool.begin_reload(read(ns, &hashes(SLOTS..SLOTS + 1)), 0).unwrap().lease.unwrap();
    pool.resize_dram(1, 0);
    assert_eq!(follow(&mut pool, 0).0, Shrink::Soon);
    pool.end_reload(other, CLIENT, &[], 1).unwrap();
    let later = limits::LEAVING_PATIENCE_MS + 1;
    follow(&mut pool, 1);
    assert_eq!(follow(&mut pool, later).0, Shrink::Done, "{:?}", pool.stats());
    pool.end_reload(lease, CLIENT, &[], later).ok();
    pool.check().unwrap();
}

#[test]
fn what_is_protected_and_nowhere_else_stays_until_it_is_not() {
    let (mut pool, ns) = pool_of(4, 0);
    store(&mut pool, ns, None, 0..SLOTS);
    pool.pin(ns, &hashes(0..2), 1_000, 0).unwrap();
    store(&mut pool, ns, None, SLOTS..4 * SLOTS);
    pool.resize_dram(1, 0);
    assert_eq!(follow(&mut pool, 0).0, Shrink::Soon);
    assert_eq!(pool.stats().leaving_protected_bytes, 16 << 10);
    assert_eq!(found(&mut pool, ns, 0..2), 2);
    assert!(pool.unpin(ns, &hash(1)).unwrap());
    while !pool.expire(0) {}
    assert_eq!(follow(&mut pool, 0).0, Shrink::Done);
}

#[test]
fn growing_again_keeps_what_did_not_leave_yet() {
    let (mut pool, ns) = pool_of(4, 1 << 30);
    store(&mut pool, ns, None, 0..4 * SLOTS);
    pool.resize_dram(1, 0);
    follow(&mut pool, 0);
    assert_eq!(pool.stats().leaving_slabs, 3);
    pool.resize_dram(4, 0);
    assert_eq!(follow(&mut pool, 0), (Shrink::Done, vec![]));
    assert_eq!((pool.stats().leaving_slabs, pool.stats().dram_present_bytes), (0, 4 * SLAB));
    assert_eq!(found(&mut pool, ns, 0..4 * SLOTS), 4 * SLOTS as usize);
}

#[test]
fn a_slab_that_comes_back_has_another_generation() {
    let (mut pool, ns) = pool_of(2, 0);
    store(&mut pool, ns, None, 0..2 * SLOTS);
    pool.resize_dram(1, 0);
    let mut left = Vec::new();
    while pool.shrink_some(0) != Shrink::Done {
        left.extend(pool.take_left_slabs(1));
    }
    left.extend(pool.take_left_slabs(1));
    let (slab, gone) = left[0];
    pool.resize_dram(2, 0);
    assert_eq!(pool.slab_to_make(), Some((slab, gone + 1)));
    assert_eq!(pool.slab_to_make(), Some((slab, gone + 1)), "one that failed is tried again");
    pool.slab_made(slab);
    assert_eq!(pool.slab_to_make(), None);
    pool.check().unwrap();
}

#[test]
fn a_namespace_without_a_slab_is_served_while_dram_shrinks() {
    let (mut pool, ns) = pool_of(4, 1 << 30);
    let new = pool.open_namespace(desc(2, "b", 8 << 10, 1)).unwrap();
    store(&mut pool, ns, None, 0..4 * SLOTS);
    write_all(&mut pool);
    pool.resize_dram(1, 0);
    pool.shrink_some(0);
    let plan = pool.begin_offload(ask(new, None, &hashes(100..101)), 0).unwrap();
    assert!(matches!(plan.outcomes[0], Outcome::Granted(_)), "{:?}", plan.outcomes);
    pool.check().unwrap();
}
