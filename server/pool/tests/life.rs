//! The life of sessions: protection, pins, forks, what goes first. Owns: examples with content of the pool under pressure.
//! Must not know: the pool's insides.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use turnkv_pool::*;
use turnkv_proto::{BlockHash, NamespaceId, SessionId, Shards};

const CLIENT: ClientId = ClientId(1);

fn new_pool(slab_bytes: u64, slab_count: u32, nvme_bytes: u64, limits: Limits) -> Pool {
    let (free_slots_percent, policy) = (0, PolicyKind::Lru);
    let (nvme_admit, nvme_bytes_per_day) = (Admit::All, 0);
    Pool::new(PoolConfig {
        slab_bytes,
        slab_count,
        nvme_bytes,
        free_slots_percent,
        limits,
        policy,
        nvme_admit,
        nvme_bytes_per_day,
    })
    .unwrap()
}

/// One tenant's namespace over 32 pages of DRAM: 8 may be protected.
fn pool() -> (Pool, NamespaceIndex) {
    let mut pool = new_pool(128 << 10, 2, 0, Limits { client_slots_percent: 100, ..Limits::default() });
    let ns = open(&mut pool, 1, "a");
    (pool, ns)
}

fn open(pool: &mut Pool, at: u8, tenant: &str) -> NamespaceIndex {
    let (id, tenant) = (NamespaceId([at; 32]), tenant.to_owned());
    pool.open_namespace(NamespaceDesc { id, tenant, shard_bytes: 8 << 10, page_tokens: 16, shards: 1 })
        .unwrap()
}

/// Page `at` of chain `chain`.
fn hash(chain: u32, at: u32) -> BlockHash {
    let mut bytes = [9; 32];
    bytes[..4].copy_from_slice(&chain.to_le_bytes());
    bytes[4..8].copy_from_slice(&at.to_le_bytes());
    BlockHash(bytes)
}

fn chain(chain: u32, pages: u32) -> Vec<BlockHash> {
    (0..pages).map(|at| hash(chain, at)).collect()
}

fn id(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

/// One turn: offloads what is not there of the whole list, and ends with it. Returns the pages kept.
fn turn(
    pool: &mut Pool,
    ns: NamespaceIndex,
    name: &str,
    list: &[BlockHash],
    end: EndTurn<'_>,
    now: Now,
) -> u32 {
    let session = id(name);
    pool.begin_turn(ns, &session, now).unwrap();
    let ask = OffloadAsk {
        ns,
        session: Some(&session),
        parent: None,
        hashes: list,
        shards: Shards::one(0),
        tail_tokens: 0,
        client: CLIENT,
    };
    let plan = pool.begin_offload(ask, now).unwrap();
    if let Some(lease) = plan.lease {
        let granted = |(_, outcome): &(usize, &Outcome)| matches!(outcome, Outcome::Granted(_));
        let filled = plan.outcomes.iter().enumerate().filter(granted).map(|(at, _)| (at as u32, 0));
        let filled: Vec<(u32, u64)> = filled.collect();
        pool.commit_offload(lease, CLIENT, &filled, now).unwrap();
    }
    let kept = pool.end_turn(ns, &session, EndTurn { keep: 0, hashes: list, ..end }, now).unwrap();
    pool.check().unwrap();
    kept
}

fn usual<'a>() -> EndTurn<'a> {
    EndTurn {
        keep: 0,
        hashes: &[],
        tail_tokens: 0,
        expected_return_ms: 0,
        ttl_ms: 0,
        priority: 0,
        last: false,
    }
}

fn important<'a>(priority: u32, ttl_ms: u64) -> EndTurn<'a> {
    EndTurn { priority, ttl_ms, ..usual() }
}

fn present(pool: &mut Pool, ns: NamespaceIndex, list: &[BlockHash]) -> u32 {
    pool.lookup(ns, list, 0).unwrap().present
}

/// Other sessions' pages, more than DRAM has.
fn flood(pool: &mut Pool, ns: NamespaceIndex, now: Now) {
    for at in 0..8 {
        let name = format!("flood-{now}-{at}");
        turn(pool, ns, &name, &chain(1000 + now as u32 * 10 + at, 6), usual(), now);
    }
}

#[test]
fn a_session_with_a_priority_outlives_a_flood_that_an_equal_one_does_not() {
    let (mut pool, ns) = pool();
    turn(&mut pool, ns, "usual", &chain(1, 6), usual(), 0);
    turn(&mut pool, ns, "important", &chain(2, 6), important(1, 10_000), 0);
    assert_eq!(pool.stats().protected_pages, 6);
    flood(&mut pool, ns, 1);
    assert_eq!(present(&mut pool, ns, &chain(1, 6)), 0, "nothing holds the usual one");
    assert_eq!(present(&mut pool, ns, &chain(2, 6)), 6);
    assert_eq!(pool.describe_session(ns, &id("important"), 1).unwrap().protected_pages, 6);
}

#[test]
fn protection_decays_from_the_tail_and_ends() {
    let (mut pool, ns) = pool();
    turn(&mut pool, ns, "s", &chain(1, 8), important(1, 800), 0);
    let mut kept = Vec::new();
    for now in (0..=900).step_by(100) {
        pool.expire(now);
        pool.check().unwrap();
        kept.push(pool.stats().protected_pages);
    }
    assert_eq!(kept, [8, 7, 6, 5, 4, 3, 2, 1, 0, 0]);
    assert_eq!(pool.stats().ended_protections, 1);
}

#[test]
fn the_budget_holds_and_the_more_important_session_gets_it() {
    let (mut pool, ns) = pool();
    turn(&mut pool, ns, "low", &chain(1, 6), important(1, 10_000), 0);
    turn(&mut pool, ns, "same", &chain(2, 6), important(1, 10_000), 0);
    assert_eq!(pool.describe_session(ns, &id("same"), 0).unwrap().protected_pages, 2, "what the budget left");
    turn(&mut pool, ns, "high", &chain(3, 6), important(9, 10_000), 0);
    let stats = pool.stats();
    assert!(stats.protected_bytes <= stats.protection_budget_bytes, "{stats:?}");
    assert_eq!(pool.describe_session(ns, &id("high"), 0).unwrap().protected_pages, 6);
    assert_eq!(pool.describe_session(ns, &id("low"), 0).unwrap().protected_pages, 0, "it gave way");
}

#[test]
fn the_tenants_together_never_protect_more_than_half() {
    let mut pool = new_pool(64 << 10, 8, 0, Limits { client_slots_percent: 100, ..Limits::default() });
    for tenant in 2..8 {
        let ns = open(&mut pool, tenant, &format!("t{tenant}"));
        turn(&mut pool, ns, "s", &chain(tenant.into(), 8), important(5, 10_000), 0);
    }
    let stats = pool.stats();
    assert_eq!((stats.pages, stats.protected_pages), (48, 32), "of 64 slots: {stats:?}");
}

#[test]
fn protection_is_never_a_lock() {
    let mut pool = new_pool(
        64 << 10,
        1,
        0,
        Limits { protected_percent: 50, client_slots_percent: 100, ..Limits::default() },
    );
    let ns = open(&mut pool, 1, "a");
    turn(&mut pool, ns, "held", &chain(1, 4), important(9, 100_000), 0);
    // Everything but what is protected is under a read lease: the only pages that can go are the protected ones.
    turn(&mut pool, ns, "read", &chain(2, 4), usual(), 0);
    let list = chain(2, 4);
    let read =
        ReloadAsk { ns, hashes: &list, shards: Shards::one(0), client: CLIENT, session: None, hold: false };
    assert!(pool.begin_reload(read, 0).unwrap().lease.is_some());
    assert_eq!(turn(&mut pool, ns, "new", &chain(3, 4), usual(), 1), 4, "offloads go on");
    assert_eq!(present(&mut pool, ns, &chain(1, 4)), 0);
    assert_eq!(pool.stats().protected_pages, 0);
}

#[test]
fn a_pin_keeps_a_prefix_until_it_ends_and_can_be_renewed_and_given_up() {
    let (mut pool, ns) = pool();
    let prefix = chain(1, 4);
    turn(&mut pool, ns, "first", &prefix, usual(), 0);
    let pinned = pool.pin(ns, &prefix, 1_000, 0).unwrap();
    assert_eq!((pinned.pages, pinned.ends_in_ms), (4, 1_000));
    pool.close(ns, &id("first"), 0).unwrap();
    flood(&mut pool, ns, 1);
    assert_eq!(present(&mut pool, ns, &prefix), 4, "closing its last session does not unpin");
    pool.pin(ns, &prefix, 1_000, 900).unwrap();
    pool.expire(1_500);
    flood(&mut pool, ns, 1_600);
    assert_eq!(present(&mut pool, ns, &prefix), 4, "renewed");
    assert_eq!(pool.unpin(ns, &prefix[3]), Ok(true));
    assert_eq!(pool.unpin(ns, &prefix[3]), Ok(false));
    flood(&mut pool, ns, 1_700);
    assert_eq!(present(&mut pool, ns, &prefix), 0, "given up");
    pool.check().unwrap();
}

#[test]
fn a_pin_ends_by_time_alone() {
    let (mut pool, ns) = pool();
    turn(&mut pool, ns, "first", &chain(1, 4), usual(), 0);
    pool.pin(ns, &chain(1, 4), 1_000, 0).unwrap();
    pool.expire(1_000);
    assert_eq!((pool.stats().protections, pool.stats().protected_bytes), (0, 0));
}

#[test]
fn a_pin_says_how_far_it_reaches() {
    let (mut pool, ns) = pool();
    turn(&mut pool, ns, "s", &chain(1, 12), usual(), 0);
    assert_eq!(pool.pin(ns, &chain(1, 12), 0, 0).unwrap().pages, 8, "the tenant's budget");
    assert_eq!(pool.pin(ns, &chain(2, 3), 0, 0).unwrap().pages, 0, "none of it is here");
    assert!(matches!(pool.pin(ns, &[], 0, 0), Err(PoolError::Invalid(_))));
    pool.check().unwrap();
}

#[test]
fn superseded_pages_are_not_protected_by_their_session_any_more() {
    let (mut pool, ns) = pool();
    turn(&mut pool, ns, "s", &chain(1, 6), important(3, 10_000), 0);
    pool.supersede(ns, &id("s"), 2, 1).unwrap();
    assert_eq!(pool.stats().protected_pages, 2);
    pool.close(ns, &id("s"), 2).unwrap();
    assert_eq!(pool.stats().protected_pages, 0);
    pool.check().unwrap();
}

#[test]
fn forks_share_pages_and_describe_says_so() {
    let (mut pool, ns) = pool();
    turn(&mut pool, ns, "a", &chain(1, 6), usual(), 0);
    assert_eq!(pool.fork(ns, &id("a"), &id("b"), 4, 5), Ok(4));
    assert_eq!(pool.stats().pages, 6, "a fork makes no page");
    let mut list = chain(1, 4);
    list.extend([hash(2, 0), hash(2, 1)]);
    turn(&mut pool, ns, "b", &list, EndTurn { expected_return_ms: 100, ..usual() }, 10);
    assert_eq!(pool.stats().pages, 8, "and adds only its own");
    let detail = pool.describe_session(ns, &id("b"), 30).unwrap();
    assert_eq!((detail.info.pages, detail.shared_pages, detail.dram_pages, detail.nvme_pages), (6, 4, 6, 0));
    assert_eq!((detail.returns_in_ms, detail.bytes, detail.priority), (Some(80), 6 * (8 << 10), 0));
    assert_eq!(pool.describe_session(ns, &id("c"), 0), Err(PoolError::SessionUnknown));
}

#[test]
fn superseded_go_before_closed_before_idle() {
    let (mut pool, ns) = pool();
    turn(&mut pool, ns, "idle", &chain(1, 8), usual(), 0);
    turn(&mut pool, ns, "closed", &chain(2, 8), usual(), 1);
    turn(&mut pool, ns, "edited", &chain(3, 8), usual(), 2);
    pool.close(ns, &id("closed"), 3).unwrap();
    pool.supersede(ns, &id("edited"), 4, 4).unwrap();
    // 24 of 32 pages are used: 12 more need 4, which are the superseded branch.
    turn(&mut pool, ns, "n1", &chain(4, 12), usual(), 5);
    assert_eq!(present(&mut pool, ns, &chain(3, 8)), 4, "the branch went first");
    assert_eq!(present(&mut pool, ns, &chain(2, 8)), 8);
    turn(&mut pool, ns, "n2", &chain(5, 8), usual(), 6);
    assert_eq!(present(&mut pool, ns, &chain(2, 8)), 0, "then the closed one");
    assert_eq!(present(&mut pool, ns, &chain(1, 8)), 8, "before the idle one, though it is older");
}

#[test]
fn dead_engines_do_not_fill_the_table_of_sessions() {
    let mut pool = new_pool(128 << 10, 1, 0, Limits { sessions_max: 4, ..Limits::default() });
    let ns = open(&mut pool, 1, "a");
    for at in 0..4 {
        pool.begin_turn(ns, &id(&format!("dead-{at}")), 0).unwrap();
    }
    let new = id("new");
    assert_eq!(pool.begin_turn(ns, &new, 1_000), Err(PoolError::Limit("sessions_max")), "they may be alive");
    assert!(pool.begin_turn(ns, &new, limits::SILENT_TURN_MS).is_ok());
}

/// A pool of 32 slots over NVMe, with two sessions of 16 pages that are on NVMe only.
fn two_tiers() -> (Pool, NamespaceIndex) {
    let mut pool = new_pool(
        128 << 10,
        2,
        1 << 30,
        Limits { client_slots_percent: 100, protected_percent: 0, ..Limits::default() },
    );
    let ns = open(&mut pool, 1, "a");
    (pool, ns)
}

fn write_all(pool: &mut Pool, now: Now) {
    for write in pool.next_writes(u64::MAX, now) {
        let place = NvmePlace { segment: write.page.index as u16, generation: 0, block: now as u32 };
        assert!(pool.written(write.page, write.shard, place, now));
    }
}

fn in_dram(pool: &mut Pool, ns: NamespaceIndex, name: &str, now: Now) -> u32 {
    pool.describe_session(ns, &id(name), now).unwrap().dram_pages
}

fn land(pool: &mut Pool, reads: &[Promotion], now: Now) {
    for read in reads {
        assert!(pool.promoted(read.page, read.shard, now));
    }
    pool.check().unwrap();
}

fn back_in<'a>(expected_return_ms: u64) -> EndTurn<'a> {
    EndTurn { expected_return_ms, ..usual() }
}

#[test]
fn a_session_is_in_dram_before_it_returns_and_stays_there() {
    let (mut pool, ns) = two_tiers();
    turn(&mut pool, ns, "s", &chain(1, 16), back_in(10_000), 0);
    write_all(&mut pool, 0);
    pool.demote_all(None);
    assert!(pool.next_prefetches(u64::MAX, 7_000).is_empty(), "not yet");
    let first = pool.next_prefetches(5 * (8 << 10), 8_000);
    assert_eq!(first.len(), 5, "no more than was allowed, the head first");
    land(&mut pool, &first, 8_010);
    let rest = pool.next_prefetches(u64::MAX, 8_010);
    assert_eq!(rest.len(), 11);
    land(&mut pool, &rest, 8_020);
    assert!(pool.next_prefetches(u64::MAX, 8_030).is_empty());
    // Others fill DRAM meanwhile, three times over: what returns in moments is spared.
    for at in 0..6 {
        turn(&mut pool, ns, &format!("o{at}"), &chain(100 + at, 16), usual(), 8_100 + u64::from(at));
        write_all(&mut pool, 8_200 + u64::from(at));
    }
    assert_eq!(in_dram(&mut pool, ns, "s", 9_900), 16);
    assert_eq!(pool.begin_turn(ns, &id("s"), 10_000).unwrap().dram, 16);
}

#[test]
fn a_prefetch_never_evicts_what_returns_sooner() {
    let (mut pool, ns) = two_tiers();
    turn(&mut pool, ns, "later", &chain(1, 16), back_in(9_000), 0);
    write_all(&mut pool, 0);
    pool.demote_all(None);
    // All 32 slots: one session that returns sooner, one that returns later than the one to be prefetched.
    turn(&mut pool, ns, "sooner", &chain(2, 24), back_in(8_500), 1);
    turn(&mut pool, ns, "much-later", &chain(3, 8), back_in(60_000), 2);
    write_all(&mut pool, 3);
    let reads = pool.next_prefetches(u64::MAX, 8_000);
    assert_eq!(reads.len(), 8, "the eight slots of the one that returns last");
    land(&mut pool, &reads, 8_001);
    assert_eq!(in_dram(&mut pool, ns, "sooner", 8_001), 24, "not one page of it");
    assert_eq!(in_dram(&mut pool, ns, "much-later", 8_001), 0);
    // It is tried again, and gets the room of those who came and went.
    pool.begin_turn(ns, &id("sooner"), 8_500).unwrap();
    pool.close(ns, &id("sooner"), 8_510).unwrap();
    assert_eq!(pool.next_prefetches(u64::MAX, 8_600).len(), 8);
}

#[test]
fn sessions_that_came_are_not_waited_for() {
    let (mut pool, ns) = two_tiers();
    turn(&mut pool, ns, "next", &chain(1, 16), back_in(9_050), 0);
    write_all(&mut pool, 0);
    pool.demote_all(None);
    // All slots are of a session that comes when it said, and will be away for long then.
    turn(&mut pool, ns, "came", &chain(2, 32), back_in(7_001), 1);
    write_all(&mut pool, 2);
    turn(&mut pool, ns, "came", &chain(2, 32), back_in(60_000), 7_010);
    assert_eq!(pool.next_prefetches(u64::MAX, 7_060).len(), 16);
}

#[test]
fn a_large_session_begins_earlier_and_still_takes_nothing_that_returns_sooner() {
    let mut pool = new_pool(
        64 << 20,
        32,
        1 << 40,
        Limits { client_slots_percent: 100, protected_percent: 0, ..Limits::default() },
    );
    let (id_of, tenant) = (NamespaceId([1; 32]), "a".to_owned());
    let large = NamespaceDesc { id: id_of, tenant, shard_bytes: 64 << 20, page_tokens: 16, shards: 1 };
    let ns = pool.open_namespace(large).unwrap();
    // 1 GiB: its prefetch begins 2 s and as long as reading it may take, 4 s more, before its return.
    turn(&mut pool, ns, "large", &chain(1, 16), back_in(20_000), 0);
    write_all(&mut pool, 0);
    pool.demote_all(None);
    turn(&mut pool, ns, "sooner", &chain(2, 24), back_in(19_000), 1);
    turn(&mut pool, ns, "later", &chain(3, 8), back_in(60_000), 2);
    write_all(&mut pool, 3);
    assert!(pool.next_prefetches(u64::MAX, 13_800).is_empty());
    // The other one returns in 5 s: not in moments, but sooner.
    let reads = pool.next_prefetches(u64::MAX, 14_000);
    assert_eq!(reads.len(), 8);
    land(&mut pool, &reads, 14_001);
    assert_eq!((in_dram(&mut pool, ns, "sooner", 14_001), in_dram(&mut pool, ns, "later", 14_001)), (24, 0));
}

#[test]
fn a_session_that_does_not_come_gives_its_room_back() {
    let (mut pool, ns) = two_tiers();
    turn(&mut pool, ns, "late", &chain(1, 32), back_in(1_000), 0);
    write_all(&mut pool, 0);
    assert_eq!(turn(&mut pool, ns, "now", &chain(2, 16), usual(), 900), 16, "spared is not locked");
    write_all(&mut pool, 950);
    turn(&mut pool, ns, "late", &chain(1, 32), back_in(1_000), 1_000);
    write_all(&mut pool, 1_000);
    let late = 2_000 + limits::RETURN_GRACE_MS + 1;
    turn(&mut pool, ns, "much-later", &chain(3, 16), usual(), late);
    assert_eq!(in_dram(&mut pool, ns, "much-later", late), 16);
}

#[test]
fn a_return_can_be_told_at_any_time() {
    let (mut pool, ns) = two_tiers();
    turn(&mut pool, ns, "s", &chain(1, 4), usual(), 0);
    write_all(&mut pool, 0);
    pool.demote_all(None);
    pool.expect_return(ns, &id("s"), 30_000, 100).unwrap();
    assert_eq!(pool.describe_session(ns, &id("s"), 100).unwrap().returns_in_ms, Some(30_000));
    assert!(pool.next_prefetches(u64::MAX, 28_000).is_empty());
    assert_eq!(pool.next_prefetches(u64::MAX, 28_100).len(), 4);
    assert_eq!(pool.expect_return(ns, &id("x"), 1, 0), Err(PoolError::SessionUnknown));
}
