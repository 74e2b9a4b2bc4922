//! What hangs on what, as it is told for snapshots, and which pages came to a tier or left it, as others are told. Owns: that all
//! visible pages of a namespace are told, each with the one before it, and that what was told adds up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::{CLIENT, PAGE, ask, desc, hash, hashes, one_slab, pool, read, store};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
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

/// Pages 0 to 7 are a chain; each of the others hangs on one of these.
const PAGES: u32 = 24;

fn before(page: u32) -> Option<u32> {
    if page < 8 { page.checked_sub(1) } else { Some(page % 8) }
}

#[derive(Clone, Debug)]
enum Op {
    Offload(u32),
    Abort(u32),
    Write { take: usize, fails: bool },
    Changed,
    Reload { page: u32, fate: u8 },
    Wrong(u32),
    Demote,
    Drop(u32),
    Lose,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..PAGES).prop_map(Op::Offload),
        1 => (0..PAGES).prop_map(Op::Abort),
        5 => (1usize..6, prop::bool::weighted(0.2)).prop_map(|(take, fails)| Op::Write { take, fails }),
        1 => Just(Op::Changed),
        6 => (0..PAGES, 0u8..8).prop_map(|(page, fate)| Op::Reload { page, fate }),
        1 => (0..PAGES).prop_map(Op::Wrong),
        2 => Just(Op::Demote),
        2 => (0..PAGES).prop_map(Op::Drop),
        1 => prop::bool::weighted(0.1).prop_map(|loses| if loses { Op::Lose } else { Op::Demote }),
    ]
}

/// A small pool, and what somebody knows of it who is told of changes alone.
struct Told {
    pool: Pool,
    ns: NamespaceIndex,
    known: BTreeSet<(BlockHash, PageTier)>,
    blocks: u32,
}

impl Told {
    fn new() -> Told {
        let (mut pool, ns) = one_slab(16, 400, PolicyKind::Lru);
        pool.tell_pages();
        Told { pool, ns, known: BTreeSet::new(), blocks: 0 }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Offload(page) | Op::Abort(page) => {
                let hashes = [hash(page)];
                let plan = self.pool.begin_offload(ask(self.ns, before(page), &hashes), 0).unwrap();
                let Some(lease) = plan.lease else { return };
                if matches!(op, Op::Offload(_)) {
                    self.pool.commit_offload(lease, CLIENT, &[(0, 1)], 0).unwrap();
                } else {
                    self.pool.abort_offload(lease, CLIENT).unwrap();
                }
            }
            Op::Write { take, fails } => {
                for write in self.pool.next_writes(take as u64 * PAGE, 0) {
                    self.blocks += 1;
                    let place = NvmePlace { segment: 0, generation: 0, block: self.blocks };
                    match fails {
                        true => self.pool.write_failed(write.page, 0, 0),
                        false => drop(self.pool.written(write.page, 0, place, 0)),
                    }
                }
            }
            Op::Changed => {
                for write in self.pool.next_writes(PAGE, 0) {
                    self.pool.write_changed(write.page, 0, 0);
                }
            }
            Op::Reload { page, fate } => self.reload(page, fate),
            Op::Wrong(page) => {
                let hashes = [hash(page)];
                let lease = self.pool.begin_reload(read(self.ns, &hashes), 0).unwrap().lease;
                self.land();
                if let Some(lease) = lease {
                    self.pool.end_reload(lease, CLIENT, &[0], 0).unwrap();
                }
            }
            Op::Demote => drop(self.pool.demote_all(None)),
            Op::Drop(page) => {
                if let Some(key) = self.pool.page_key(self.ns, &hash(page)) {
                    while !self.pool.drop_page(key) {}
                }
            }
            Op::Lose => {
                let mut sweep = self.pool.nvme_lost();
                while !self.pool.lose_some(&mut sweep) {}
            }
        }
    }

    fn reload(&mut self, page: u32, fate: u8) {
        let hashes = [hash(page)];
        let plan = self.pool.begin_reload(read(self.ns, &hashes), 0).unwrap();
        for step in &plan.pages {
            if let ReloadStep::Promote(promotion) = step {
                let cause = [MissCause::Checksum, MissCause::Io, MissCause::Busy].get(usize::from(fate));
                match cause {
                    Some(cause) => drop(self.pool.promote_failed(promotion.page, 0, *cause, 0)),
                    None => drop(self.pool.promoted(promotion.page, 0, 0)),
                }
            }
        }
        if let Some(lease) = plan.lease {
            self.pool.end_reload(lease, CLIENT, &[], 0).unwrap();
        }
    }

    /// What was begun to be read for a reader that found wrong bytes lands.
    fn land(&mut self) {
        for page in 0..PAGES {
            if let Some(key) = self.pool.page_key(self.ns, &hash(page)) {
                self.pool.promoted(key, 0, 0);
            }
        }
    }

    fn listen(&mut self) {
        for change in self.pool.take_effects().pages {
            let name = (change.hash, change.tier);
            if change.here {
                let there = |tier| change.parent.is_none_or(|parent| self.known.contains(&(parent, tier)));
                assert!(
                    there(PageTier::Dram) || there(PageTier::Nvme),
                    "{change:?}: what it hangs on is not here"
                );
                assert!(self.known.insert(name), "{change:?} was told before");
            } else {
                assert!(self.known.remove(&name), "{change:?} was never there");
            }
        }
    }

    /// What is there, as the pool says it when asked.
    fn asked(&mut self) -> BTreeSet<(BlockHash, PageTier)> {
        let mut all = BTreeSet::new();
        for page in (0..PAGES).map(hash) {
            let Some(key) = self.pool.page_key(self.ns, &page) else { continue };
            let found = self.pool.lookup(self.ns, &[page], 0).unwrap();
            all.extend((found.dram == 1).then_some((page, PageTier::Dram)));
            let on_nvme = self.pool.places(key).iter().all(Option::is_some);
            all.extend(on_nvme.then_some((page, PageTier::Nvme)));
        }
        all
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whoever_is_told_of_changes_alone_knows_what_is_where(ops in prop::collection::vec(op(), 1..120)) {
        let mut told = Told::new();
        for op in &ops {
            told.apply(op);
            told.listen();
            let asked = told.asked();
            prop_assert_eq!(&told.known, &asked, "after {:?}", op);
        }
        told.pool.check().unwrap();
        told.pool.evict_namespace(None);
        told.listen();
        prop_assert!(told.known.is_empty(), "{:?} are gone and it was not told", told.known);
    }
}
