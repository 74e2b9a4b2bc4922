//! What a live curve costs: whole turns (reload, offload, end) with and without one, round by round, and the share of a core
//! that it takes at 100,000 page touches a second. Owns: the measurement. Must not know: how the curve works.
#![allow(clippy::print_stdout, reason = "the table is the product")]
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

mod turns;

use turnkv_pool::{CurveTuning, PolicyKind};
use turnkv_proto::{BlockHash, SessionId};
use turns::{SESSION_PAGES, chain, cpu_nanos, median, pool, turn};

/// Pages that a turn adds.
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

/// Nanoseconds a page touched, over turns that reload a session, add to it and end; and the share of pages followed.
fn measure(sessions: u64, samples_max: u32) -> (f64, f64) {
    let (mut pool, ns) = pool(PolicyKind::Lru, 1 << 18);
    pool.tune_curves(CurveTuning { samples_max, half_life_ms: 6 * 3_600_000 });
    let names: Vec<SessionId> =
        (0..sessions).map(|at| SessionId::parse(&format!("s{at}")).unwrap()).collect();
    let chains: Vec<Vec<BlockHash>> = (0..sessions).map(chain).collect();
    for (name, hashes) in names.iter().zip(&chains) {
        turn(&mut pool, ns, name, hashes, Some(0), 0);
    }
    let turns = 4_000;
    let began = cpu_nanos();
    for turn_number in 0..turns {
        // A stride that meets all sessions, not in the order they were made.
        let at = turn_number * 7 % names.len();
        turn(&mut pool, ns, &names[at], &chains[at], Some(chains[at].len() - ADDED as usize), 0);
    }
    let touches = turns as f64 * SESSION_PAGES as f64;
    let nanos = (cpu_nanos() - began) as f64 / touches;
    (nanos, pool.miss_ratio_curve(ns, 0).unwrap().rate)
}
