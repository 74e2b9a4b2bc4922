//! Pages that another process left in DRAM leave in the order in which they were used. Owns: that order, by what is evicted. Must not
//! know: memory, the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use turnkv_pool::*;
use turnkv_proto::{BlockHash, NamespaceId, SessionId, Shards};

const PAGE: u64 = 4096;
/// Pages that DRAM holds.
const ROOM: u64 = 64;
const CLIENT: ClientId = ClientId(1);

/// A pool, and the table that outlives it.
struct Life {
    pool: Pool,
    ns: NamespaceIndex,
    slots: BTreeMap<SlotKey, SlotRecord>,
    used: BTreeMap<SlotKey, (u64, u8)>,
    uses: u64,
    now: u64,
}

fn desc() -> NamespaceDesc {
    NamespaceDesc {
        id: NamespaceId([1; 32]),
        tenant: "a".to_owned(),
        shard_bytes: PAGE,
        page_tokens: 16,
        shards: 1,
    }
}

fn pool(policy: PolicyKind) -> Pool {
    let mut pool = Pool::new(PoolConfig {
        slab_bytes: ROOM * PAGE,
        slab_count: 1,
        nvme_bytes: 0,
        nvme_admit: Admit::All,
        nvme_bytes_per_day: 0,
        free_slots_percent: 0,
        limits: Limits { client_slots_percent: 100, ..Limits::default() },
        policy,
    })
    .unwrap();
    pool.tell_slots();
    pool
}

fn hash(tree: u8, depth: u8) -> BlockHash {
    let mut hash = [tree; 32];
    hash[0] = depth + 1;
    BlockHash(hash)
}

impl Life {
    fn new(policy: PolicyKind) -> Life {
        let mut pool = pool(policy);
        let ns = pool.open_namespace(desc()).unwrap();
        Life { pool, ns, slots: BTreeMap::new(), used: BTreeMap::new(), uses: 0, now: 1_000 }
    }

    fn note(&mut self) {
        let effects = self.pool.take_effects();
        for change in effects.slots {
            self.slots.remove(&change.slot);
            self.slots.extend(change.record.map(|record| (change.slot, record)));
        }
        for SlotUse { slot, reads } in effects.used {
            self.uses += 1;
            self.used.insert(slot, (self.uses, reads));
        }
    }

    /// Four pages, each after the one before.
    fn offload(&mut self, tree: u8) {
        self.now += 10;
        let hashes: Vec<BlockHash> = (0..4).map(|depth| hash(tree, depth)).collect();
        let ask = OffloadAsk {
            ns: self.ns,
            session: None,
            parent: None,
            hashes: &hashes,
            shards: Shards::one(0),
            tail_tokens: 0,
            client: CLIENT,
        };
        let plan = self.pool.begin_offload(ask, self.now).unwrap();
        self.note();
        let filled: Vec<(u32, u64)> = (0..4).map(|at| (at, u64::from(at))).collect();
        self.pool.commit_offload(plan.lease.unwrap(), CLIENT, &filled, self.now).unwrap();
        self.note();
    }

    /// A session's first turn: four pages.
    fn turn(&mut self, tree: u8) {
        let session = SessionId::parse(&tree.to_string()).unwrap();
        self.pool.begin_turn(self.ns, &session, self.now).unwrap();
        self.offload(tree);
        let hashes: Vec<BlockHash> = (0..4).map(|depth| hash(tree, depth)).collect();
        let end = EndTurn {
            keep: 0,
            hashes: &hashes,
            tail_tokens: 0,
            expected_return_ms: 0,
            ttl_ms: 0,
            priority: 0,
            last: false,
        };
        self.pool.end_turn(self.ns, &session, end, self.now).unwrap();
        self.note();
    }

    fn use_pages(&mut self, tree: u8) {
        self.now += 10;
        let hashes: Vec<BlockHash> = (0..4).map(|depth| hash(tree, depth)).collect();
        self.pool.touch_pages(self.ns, &hashes, self.now);
        self.note();
    }

    /// The process ends; the next one takes over what it left.
    fn kill(self, policy: PolicyKind) -> Life {
        let mut pool = pool(policy);
        let found = |(slot, record): (&SlotKey, &SlotRecord)| FoundSlot {
            slot: slot.slot,
            hash: record.hash,
            parent: record.parent,
            shard: record.shard,
            shards: record.shards,
            tail_tokens: record.tail_tokens,
            bytes: record.bytes,
            checksum: record.checksum,
            sequence: u64::from(slot.slot),
            used: self.used[slot].0,
            reads: self.used[slot].1,
        };
        let slots = self.slots.iter().map(found).collect();
        let slab =
            FoundSlab { slab: 0, generation: 0, namespace: desc().id, slots, held: vec![], mapped: vec![] };
        pool.begin_slab(0, 0, Some(slab));
        let ns = pool.open_namespace(desc()).unwrap();
        let mut adoption = pool.begin_adoption(ns).unwrap().plan(&desc());
        while pool.adopt(&mut adoption, u64::MAX) {}
        let mut uses = adoption.take_uses();
        assert_eq!(uses.len(), self.slots.len());
        uses.sort_unstable_by_key(|(used, _)| *used);
        let pages: Vec<PageKey> = uses.into_iter().map(|(_, page)| page).collect();
        pool.use_again(&pages);
        pool.check().unwrap();
        Life { pool, ns, now: 0, ..self }
    }

    /// The trees of which something is left, after so many more came.
    fn left_after(&mut self, more: u8) -> Vec<u8> {
        (100..100 + more).for_each(|tree| self.offload(tree));
        self.pool.check().unwrap();
        let now = self.now;
        let mut is_here = |tree: u8| self.pool.lookup(self.ns, &[hash(tree, 0)], now).unwrap().present > 0;
        (0..16).filter(|tree| is_here(*tree)).collect()
    }
}

/// Sixteen trees, used again in another order than they came in.
fn filled(policy: PolicyKind) -> Life {
    let mut life = Life::new(policy);
    (0..16).for_each(|tree| life.offload(tree));
    for at in 0..16u8 {
        life.use_pages(at * 7 % 16);
    }
    life
}

#[test]
fn what_was_used_longest_ago_leaves_first_as_if_nothing_had_ended() {
    for more in [1, 4, 8, 15] {
        let as_ever = filled(PolicyKind::Lru).left_after(more);
        let killed = filled(PolicyKind::Lru).kill(PolicyKind::Lru).left_after(more);
        assert_eq!(killed, as_ever, "{more} more");
        let twice = filled(PolicyKind::Lru).kill(PolicyKind::Lru).kill(PolicyKind::Lru).left_after(more);
        assert_eq!(twice, as_ever, "{more} more, after two ends");
    }
}

#[test]
fn learned_policies_keep_the_order_too() {
    for policy in [PolicyKind::Gittins, PolicyKind::Session] {
        let left = filled(policy).kill(policy).left_after(8);
        let hot: Vec<u8> = (8..16u8).map(|at| at * 7 % 16).collect();
        assert!(left.iter().all(|tree| hot.contains(tree)), "{policy:?}: {left:?} of {hot:?}");
        assert_eq!(left.len(), 8, "{policy:?}: {left:?}");
    }
}

#[test]
fn what_comes_after_a_start_does_not_leave_before_what_was_found() {
    for policy in [PolicyKind::Lru, PolicyKind::Gittins, PolicyKind::Session] {
        let mut life = filled(policy).kill(policy);
        // At once: in the first two seconds a page that was just used may be of a turn that runs.
        (50..58).for_each(|tree| life.turn(tree));
        let now = life.now;
        let missing: Vec<u8> = (50..58)
            .filter(|tree| life.pool.lookup(life.ns, &[hash(*tree, 0)], now).unwrap().present == 0)
            .collect();
        assert!(
            missing.is_empty(),
            "{policy:?}: sessions {missing:?} left before pages of the process before"
        );
    }
}
