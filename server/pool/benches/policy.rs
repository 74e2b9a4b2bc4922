//! What an eviction policy costs: whole turns (reload what is there, offload the rest, end) in a pool that holds half of the
//! sessions, policies taking turns. Owns: the measurement. Must not know: how a policy works.
#![allow(clippy::print_stdout, reason = "the table is the product")]
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

use turnkv_pool::{
    Admit, ClientId, EndTurn, Limits, NamespaceDesc, NamespaceIndex, OffloadAsk, Outcome, PolicyKind, Pool,
    PoolConfig, ReloadAsk,
};
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

const CLIENT: ClientId = ClientId(1);
const SESSIONS: u64 = 1_000;
const SESSION_PAGES: u64 = 200;
const TURNS: usize = 3_000;
/// Rounds; each measures every policy once, one after the other.
const ROUNDS: usize = 5;
/// Between two turns.
const STEP_MS: u64 = 50;

const POLICIES: [(&str, PolicyKind); 6] = [
    ("lru", PolicyKind::Lru),
    ("s3fifo", PolicyKind::S3Fifo),
    ("tinylfu", PolicyKind::TinyLfu),
    ("arc", PolicyKind::Arc),
    ("gittins", PolicyKind::Gittins),
    ("session", PolicyKind::Session),
];

fn main() {
    let mut nanos = vec![Vec::new(); POLICIES.len()];
    for _ in 0..ROUNDS {
        for (at, (_, kind)) in POLICIES.into_iter().enumerate() {
            nanos[at].push(measure(kind));
        }
    }
    println!(
        "{SESSIONS} sessions of {SESSION_PAGES} pages, room for half of them, {TURNS} turns; medians of {ROUNDS} rounds"
    );
    println!("| policy | CPU ns a page touched | over lru |\n|---|---|---|");
    let lru = median(nanos[0].clone());
    for (at, (name, _)) in POLICIES.into_iter().enumerate() {
        let each = median(nanos[at].clone());
        println!("| {name} | {each:.0} | {:+.0} |", each - lru);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds of this thread a page of a turn.
fn measure(kind: PolicyKind) -> f64 {
    let (mut pool, ns) = pool(kind);
    let names: Vec<SessionId> =
        (0..SESSIONS).map(|at| SessionId::parse(&format!("s{at}")).unwrap()).collect();
    let chains: Vec<Vec<BlockHash>> = (0..SESSIONS).map(chain).collect();
    let mut now = 0;
    for (name, hashes) in names.iter().zip(&chains) {
        now += STEP_MS;
        turn(&mut pool, ns, name, hashes, now);
    }
    let began = cpu_nanos();
    for number in 0..TURNS {
        now += STEP_MS;
        // Some sessions come back soon, others late: half of the turns are of an eighth of the sessions.
        let at = match number % 2 {
            0 => number * 7 % (names.len() / 8),
            _ => number * 7 % names.len(),
        };
        turn(&mut pool, ns, &names[at], &chains[at], now);
    }
    (cpu_nanos() - began) as f64 / (TURNS as f64 * SESSION_PAGES as f64)
}

/// Time that this thread spent on a core: others share the machine.
fn cpu_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

fn turn(pool: &mut Pool, ns: NamespaceIndex, session: &SessionId, hashes: &[BlockHash], now: u64) {
    let found = pool.begin_turn(ns, session, now).unwrap().pages as usize;
    if found > 0 {
        let (hashes, session) = (&hashes[..found], Some(session));
        let ask = ReloadAsk { ns, hashes, shard: 0, client: CLIENT, session, hold: false };
        let plan = pool.begin_reload(ask, now).unwrap();
        pool.end_reload(plan.lease.unwrap(), CLIENT, &[], now).unwrap();
    }
    let parent = found.checked_sub(1).map(|at| hashes[at]);
    if found < hashes.len() {
        let (rest, session) = (&hashes[found..], Some(session));
        let ask = OffloadAsk { ns, session, parent, hashes: rest, shard: 0, tail_tokens: 0, client: CLIENT };
        let plan = pool.begin_offload(ask, now).unwrap();
        let granted = |(_, outcome): &(usize, &Outcome)| matches!(outcome, Outcome::Granted(_));
        let filled: Vec<(u32, u64)> =
            plan.outcomes.iter().enumerate().filter(granted).map(|(at, _)| (at as u32, 0)).collect();
        if let Some(lease) = plan.lease {
            pool.commit_offload(lease, CLIENT, &filled, now).unwrap();
        }
    }
    let end = EndTurn {
        keep: 0,
        hashes,
        tail_tokens: 0,
        expected_return_ms: 0,
        ttl_ms: 0,
        priority: 0,
        last: false,
    };
    pool.end_turn(ns, session, end, now).unwrap();
}

fn chain(session: u64) -> Vec<BlockHash> {
    let mut before = BlockHash::chain(None, &[session as u32]);
    let link = |page: u64| {
        before = BlockHash::chain(Some(&before), &[page as u32]);
        before
    };
    (0..SESSION_PAGES).map(link).collect()
}

fn pool(policy: PolicyKind) -> (Pool, NamespaceIndex) {
    let config = PoolConfig {
        slab_bytes: SESSIONS * SESSION_PAGES / 2 * 4096,
        slab_count: 1,
        nvme_bytes: 0,
        free_slots_percent: 0,
        limits: Limits { lease_pages_max: 8192, ..Limits::default() },
        policy,
        nvme_admit: Admit::All,
        nvme_bytes_per_day: 0,
    };
    let mut pool = Pool::new(config).unwrap();
    let (id, tenant) = (NamespaceId([1; 32]), String::new());
    let desc = NamespaceDesc { id, tenant, shard_bytes: 4096, page_tokens: 16, shards: 1 };
    let ns = pool.open_namespace(desc).unwrap();
    (pool, ns)
}
