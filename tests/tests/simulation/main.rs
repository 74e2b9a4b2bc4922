//! The whole pool server in one process, on disks that fail as they are told, in simulated time, against a plain model of
//! what it promises. One seed is one run, exactly: no thread, no clock and no chance but the seed's.
//!
//! - `plan`: what a seed stands for
//! - `world`: one run; `tasks`: who goes on next
//! - `context`, `clients`: who uses the server, and how
//! - `model`, `content`: what was promised, what is in a page
//!
//! `TURNKV_SIMULATION_SEEDS` runs so many seeds, from `TURNKV_SIMULATION_FIRST`, and those that are kept only where it is not
//! set; `TURNKV_SIMULATION_STEPS` steps each.
//! `TURNKV_SIMULATION_LOG=1` tells what happens.
#![allow(clippy::expect_used, reason = "a test says what it expected by failing")]
#![forbid(unsafe_code)]

mod clients;
mod content;
mod context;
mod model;
mod plan;
mod tasks;
mod world;

use plan::{KEPT, KEPT_WIDE, Plan};
use std::io::Write;
use std::time::Instant;
use world::{Outcome, Totals, run};

/// Seeds that every test run plays.
const SEEDS: u64 = 150;
/// Steps of a run.
const STEPS: u64 = 800;

#[test]
fn no_promise_is_broken() {
    let (first, seeds, steps) = (setting("FIRST", 0), setting("SEEDS", SEEDS), setting("STEPS", STEPS));
    let (began, mut totals, mut failed, mut played) = (Instant::now(), Totals::default(), Vec::new(), 0);
    let kept =
        KEPT.into_iter().chain(KEPT_WIDE).filter(|_| std::env::var_os("TURNKV_SIMULATION_SEEDS").is_none());
    for seed in (first..first + seeds).chain(kept) {
        played += 1;
        let outcome = play(&Plan::of(seed, steps), setting("LOG", 0) > 0);
        totals.add(&outcome.totals);
        if !outcome.broken.is_empty() {
            let (steps, outcome) = shortest(seed, outcome);
            say(&format!("seed {seed}, {steps} steps: {}", outcome.broken.join("; ")));
            say(&format!(
                "  again: TURNKV_SIMULATION_FIRST={seed} TURNKV_SIMULATION_SEEDS=1 TURNKV_SIMULATION_STEPS={steps} TURNKV_SIMULATION_LOG=1 cargo test -p turnkv-tests --test simulation no_promise"
            ));
            failed.push(seed);
        }
    }
    totals.report(played, began.elapsed());
    assert!(failed.is_empty(), "{} seeds break promises: {failed:?}", failed.len());
}

#[test]
fn a_seed_is_one_run() {
    for seed in 0..setting("SEEDS", 20).min(1_000) {
        let plan = Plan::of(seed, STEPS);
        let (once, again) = (run(&plan, false), run(&plan, false));
        assert_eq!(
            (once.steps, once.trace, &once.broken),
            (again.steps, again.trace, &again.broken),
            "seed {seed}"
        );
    }
}

/// Runs a plan; a panic is a broken promise.
fn play(plan: &Plan, log: bool) -> Outcome {
    let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(plan, log)));
    played.unwrap_or_else(|_| Outcome {
        broken: vec!["a panic, see above".to_owned()],
        steps: plan.steps,
        trace: 0,
        totals: Totals::default(),
    })
}

/// The fewest steps after which a seed still breaks a promise, as far as halving finds them.
fn shortest(seed: u64, failed: Outcome) -> (u64, Outcome) {
    let (mut fine, mut steps, mut shortest) = (0, failed.steps, failed);
    while steps - fine > 1 {
        let middle = fine + (steps - fine) / 2;
        let outcome = play(&Plan::of(seed, middle), false);
        if outcome.broken.is_empty() {
            fine = middle;
        } else {
            (steps, shortest) = (middle, outcome);
        }
    }
    (steps, shortest)
}

fn setting(name: &str, default: u64) -> u64 {
    let value = std::env::var(format!("TURNKV_SIMULATION_{name}")).ok();
    value.map_or(default, |value| value.parse().expect("a number"))
}

fn say(line: &str) {
    writeln!(std::io::stderr(), "{line}").expect("standard error is there");
}

impl Totals {
    fn add(&mut self, other: &Totals) {
        self.pages.add(&other.pages);
        self.catalog.add(&other.catalog);
        for (call, count) in &other.calls {
            *self.calls.entry(call).or_default() += count;
        }
        self.starts += other.starts;
        self.clean_ends += other.clean_ends;
        self.survivors += other.survivors;
        self.forgiven += other.forgiven;
        self.crowded_out += other.crowded_out;
        self.resizes += other.resizes;
        self.breaths += other.breaths;
        self.moved.iter_mut().zip(other.moved).for_each(|(sum, moved)| *sum += moved);
    }

    fn report(&self, seeds: u64, took: std::time::Duration) {
        say(&format!(
            "{seeds} seeds in {took:.1?}: {} starts, {} of them after a clean end, {} with other sizes; {} other sizes of page memory in between",
            self.starts, self.clean_ends, self.resizes, self.breaths
        ));
        say(&format!(
            "pages that had to survive and did: {}, forgiven for a failed medium: {}, for a full index: {}",
            self.survivors, self.forgiven, self.crowded_out
        ));
        let [demoted, promoted, emptied, evicted, dropped] = self.moved;
        say(&format!(
            "pages demoted {demoted}, evicted {evicted}, dropped {dropped}; shards promoted {promoted}, segments emptied {emptied}"
        ));
        say(&format!("calls: {:?}", self.calls));
        say(&format!("pages' disk: {:?}", self.pages));
        say(&format!("catalog's disk: {:?}", self.catalog));
    }
}
