//! A pool whose calls are counted one by one: each within its bound. Owns: the verbs that tests of large requests use, cut as
//! they are. Must not know: what is asked.

use super::{CLIENT, config, desc, end_turn, hash, hashes, session};
use turnkv_pool::limits::{HASHES_PER_CALL_MAX, LEASE_PAGES_MAX, STEPS_PER_CALL_MAX};
use turnkv_pool::*;
use turnkv_proto::{BlockHash, SessionId, Shards};

pub const PAGES: u32 = HASHES_PER_CALL_MAX as u32;
/// Calls that the largest request may be cut into.
const CALLS_MAX: usize = 10_000;

/// A pool whose calls are counted one by one.
pub struct Counted {
    pub pool: Pool,
    pub ns: NamespaceIndex,
    pub list: Vec<BlockHash>,
}

impl Counted {
    /// DRAM for so many pages of one shard.
    pub fn new(pages: u64, shards: u16, nvme: bool, policy: PolicyKind) -> Counted {
        let mut big = config(if nvme { 1 << 40 } else { 0 });
        (big.slab_bytes, big.slab_count) = (64 << 20, (pages * 4096).div_ceil(64 << 20) as u32);
        big.limits = Limits { client_slots_percent: 100, lease_ms: 100, ..Limits::default() };
        big.limits.protected_percent = 50;
        big.limits.namespaces_max = limits::NAMESPACES_MAX;
        big.policy = policy;
        let mut pool = Pool::new(big).unwrap();
        let ns = pool.open_namespace(desc(1, "a", 4096, shards)).unwrap();
        Counted { pool, ns, list: hashes(0..PAGES) }
    }

    /// One call, within its bound.
    pub fn call<T>(&mut self, what: &str, verb: impl FnOnce(&mut Pool) -> T) -> T {
        let before = self.pool.steps();
        let answer = verb(&mut self.pool);
        let steps = self.pool.steps() - before;
        assert!(steps <= STEPS_PER_CALL_MAX, "{what}: {steps} steps in one call");
        answer
    }

    /// A verb that is cut: every call within the bound, and it ends.
    pub fn calls(&mut self, what: &str, mut verb: impl FnMut(&mut Pool) -> bool) -> usize {
        let done = (1..=CALLS_MAX).find(|_| self.call(what, &mut verb));
        done.unwrap_or_else(|| panic!("{what} does not end"))
    }

    pub fn ask<'a>(&self, parent: Option<BlockHash>, hashes: &'a [BlockHash]) -> OffloadAsk<'a> {
        let (ns, session, tail_tokens) = (self.ns, None, 0);
        OffloadAsk { ns, session, parent, hashes, shards: Shards::one(0), tail_tokens, client: CLIENT }
    }

    pub fn offload(&mut self, what: &str, ask: &OffloadAsk<'_>) -> OffloadPlan {
        let mut offloading = self.call(what, |pool| pool.start_offload(ask, 0)).unwrap();
        self.calls(what, |pool| pool.offload_some(ask, &mut offloading, 0).unwrap());
        self.pool.offload_plan(offloading)
    }

    pub fn store(&mut self, parent: Option<u32>, range: std::ops::Range<u32>) {
        let part = hashes(range);
        let ask = self.ask(parent.map(hash), &part);
        let plan = self.offload("offload", &ask);
        let filled: Vec<(u32, u64)> = (0..part.len() as u32).map(|at| (at, u64::from(at))).collect();
        let committed =
            self.call("commit", |pool| pool.commit_offload(plan.lease.unwrap(), CLIENT, &filled, 0)).unwrap();
        assert_eq!(committed.kept.len(), part.len());
    }

    /// One chain of so many pages.
    pub fn store_chain(&mut self, pages: u32) {
        for at in (0..pages).step_by(LEASE_PAGES_MAX as usize) {
            self.store(at.checked_sub(1), at..pages.min(at + LEASE_PAGES_MAX));
        }
    }

    pub fn write_all(&mut self) {
        loop {
            let writes = self.call("writes", |pool| pool.next_writes(u64::MAX, 0));
            if writes.is_empty() {
                return;
            }
            for write in writes {
                let (segment, block) = ((write.page.index / 1000) as u16, write.page.index);
                let place = NvmePlace { segment, generation: 0, block };
                self.call("written", |pool| pool.written(write.page, write.shard, place, 0));
            }
        }
    }

    pub fn reload(&mut self, hashes: &[BlockHash], client: ClientId) -> ReloadPlan {
        let ask =
            ReloadAsk { ns: self.ns, hashes, shards: Shards::one(0), client, session: None, hold: false };
        self.call("reload", |pool| pool.begin_reload(ask, 0)).unwrap()
    }
}

/// A session of as many pages as one may have: they are named in two calls.
pub const SESSION_PAGES: u32 = 131_072;

impl Counted {
    /// Ends a turn of a session whose list begins with `keep` pages of what it has.
    pub fn end_turn(&mut self, what: &str, session: &SessionId, end: EndTurn<'_>) -> u32 {
        let mut turn = TurnEnd::new(self.ns, session, end);
        self.calls(what, |pool| !pool.end_turn_step(&mut turn, 1).unwrap());
        turn.pages()
    }

    pub fn begin_turn(&mut self, session: &SessionId) -> TurnBegun {
        let ns = self.ns;
        let mut turn = self.call("begin of a turn", |pool| pool.start_turn(ns, session, 1)).unwrap();
        self.calls("begin of a turn", |pool| pool.begin_turn_some(&mut turn, 1));
        self.call("begin of a turn", |pool| pool.turn_begun(&turn))
    }

    /// A session of the longest list, all of it in DRAM.
    pub fn long_session(policy: PolicyKind, nvme: bool, priority: u32) -> (Counted, SessionId) {
        let mut all = Counted::new(u64::from(SESSION_PAGES) + 4096, 1, nvme, policy);
        all.store_chain(SESSION_PAGES);
        let (list, id) = (hashes(0..SESSION_PAGES), session("long"));
        all.begin_turn(&id);
        let (first, second) = list.split_at(PAGES as usize);
        all.end_turn("end of a turn", &id, end_turn(0, first));
        let end = EndTurn { priority, ttl_ms: 60_000, ..end_turn(PAGES, second) };
        assert_eq!(all.end_turn("end of a turn", &id, end), SESSION_PAGES);
        (all, id)
    }

    pub fn tick(&mut self, now: Now) {
        self.calls("what is done by and by", |pool| pool.expire(now));
        self.call("maintain", |pool| pool.maintain(now));
        self.pool.check().unwrap();
    }
}
