//! What a live curve costs: whole turns (reload, offload, end) with and without one, round by round, and the share of a core
//! that it takes at 100,000 page touches a second. Owns: the measurement. Must not know: how the curve works.
#![allow(clippy::print_stdout, reason = "the table is the product")]
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

use turnkv_pool::{
    Admit, ClientId, CurveTuning, EndTurn, Limits, NamespaceDesc, NamespaceIndex, OffloadAsk, Outcome,
    PolicyKind, Pool, PoolConfig, ReloadAsk,
};
use turnkv_proto::{BlockHash, NamespaceId, SessionId};

const CLIENT: ClientId = ClientId(1);
/// Pages of a session, and of what a turn adds.
const SESSION_PAGES: u64 = 200;
const ADDED: u64 = 10;
/// Rounds; each measures every setting once, one after the other.
const ROUNDS: usize = 7;
/// Touches in a second of which the share of a core is said.
const TOUCHES_PER_S: f64 = 100_000.0;

/// Sessions, and how many pages their curve may follow: pairs of without and with.
const SETTINGS: [(u64, u32, &str); 3] = [
    (1_000, 2_000, "200,000 pages, one in a hundred followed"),
    (1_000, 4_096, "200,000 pages, the default"),
    (20, 4_096, "4,000 pages, the default"),
];

fn main() {
    println!(
        "| working set | pages followed | ns a touch without | with | of a core at 100,000 touches a second |"
    );
    println!("|---|---|---|---|---|");
    for (sessions, samples_max, name) in SETTINGS {
        let (mut without, mut more, mut rate) = (Vec::new(), Vec::new(), 0.0);
        for _ in 0..ROUNDS {
            let (bare, _) = measure(sessions, 0);
            let (with, followed) = measure(sessions, samples_max);
            without.push(bare);
            more.push(with - bare);
            rate = followed;
        }
        let (without, more) = (median(without), median(more));
        println!(
            "| {name} | {:.2} % | {without:.0} | {:.0} | {:.2} % |",
            100.0 * rate,
            without + more,
            more * TOUCHES_PER_S / 1e7
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds a page touched, over turns that reload a session, add to it and end; and the share of pages followed.
fn measure(sessions: u64, samples_max: u32) -> (f64, f64) {
    let (mut pool, ns) = pool();
    pool.tune_curves(CurveTuning { samples_max, half_life_ms: 6 * 3_600_000 });
    let names: Vec<SessionId> =
        (0..sessions).map(|at| SessionId::parse(&format!("s{at}")).unwrap()).collect();
    let chains: Vec<Vec<BlockHash>> = (0..sessions).map(chain).collect();
    for (name, hashes) in names.iter().zip(&chains) {
        turn(&mut pool, ns, name, hashes, 0);
    }
    let turns = 4_000;
    let began = cpu_nanos();
    for turn_number in 0..turns {
        // A stride that meets all sessions, not in the order they were made.
        let at = turn_number * 7 % names.len();
        turn(&mut pool, ns, &names[at], &chains[at], chains[at].len() - ADDED as usize);
    }
    let touches = turns as f64 * SESSION_PAGES as f64;
    let nanos = (cpu_nanos() - began) as f64 / touches;
    (nanos, pool.miss_ratio_curve(ns, 0).unwrap().rate)
}

/// Time that this thread spent on a core: others share the machine.
fn cpu_nanos() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

fn turn(pool: &mut Pool, ns: NamespaceIndex, session: &SessionId, hashes: &[BlockHash], found: usize) {
    pool.begin_turn(ns, session, 0).unwrap();
    if found > 0 {
        let ask = ReloadAsk {
            ns,
            hashes: &hashes[..found],
            shard: 0,
            client: CLIENT,
            session: Some(session),
            hold: false,
        };
        let plan = pool.begin_reload(ask, 0).unwrap();
        pool.end_reload(plan.lease.unwrap(), CLIENT, &[], 0).unwrap();
    }
    let ask = OffloadAsk {
        ns,
        session: Some(session),
        parent: found.checked_sub(1).map(|at| hashes[at]),
        hashes: &hashes[found..],
        shard: 0,
        tail_tokens: 0,
        client: CLIENT,
    };
    let plan = pool.begin_offload(ask, 0).unwrap();
    let granted = |(_, outcome): &(usize, &Outcome)| matches!(outcome, Outcome::Granted(_));
    let filled: Vec<(u32, u64)> =
        plan.outcomes.iter().enumerate().filter(granted).map(|(at, _)| (at as u32, 0)).collect();
    if let Some(lease) = plan.lease {
        pool.commit_offload(lease, CLIENT, &filled, 0).unwrap();
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
    pool.end_turn(ns, session, end, 0).unwrap();
}

fn chain(session: u64) -> Vec<BlockHash> {
    let mut before = BlockHash::chain(None, &[session as u32]);
    let link = |page: u64| {
        before = BlockHash::chain(Some(&before), &[page as u32]);
        before
    };
    (0..SESSION_PAGES).map(link).collect()
}

fn pool() -> (Pool, NamespaceIndex) {
    let config = PoolConfig {
        slab_bytes: 1 << 30,
        slab_count: 1,
        nvme_bytes: 0,
        free_slots_percent: 0,
        limits: Limits { lease_pages_max: 8192, ..Limits::default() },
        policy: PolicyKind::Lru,
        nvme_admit: Admit::All,
        nvme_bytes_per_day: 0,
    };
    let mut pool = Pool::new(config).unwrap();
    let desc = NamespaceDesc {
        id: NamespaceId([1; 32]),
        tenant: String::new(),
        shard_bytes: 4096,
        page_tokens: 16,
        shards: 1,
    };
    let ns = pool.open_namespace(desc).unwrap();
    (pool, ns)
}
