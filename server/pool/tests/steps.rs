//! Every verb at its largest legal request: no call takes more steps than its bound, and those that are cut come to their end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod plain;

use plain::{CLIENT, OTHER, config, desc, end_turn, hash, hashes, present, session};
use turnkv_pool::limits::{HASHES_PER_CALL_MAX, HASHES_PER_LOOK_MAX, LEASE_PAGES_MAX, STEPS_PER_CALL_MAX};
use turnkv_pool::*;
use turnkv_proto::{BlockHash, SessionId, Shards};

const PAGES: u32 = HASHES_PER_CALL_MAX as u32;
/// Calls that the largest request may be cut into.
const CALLS_MAX: usize = 10_000;

/// A pool whose calls are counted one by one.
struct Counted {
    pool: Pool,
    ns: NamespaceIndex,
    list: Vec<BlockHash>,
}

impl Counted {
    /// DRAM for so many pages of one shard.
    fn new(pages: u64, shards: u16, nvme: bool, policy: PolicyKind) -> Counted {
        let mut big = config(if nvme { 1 << 40 } else { 0 });
        (big.slab_bytes, big.slab_count) = (64 << 20, (pages * 4096).div_ceil(64 << 20) as u32);
        big.limits = Limits { client_slots_percent: 100, lease_ms: 100, ..Limits::default() };
        big.limits.protected_percent = 50;
        big.policy = policy;
        let mut pool = Pool::new(big).unwrap();
        let ns = pool.open_namespace(desc(1, "a", 4096, shards)).unwrap();
        Counted { pool, ns, list: hashes(0..PAGES) }
    }

    /// One call, within its bound.
    fn call<T>(&mut self, what: &str, verb: impl FnOnce(&mut Pool) -> T) -> T {
        let before = self.pool.steps();
        let answer = verb(&mut self.pool);
        let steps = self.pool.steps() - before;
        assert!(steps <= STEPS_PER_CALL_MAX, "{what}: {steps} steps in one call");
        answer
    }

    /// A verb that is cut: every call within the bound, and it ends.
    fn calls(&mut self, what: &str, mut verb: impl FnMut(&mut Pool) -> bool) -> usize {
        let done = (1..=CALLS_MAX).find(|_| self.call(what, &mut verb));
        done.unwrap_or_else(|| panic!("{what} does not end"))
    }

    fn ask<'a>(&self, parent: Option<BlockHash>, hashes: &'a [BlockHash]) -> OffloadAsk<'a> {
        let (ns, session, tail_tokens) = (self.ns, None, 0);
        OffloadAsk { ns, session, parent, hashes, shards: Shards::one(0), tail_tokens, client: CLIENT }
    }

    fn offload(&mut self, what: &str, ask: &OffloadAsk<'_>) -> OffloadPlan {
        let mut offloading = self.call(what, |pool| pool.start_offload(ask, 0)).unwrap();
        self.calls(what, |pool| pool.offload_some(ask, &mut offloading, 0).unwrap());
        self.pool.offload_plan(offloading)
    }

    fn store(&mut self, parent: Option<u32>, range: std::ops::Range<u32>) {
        let part = hashes(range);
        let ask = self.ask(parent.map(hash), &part);
        let plan = self.offload("offload", &ask);
        let filled: Vec<(u32, u64)> = (0..part.len() as u32).map(|at| (at, u64::from(at))).collect();
        let committed =
            self.call("commit", |pool| pool.commit_offload(plan.lease.unwrap(), CLIENT, &filled, 0)).unwrap();
        assert_eq!(committed.kept.len(), part.len());
    }

    /// One chain of so many pages.
    fn store_chain(&mut self, pages: u32) {
        for at in (0..pages).step_by(LEASE_PAGES_MAX as usize) {
            self.store(at.checked_sub(1), at..pages.min(at + LEASE_PAGES_MAX));
        }
    }

    fn write_all(&mut self) {
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

    fn reload(&mut self, hashes: &[BlockHash], client: ClientId) -> ReloadPlan {
        let ask =
            ReloadAsk { ns: self.ns, hashes, shards: Shards::one(0), client, session: None, hold: false };
        self.call("reload", |pool| pool.begin_reload(ask, 0)).unwrap()
    }
}

#[test]
fn what_leases_do_is_bounded_by_their_pages() {
    let mut all = Counted::new(1 << 17, 1, false, PolicyKind::Session);
    all.store_chain(PAGES);
    let list = all.list.clone();
    let plan = all.reload(&list, CLIENT);
    assert_eq!(plan.pages.len(), LEASE_PAGES_MAX as usize, "one lease has its bound");
    all.call("end of a reload", |pool| pool.end_reload(plan.lease.unwrap(), CLIENT, &[], 0)).unwrap();

    // All of it offered again, and more than there is room for in a lease.
    let more = hashes(PAGES..PAGES + 1);
    let both = [&list[1..], &more[..]].concat();
    let ask = all.ask(Some(list[0]), &both);
    let plan = all.offload("all present", &ask);
    assert!(matches!(plan.outcomes.last(), Some(Outcome::Granted(_))), "{:?}", plan.outcomes.last());
    all.call("abort", |pool| pool.abort_offload(plan.lease.unwrap(), CLIENT)).unwrap();
    let plan = {
        let wanted = hashes(200_000..200_000 + PAGES);
        let ask = all.ask(None, &wanted);
        all.offload("none present", &ask)
    };
    let granted = plan.outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Granted(_))).count();
    assert_eq!(granted, LEASE_PAGES_MAX as usize);
    assert_eq!(plan.outcomes.last(), Some(&Outcome::LeaseLimit));
    all.calls("quarantine", |pool| pool.expire(1_000));
    all.calls("a client that is gone", |pool| pool.client_gone(CLIENT, 1_000));
    all.pool.check().unwrap();
}

#[test]
fn held_slots_are_bounded_by_their_lease() {
    let mut all = Counted::new(1 << 14, 1, false, PolicyKind::Lru);
    let ask = ReserveAsk { ns: all.ns, shard: 0, client: CLIENT, lease: None, pages: LEASE_PAGES_MAX };
    let mut reserved = all.call("reserve", |pool| pool.reserve(ask, 0)).unwrap();
    while reserved.short.is_none() && reserved.slots.len() < LEASE_PAGES_MAX as usize {
        let (next, lease) = (reserved.slots.len() as u32, reserved.lease);
        let ask = ReserveAsk { lease, pages: LEASE_PAGES_MAX - next, ..ask };
        let more = all.call("reserve", |pool| pool.reserve_more(ask, next, 0)).unwrap().unwrap();
        assert_eq!(more.first, next, "one run of positions");
        reserved.slots.extend(more.slots);
    }
    let lease = reserved.lease.unwrap();
    let many = vec![lease; 4096];
    assert_eq!(all.call("renew", |pool| pool.renew(CLIENT, &many, 0)), Renewed::default());
    let list = hashes(0..LEASE_PAGES_MAX);
    let filled: Vec<(u32, u64)> = (0..LEASE_PAGES_MAX).map(|at| (at, u64::from(at))).collect();
    let ask = CommitReservedAsk { pages: all.ask(None, &list), lease, filled: &filled, siblings: false };
    let done = all.call("commit", |pool| pool.commit_reserved(ask, 0)).unwrap();
    assert_eq!(done.kept.len(), list.len());
    let every: Vec<u32> = (0..LEASE_PAGES_MAX).collect();
    let some: Vec<u32> = (0..LEASE_PAGES_MAX - 1).collect();
    let twice = [&every[..], &every[..]].concat();
    let refused = all.call("release", |pool| pool.release(lease, CLIENT, &[], &twice, 0));
    assert!(matches!(refused, Err(PoolError::Invalid(_))), "more corrupt positions than the lease has");
    all.call("release", |pool| pool.release(lease, CLIENT, &some, &some, 0)).unwrap();
    all.call("release", |pool| pool.release(lease, CLIENT, &every[every.len() - 1..], &[], 0)).unwrap();
    all.calls("what is corrupt goes", |pool| pool.expire(0));
    assert_eq!((all.pool.stats().pages, all.pool.stats().leases), (0, 0));
    all.pool.check().unwrap();
}

/// As after a restart: what is kept of a pin is enough to have it again, bit by bit.
fn bring_pin_back(all: &mut Counted) {
    let (ns, list) = (all.ns, all.list.clone());
    let pin = list[PAGES as usize - 1];
    let record = all.call("record", |pool| pool.pin_record(ns, &pin, 1)).unwrap();
    assert!(record.hashes.len() < LIST_CHUNK_PAGES as usize && record.ends_in_ms == 100);
    assert_eq!(all.pool.pin_names(0), (vec![(ns, pin)], None));
    assert!(all.call("unpin", |pool| pool.unpin(ns, &pin)).unwrap());
    all.calls("what was pinned is let go", |pool| pool.expire(1));
    assert_eq!(all.pool.pin_record(ns, &pin, 1), None);
    let mut start = None;
    for chunk in list[..PAGES as usize].chunks(LIST_CHUNK_PAGES as usize) {
        start = all.pool.list_start(ns, start, chunk);
    }
    let start = start.unwrap();
    let mut pinning = all.call("pin again", |pool| pool.begin_pin_again(ns, pin, start, 100, 1)).unwrap();
    all.calls("pin again", |pool| pool.pin_again(&mut pinning));
    assert_eq!(all.call("pin again", |pool| pool.end_pin(pinning, 1)).pages, PAGES);
    assert_eq!(all.pool.pin_record(ns, &pin, 1), Some(record));
}

#[test]
fn whole_prefixes_are_looked_up_pinned_and_dropped_bit_by_bit() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        let mut all = Counted::new(1 << 17, 1, true, policy);
        all.store_chain(PAGES);
        all.write_all();
        let (ns, list) = (all.ns, all.list.clone());
        for part in list.chunks(HASHES_PER_LOOK_MAX) {
            let found = all.call("lookup", |pool| pool.lookup(ns, part, 0)).unwrap();
            assert_eq!(found.present as usize, part.len());
        }
        for round in 0..2 {
            let mut pinning = all.call("pin", |pool| pool.begin_pin(ns, &list, 100, round)).unwrap();
            all.calls("pin", |pool| pool.pin_some(&mut pinning, &list));
            let pinned = all.call("pin", |pool| pool.end_pin(pinning, round));
            assert_eq!(pinned.pages, PAGES, "round {round}");
        }
        bring_pin_back(&mut all);
        assert!(all.call("unpin", |pool| pool.unpin(ns, &list[PAGES as usize - 1])).unwrap());
        all.calls("what was pinned is let go", |pool| pool.expire(0));
        assert_eq!(all.pool.stats().protected_pages, 0);
        all.pool.check().unwrap();

        let mut sweep = Sweep::default();
        all.calls("demote", |pool| pool.demote_some(None, &mut sweep));
        assert_eq!(sweep.pages(), u64::from(PAGES));
        all.calls("touch", |pool| {
            pool.touch_pages(ns, &list[..HASHES_PER_LOOK_MAX], 0);
            true
        });
        let mut from = 0;
        let mut reads = vec![];
        all.calls("promote", |pool| {
            reads.extend(pool.begin_promote(ns, &list, 0, &mut from, 0).unwrap());
            reads.len() >= 4096 || from == list.len()
        });
        // The first page's read fails: all that hangs on it goes with it, in the calls that follow.
        let first = reads[0];
        all.call("a read that failed", |pool| {
            pool.promote_failed(first.page, 0, MissCause::Checksum, 0);
        });
        all.calls("what hangs on it", |pool| pool.expire(0));
        assert_eq!(all.pool.stats().pages, 0);
        for read in &reads[1..] {
            assert!(!all.call("a read that is late", |pool| pool.promoted(read.page, 0, 0)));
        }
        all.pool.check().unwrap();
    }
}

#[test]
fn walks_through_the_index_are_cut() {
    let mut all = Counted::new(1 << 17, 1, true, PolicyKind::Session);
    all.store_chain(PAGES);
    let mut sweep = Sweep::default();
    all.calls("admit", |pool| pool.admit_some(&mut sweep, 0));
    all.write_all();
    let mut sweep = Sweep::default();
    let calls = all.calls("evict", |pool| pool.evict_some(None, &mut sweep));
    assert_eq!((sweep.pages(), all.pool.stats().pages), (u64::from(PAGES), 0));
    assert!(calls > 10, "{calls} calls");

    all.store_chain(PAGES);
    all.write_all();
    let mut sweep = Sweep::default();
    all.calls("demote", |pool| pool.demote_some(None, &mut sweep));
    let list = all.list.clone();
    all.reload(&list[..100], OTHER);
    let mut sweep = all.call("the device is lost", |pool| pool.nvme_lost());
    all.calls("what was on it", |pool| pool.lose_some(&mut sweep));
    all.calls("leases end", |pool| pool.client_gone(OTHER, 0));
    assert!(all.pool.stats().pages <= 100);
    all.pool.check().unwrap();
}

#[test]
fn time_ends_thousands_of_leases_bit_by_bit() {
    let mut all = Counted::new(1 << 17, 1, false, PolicyKind::Lru);
    all.store_chain(LEASE_PAGES_MAX);
    let list = hashes(0..64);
    for client in [CLIENT, OTHER] {
        for _ in 0..500 {
            all.reload(&list, client);
        }
    }
    let calls = all.calls("a client that is gone", |pool| pool.client_gone(CLIENT, 0));
    assert!(calls > 5, "{calls} calls");
    assert_eq!(all.pool.stats().leases, 500);
    let calls = all.calls("read leases end by time", |pool| pool.expire(1_000_000));
    assert!(calls > 5, "{calls} calls");
    assert_eq!((all.pool.stats().leases, all.pool.stats().dram.leased_bytes), (0, 0));
    all.pool.check().unwrap();
}

#[test]
fn making_room_is_bounded_however_little_can_go() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        // Everything is dirty: nothing can go, and the search for a victim must not look at all of it at once.
        let mut all = Counted::new(1 << 14, 1, true, policy);
        for at in 0..15 {
            all.store(None, at * 10_000..at * 10_000 + LEASE_PAGES_MAX);
        }
        let other = all.call("open", |pool| pool.open_namespace(desc(2, "b", 8192, 1))).unwrap();
        for ns in [all.ns, other] {
            for round in 0..10 {
                let wanted = hashes(900_000 + round * 2_000..900_000 + round * 2_000 + 2_000);
                let ask = OffloadAsk { ns, ..all.ask(None, &wanted) };
                let plan = all.offload("little can go", &ask);
                if let Some(lease) = plan.lease {
                    all.call("abort", |pool| pool.abort_offload(lease, CLIENT)).unwrap();
                }
                all.call("maintain", |pool| pool.maintain(u64::from(round)));
            }
        }
        all.write_all();
        for round in 0..200 {
            all.call("maintain", |pool| pool.maintain(1_000 + round));
        }
        all.pool.check().unwrap();
    }
}

/// A session of as many pages as one may have: they are named in two calls.
const SESSION_PAGES: u32 = 131_072;

impl Counted {
    /// Ends a turn of a session whose list begins with `keep` pages of what it has.
    fn end_turn(&mut self, what: &str, session: &SessionId, end: EndTurn<'_>) -> u32 {
        let mut turn = TurnEnd::new(self.ns, session, end);
        self.calls(what, |pool| !pool.end_turn_step(&mut turn, 1).unwrap());
        turn.pages()
    }

    fn begin_turn(&mut self, session: &SessionId) -> TurnBegun {
        let ns = self.ns;
        let mut turn = self.call("begin of a turn", |pool| pool.start_turn(ns, session, 1)).unwrap();
        self.calls("begin of a turn", |pool| pool.begin_turn_some(&mut turn, 1));
        self.call("begin of a turn", |pool| pool.turn_begun(&turn))
    }

    /// A session of the longest list, all of it in DRAM.
    fn long_session(policy: PolicyKind, nvme: bool, priority: u32) -> (Counted, SessionId) {
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

    fn tick(&mut self, now: Now) {
        self.calls("what is done by and by", |pool| pool.expire(now));
        self.call("maintain", |pool| pool.maintain(now));
        self.pool.check().unwrap();
    }
}

#[test]
fn what_is_asked_of_the_longest_session_is_answered_bit_by_bit() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        let (mut all, id) = Counted::long_session(policy, true, 1);
        let ns = all.ns;
        let mut describing = Describing::default();
        let calls = all.calls("describe", |pool| pool.describe_some(ns, &id, &mut describing).unwrap());
        let detail = all.call("describe", |pool| pool.described(ns, &id, &describing, 1)).unwrap();
        assert_eq!((detail.info.pages, detail.dram_pages), (SESSION_PAGES, SESSION_PAGES));
        assert_eq!((detail.bytes, calls > 1), (u64::from(SESSION_PAGES) * 4096, true));
        let mut naming = Naming::default();
        assert!(all.calls("name", |pool| pool.name_some(ns, &id, &mut naming).unwrap()) > 1);
        assert!(naming.hashes() == hashes(0..SESSION_PAGES));
        let mut expecting = all.call("expect", |pool| pool.start_expecting(ns, &id, 60_000, 1)).unwrap();
        assert!(all.calls("expect", |pool| pool.expect_some(&mut expecting, 1).unwrap()) > 10);
        assert_eq!(expecting.dram_pages(), SESSION_PAGES);
        let begun = all.begin_turn(&id);
        assert_eq!((begun.pages, begun.dram), (SESSION_PAGES, SESSION_PAGES));
        let mut record = None;
        all.call("record", |pool| record = pool.session_record(ns, &id, 1));
        assert_eq!(record.unwrap().hashes.len() as u32, SESSION_PAGES % LIST_CHUNK_PAGES);
        all.pool.check().unwrap();
    }
}

#[test]
fn what_the_longest_session_leaves_goes_first_bit_by_bit() {
    for policy in [PolicyKind::Lru, PolicyKind::Session] {
        let (mut all, id) = Counted::long_session(policy, false, 1);
        let (ns, fork, half) = (all.ns, session("fork"), SESSION_PAGES / 2);
        assert!(all.pool.stats().protected_pages > 0);
        assert_eq!(all.call("fork", |pool| pool.fork(ns, &id, &fork, half, 1)), Ok(half));
        assert_eq!(all.call("supersede", |pool| pool.supersede(ns, &fork, 1, 1)), Ok(1));
        assert_eq!(all.call("fork", |pool| pool.fork(ns, &id, &fork, half, 1)), Ok(half));
        all.tick(1);
        // The end of a turn that leaves the second half of the list.
        all.begin_turn(&id);
        assert_eq!(all.end_turn("end that leaves a branch", &id, end_turn(half, &[])), half);
        all.tick(1);
        assert_eq!(all.pool.stats().left_branches, 0);
        let wanted = hashes(900_000..901_000);
        let ask = all.ask(None, &wanted);
        all.pool.begin_offload(ask, 2).unwrap();
        let more = hashes(910_000..910_000 + 4 * 1024);
        for part in more.chunks(1024) {
            let ask = all.ask(None, part);
            all.offload("in place of what was left", &ask);
        }
        let left = present(&mut all.pool, ns, 0..PAGES);
        assert_eq!(left, PAGES, "the tail goes before the head");
        for id in [&fork, &id] {
            all.call("close", |pool| pool.close(ns, id, 3)).unwrap();
        }
        all.tick(3);
        assert_eq!((all.pool.stats().protected_pages, all.pool.stats().left_branches), (0, 0));
    }
}

#[test]
fn a_commit_that_waits_for_the_longest_session_is_begun_bit_by_bit() {
    let mut all = Counted::new(u64::from(SESSION_PAGES), 1, true, PolicyKind::Session);
    all.store_chain(SESSION_PAGES);
    let ns = all.ns;
    let key = |pool: &Pool, at: u32| pool.page_key(ns, &hash(at)).unwrap();
    let keys: Vec<PageKey> =
        (SESSION_PAGES - LEASE_PAGES_MAX..SESSION_PAGES).map(|at| key(&all.pool, at)).collect();
    for round in 0..3 {
        let (mut durable, mut missing) = (all.pool.begin_durable(&keys), vec![]);
        all.calls("durable", |pool| {
            let (some, done) = pool.hurry_some(&mut durable);
            missing.extend(some);
            done
        });
        assert_eq!(missing.len() as u32, SESSION_PAGES, "round {round}");
        assert!(missing[0] == key(&all.pool, 0) && missing[PAGES as usize] == key(&all.pool, PAGES));
    }
    assert!(all.pool.stats().waiting_writes <= 2 * u64::from(SESSION_PAGES), "none waits in one lane twice");
    all.write_all();
    all.pool.check().unwrap();
    assert!(all.pool.make_durable(&keys).is_empty());
}

#[test]
fn stale_writes_are_sifted_bit_by_bit() {
    let mut all = Counted::new(u64::from(PAGES), 1, true, PolicyKind::Lru);
    for _ in 0..4 {
        // Dirty pages that are dropped leave their places in the queue.
        all.store_chain(PAGES);
        let mut sweep = Sweep::default();
        all.calls("evict", |pool| pool.evict_some(None, &mut sweep));
        for now in 0..64 {
            all.call("maintain", |pool| pool.maintain(now));
        }
    }
    let waiting = all.pool.stats().waiting_writes;
    assert!(waiting < 2 * u64::from(PAGES), "{waiting} stale places");
    all.write_all();
    assert_eq!(all.pool.stats().waiting_writes, 0);
}

#[test]
fn the_last_page_written_may_make_a_long_path_durable() {
    let mut all = Counted::new(u64::from(PAGES), 1, true, PolicyKind::Lru);
    all.store_chain(PAGES);
    let mut writes = vec![];
    while writes.len() < PAGES as usize {
        writes.extend(all.call("writes", |pool| pool.next_writes(u64::MAX, 0)));
    }
    for write in writes.iter().rev() {
        let place = NvmePlace { segment: 0, generation: 0, block: write.page.index };
        assert!(all.call("written, tails first", |pool| pool.written(write.page, 0, place, 0)));
    }
    let last = writes[PAGES as usize - 1].page;
    for round in 0..2 {
        let mut durable = all.pool.begin_durable(&[last]);
        let calls = all.calls("durable", |pool| pool.hurry_some(&mut durable).1);
        assert_eq!(calls == 1, round == 1, "what was found to be durable once is known to be: {calls} calls");
    }
    all.pool.check().unwrap();
}

#[test]
fn the_prefetch_of_the_longest_session_keeps_its_place() {
    let (mut all, id) = Counted::long_session(PolicyKind::Session, true, 0);
    let ns = all.ns;
    all.write_all();
    let mut sweep = Sweep::default();
    all.calls("demote", |pool| pool.demote_some(None, &mut sweep));
    all.pool.expect_return(ns, &id, 1, 1).unwrap();
    let (mut reads, mut calls) = (0, 0);
    while reads < SESSION_PAGES as usize {
        let (mut prefetching, mut some) = (Prefetching::new(64 << 20), vec![]);
        calls += all.calls("prefetch", |pool| pool.prefetch_some(&mut prefetching, &mut some, 2));
        assert!(!some.is_empty(), "{reads} pages are read");
        for read in &some {
            assert!(all.call("landed", |pool| pool.promoted(read.page, read.shard, 2)));
        }
        reads += some.len();
    }
    assert!(calls < 1_000, "{calls} calls");
    assert_eq!(all.begin_turn(&id).dram, SESSION_PAGES);
}

#[test]
fn the_longest_path_leaves_nvme_bit_by_bit() {
    let (mut all, _) = Counted::long_session(PolicyKind::Lru, true, 0);
    all.write_all();
    let mut sweep = Sweep::default();
    all.calls("demote", |pool| pool.demote_some(None, &mut sweep));
    let first = all.pool.page_key(all.ns, &hash(0)).unwrap();
    assert!(all.calls("what leaves NVMe", |pool| pool.drop_page(first)) > 100);
    assert_eq!(all.pool.stats().pages, 0);
    all.pool.check().unwrap();
}

#[test]
fn ten_thousand_sessions_are_listed_bit_by_bit() {
    let mut all = Counted::new(1024, 1, false, PolicyKind::Lru);
    for at in 0..20_000 {
        all.pool.begin_turn(all.ns, &session(&format!("s{at}")), 0).unwrap();
    }
    let mut listing = Listing::default();
    assert!(all.calls("list", |pool| pool.list_some(None, 0, &mut listing, 0)) > 4);
    let mut names: Vec<SessionId> = listing.sessions().into_iter().map(|info| info.session).collect();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), limits::SESSION_LIST_MAX);
    assert_eq!(all.pool.session_count(None), 20_000);
}

#[test]
fn pages_read_often_do_not_make_the_search_for_a_victim_long() {
    for policy in [PolicyKind::S3Fifo, PolicyKind::TinyLfu, PolicyKind::Arc] {
        let mut all = Counted::new(1 << 14, 1, false, policy);
        for at in 0..16 {
            all.store(None, at * 10_000..at * 10_000 + LEASE_PAGES_MAX);
        }
        for _ in 0..4 {
            for at in 0..16 {
                let list = hashes(at * 10_000..at * 10_000 + LEASE_PAGES_MAX);
                let plan = all.reload(&list, CLIENT);
                all.call("end of a reload", |pool| pool.end_reload(plan.lease.unwrap(), CLIENT, &[], 0))
                    .unwrap();
            }
        }
        for round in 0..64 {
            all.store(None, 900_000 + round..900_001 + round);
        }
        all.pool.check().unwrap();
    }
}
