//! What hangs on what, as it is told for snapshots. Owns: that all visible pages of a namespace are told, each with the one before it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::{CLIENT, ask, desc, hash, hashes, pool, store};
use std::collections::BTreeMap;
use turnkv_pool::*;
use turnkv_proto::BlockHash;

fn told(pool: &mut Pool, ns: NamespaceIndex) -> BTreeMap<BlockHash, Option<BlockHash>> {
    let mut outlining = Outlining::default();
    while !pool.outline_some(ns, &mut outlining) {}
    let pages = outlining.pages();
    let by_hash: BTreeMap<_, _> = pages.iter().map(|page| (page.hash, page.parent)).collect();
    assert_eq!(by_hash.len(), pages.len(), "none is told twice");
    by_hash
}

#[test]
fn the_pages_of_a_namespace_are_told_with_what_they_follow() {
    let (mut pool, ns) = pool(true);
    store(&mut pool, ns, None, 0..4);
    store(&mut pool, ns, Some(1), 10..12);
    let other = pool.open_namespace(desc(2, "a", 8 << 10, 1)).unwrap();
    store(&mut pool, other, None, 20..22);
    // Granted, and not filled yet: nobody can see it.
    pool.begin_offload(ask(ns, Some(3), &hashes(4..5)), 0).unwrap();
    let wanted = [(0, None), (1, Some(0)), (2, Some(1)), (3, Some(2)), (10, Some(1)), (11, Some(10))];
    let wanted: BTreeMap<_, _> = wanted.map(|(page, parent)| (hash(page), parent.map(hash))).into();
    assert_eq!(told(&mut pool, ns), wanted);
    assert_eq!(told(&mut pool, other).len(), 2);
    let chain = pool.outline_of(ns, &[hash(0), hash(1), hash(10), hash(99), hash(11)]);
    let parents: Vec<_> = chain.iter().map(|page| page.parent).collect();
    assert_eq!(parents, [None, Some(hash(0)), Some(hash(1))], "as far as they are there");
}

#[test]
fn a_partial_tail_is_told_with_its_tokens() {
    let (mut pool, ns) = pool(false);
    store(&mut pool, ns, None, 0..2);
    let tail = hashes(2..3);
    let plan = pool.begin_offload(OffloadAsk { tail_tokens: 5, ..ask(ns, Some(1), &tail) }, 0).unwrap();
    pool.commit_offload(plan.lease.unwrap(), CLIENT, &[(0, 0)], 0).unwrap();
    let chain = pool.outline_of(ns, &hashes(0..3));
    assert_eq!(chain.iter().map(|page| page.tail_tokens).collect::<Vec<_>>(), [0, 0, 5]);
}
