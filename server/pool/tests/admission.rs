//! What goes to NVMe, and who makes room. Owns: promises about admission, the write budget, the search for victims.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod plain;

use plain::{CLIENT, dead_places, finish_turn};
use turnkv_pool::*;
use turnkv_proto::{BlockHash, NamespaceId, SessionId, Shards};

const PAGE: u64 = 4096;
const MINUTE: u64 = 60_000;

fn pool(slots: u32, nvme_pages: u64, change: impl FnOnce(&mut PoolConfig)) -> (Pool, NamespaceIndex) {
    let limits = Limits { client_slots_percent: 100, lease_pages_max: 100_000, ..Limits::default() };
    let mut config = PoolConfig {
        slab_bytes: u64::from(slots) * PAGE,
        slab_count: 1,
        nvme_bytes: nvme_pages * PAGE,
        nvme_admit: Admit::All,
        nvme_bytes_per_day: 0,
        free_slots_percent: 0,
        limits,
        policy: PolicyKind::Session,
    };
    change(&mut config);
    let mut pool = Pool::new(config).unwrap();
    let (id, tenant) = (NamespaceId([1; 32]), String::new());
    let ns = pool
        .open_namespace(NamespaceDesc { id, tenant, shard_bytes: PAGE, page_tokens: 16, shards: 1 })
        .unwrap();
    (pool, ns)
}

fn hashes(range: std::ops::Range<u32>) -> Vec<BlockHash> {
    let name = |at: u32| {
        let mut bytes = [3; 32];
        bytes[..4].copy_from_slice(&at.to_le_bytes());
        BlockHash(bytes)
    };
    range.map(name).collect()
}

fn session(name: &str) -> SessionId {
    SessionId::parse(name).unwrap()
}

/// One turn that stores a chain of its own. Returns the pages kept.
fn turn(
    pool: &mut Pool,
    ns: NamespaceIndex,
    name: &str,
    range: std::ops::Range<u32>,
    now: Now,
) -> Vec<PageKey> {
    let (session, hashes) = (session(name), hashes(range));
    pool.begin_turn(ns, &session, now).unwrap();
    finish_turn(pool, ns, &session, &hashes, 0, now).1
}

/// Does every write that waits; returns their bytes.
fn write(pool: &mut Pool, places: &mut u32, now: Now) -> u64 {
    let mut bytes = 0;
    for write in pool.next_writes(u64::MAX, now) {
        *places += 1;
        assert!(pool.written(write.page, 0, NvmePlace { segment: 0, generation: 0, block: *places }, now));
        bytes += write.bytes;
    }
    bytes
}

fn on_nvme(pool: &Pool, pages: &[PageKey]) -> usize {
    pages.iter().filter(|page| pool.is_on_nvme(**page) == Some(true)).count()
}

#[test]
fn the_write_budget_is_held_over_a_week_and_used() {
    const PER_DAY: u64 = 2400 * PAGE;
    let (mut pool, ns) = pool(4096, 1 << 20, |config| config.nvme_bytes_per_day = PER_DAY);
    let (mut places, mut written, mut by_day) = (0, 0, Vec::new());
    for step in 0..7 * 24 * 6 {
        // Ten minutes each: 14,400 pages a day, six times what may be written.
        let (at, now) = (step as u32 * 100, step * 10 * MINUTE);
        turn(&mut pool, ns, &format!("s{step}"), at..at + 100, now);
        written += write(&mut pool, &mut places, now);
        if (step + 1) % (24 * 6) == 0 {
            by_day.push(std::mem::take(&mut written));
            pool.check().unwrap();
        }
    }
    let burst = PER_DAY / 24;
    for day in &by_day {
        assert!(*day <= PER_DAY + burst, "{day} bytes in a day, {PER_DAY} allowed");
        assert!(*day >= PER_DAY * 9 / 10, "{day} bytes in a day: the budget is there to be used");
    }
    assert!(by_day.iter().sum::<u64>() <= 7 * PER_DAY + burst);
    let stats = pool.stats();
    assert_eq!(stats.written_bytes, by_day.iter().sum::<u64>());
    assert!(stats.kept_off_pages > 80_000, "{} pages stayed off", stats.kept_off_pages);
}

#[test]
fn durable_pages_are_written_whatever_the_budget_says() {
    let (mut pool, ns) = pool(64, 1 << 20, |config| config.nvme_bytes_per_day = 24 * PAGE);
    let mut places = 0;
    let first = turn(&mut pool, ns, "a", 0..8, 0);
    write(&mut pool, &mut places, 0);
    assert_eq!(on_nvme(&pool, &first), 1, "an hour's budget is one page");
    assert_eq!(pool.make_durable(&first).len(), 7);
    pool.check().unwrap();
    write(&mut pool, &mut places, 0);
    assert_eq!(on_nvme(&pool, &first), 8, "whoever asks for durable gets it");
    assert!(pool.make_durable(&first).is_empty());
    // What was written beyond the budget is missing from it later: seven hours pay for seven pages.
    let second = turn(&mut pool, ns, "b", 100..108, 6 * 60 * MINUTE);
    assert_eq!(write(&mut pool, &mut places, 6 * 60 * MINUTE), 0);
    assert_eq!(on_nvme(&pool, &second), 0);
    assert_eq!(pool.admit_all(7 * 60 * MINUTE), 8, "a drain leaves nothing behind");
    pool.check().unwrap();
    write(&mut pool, &mut places, 7 * 60 * MINUTE);
    assert_eq!(on_nvme(&pool, &second), 8);
}

#[test]
fn pages_used_once_stay_off_nvme_until_they_are_used_again() {
    let (mut pool, ns) = pool(64, 1 << 20, |config| config.nvme_admit = Admit::Reused);
    let mut places = 0;
    let once = turn(&mut pool, ns, "once", 0..8, 0);
    let again = turn(&mut pool, ns, "again", 100..108, 0);
    assert_eq!(write(&mut pool, &mut places, 0), 0, "nobody has come back yet");
    turn(&mut pool, ns, "again", 100..110, MINUTE);
    assert_eq!(write(&mut pool, &mut places, MINUTE), 10 * PAGE, "its session came back");
    assert_eq!((on_nvme(&pool, &once), on_nvme(&pool, &again)), (0, 8));
    let read = hashes(0..8);
    let ask =
        ReloadAsk { ns, hashes: &read, shards: Shards::one(0), client: CLIENT, session: None, hold: false };
    let lease = pool.begin_reload(ask, MINUTE).unwrap().lease.unwrap();
    pool.end_reload(lease, CLIENT, &[], MINUTE).unwrap();
    write(&mut pool, &mut places, MINUTE);
    assert_eq!(on_nvme(&pool, &once), 8, "somebody read them");
    pool.check().unwrap();
}

#[test]
fn a_page_that_leaves_nvme_stays_in_dram() {
    let (mut pool, ns) = pool(64, 1 << 20, |_| ());
    let pages = turn(&mut pool, ns, "a", 0..8, 0);
    let mut places = 0;
    write(&mut pool, &mut places, 0);
    pool.drop_page(pages[4]);
    pool.check().unwrap();
    assert_eq!(pool.lookup(ns, &hashes(0..8), 0).unwrap().dram, 8, "DRAM keeps what it has");
    assert_eq!((on_nvme(&pool, &pages), dead_places(&mut pool).len()), (4, 4));
    assert_eq!(pool.demote_all(None), 4);
    pool.drop_page(pages[2]);
    assert_eq!(pool.lookup(ns, &hashes(0..8), 0).unwrap().present, 2, "what NVMe alone had is gone");
    pool.check().unwrap();
}

#[test]
fn a_victim_behind_any_number_of_pages_in_use_is_found() {
    for policy in [PolicyKind::Lru, PolicyKind::Arc, PolicyKind::Session] {
        let (mut pool, ns) = pool(2048, 0, |config| config.policy = policy);
        let held = turn(&mut pool, ns, "held", 0..2040, 0);
        let read = hashes(0..2040);
        let ask = ReloadAsk {
            ns,
            hashes: &read,
            shards: Shards::one(0),
            client: CLIENT,
            session: None,
            hold: false,
        };
        let lease = pool.begin_reload(ask, 0).unwrap().lease.unwrap();
        let free = turn(&mut pool, ns, "free", 5000..5008, 10);
        assert_eq!((held.len(), free.len()), (2040, 8), "every slot is in use");
        assert_eq!(
            turn(&mut pool, ns, "new", 6000..6004, 20).len(),
            4,
            "{policy:?} finds the few that can go"
        );
        assert_eq!(pool.lookup(ns, &read, 20).unwrap().present, 2040);
        pool.end_reload(lease, CLIENT, &[], 30).unwrap();
        pool.check().unwrap();
        assert_eq!(turn(&mut pool, ns, "more", 7000..7500, 40).len(), 500, "what was held can go again");
    }
}

#[test]
fn what_a_burst_left_behind_is_written_when_there_is_time() {
    // Of 800 pages that come at once 100 may wait to be written; the others stay in DRAM, not for ever.
    let (mut pool, ns) = pool(1024, 800, |_| {});
    let mut places = 0;
    let burst: Vec<PageKey> =
        (0..20).flat_map(|s| turn(&mut pool, ns, &format!("s{s}"), s * 30..s * 30 + 30, 0)).collect();
    let stats = pool.stats();
    assert!(stats.kept_off_pages > 400 && stats.behind, "{} were kept off", stats.kept_off_pages);
    for now in 1..=40 {
        write(&mut pool, &mut places, now);
        pool.check().unwrap();
    }
    assert_eq!(on_nvme(&pool, &burst), burst.len());
    assert!(!pool.stats().behind);
    // A burst while the rest of another one is being written is found as well.
    let more: Vec<PageKey> =
        (100..110).flat_map(|s| turn(&mut pool, ns, &format!("s{s}"), s * 30..s * 30 + 15, 50)).collect();
    write(&mut pool, &mut places, 51);
    let last = turn(&mut pool, ns, "last", 9000..9040, 52);
    for now in 53..=90 {
        write(&mut pool, &mut places, now);
    }
    assert_eq!(on_nvme(&pool, &more) + on_nvme(&pool, &last), more.len() + last.len());
    pool.check().unwrap();
}
