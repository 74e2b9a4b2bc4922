//! What an eviction policy costs: whole turns (reload what is there, offload the rest, end) in a pool that holds half of the
//! sessions, policies taking turns. Owns: the measurement. Must not know: how a policy works.
#![allow(clippy::print_stdout, reason = "the table is the product")]
#![allow(clippy::unwrap_used, reason = "a bench fails by panicking")]

mod turns;

use turnkv_pool::PolicyKind;
use turnkv_proto::{BlockHash, SessionId};
use turns::{SESSION_PAGES, chain, cpu_nanos, median, pool, turn};

const SESSIONS: u64 = 1_000;
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

/// Nanoseconds of this thread a page of a turn.
fn measure(kind: PolicyKind) -> f64 {
    let (mut pool, ns) = pool(kind, SESSIONS * SESSION_PAGES / 2);
    let names: Vec<SessionId> =
        (0..SESSIONS).map(|at| SessionId::parse(&format!("s{at}")).unwrap()).collect();
    let chains: Vec<Vec<BlockHash>> = (0..SESSIONS).map(chain).collect();
    let mut now = 0;
    for (name, hashes) in names.iter().zip(&chains) {
        now += STEP_MS;
        turn(&mut pool, ns, name, hashes, None, now);
    }
    let began = cpu_nanos();
    for number in 0..TURNS {
        now += STEP_MS;
        // Some sessions come back soon, others late: half of the turns are of an eighth of the sessions.
        let at = match number % 2 {
            0 => number * 7 % (names.len() / 8),
            _ => number * 7 % names.len(),
        };
        turn(&mut pool, ns, &names[at], &chains[at], None, now);
    }
    (cpu_nanos() - began) as f64 / (TURNS as f64 * SESSION_PAGES as f64)
}
