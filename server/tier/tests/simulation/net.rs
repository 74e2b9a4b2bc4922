//! The net: many seeds, and the same seed twice.
//!
//! A seed that breaks a promise is printed with the fewest steps that still break it. One seed again, or many more:
//!
//! ```text
//! TURNKV_SIM_SEED=7 TURNKV_SIM_STEPS=120 cargo test --locked -p turnkv-tier --test simulation net -- --nocapture
//! TURNKV_SIM_LOG=1 (with the first: tells everything that happens)
//! TURNKV_SIM_SEEDS=10000 cargo test --locked -p turnkv-tier --test simulation net -- --nocapture
//! ```

use crate::run::{Outcome, play};
use std::panic::{AssertUnwindSafe, catch_unwind};

const SEEDS: u64 = 150;
const STEPS: u64 = 1500;
/// Runs that a search for the shortest failing prefix may take.
const BISECTIONS: u32 = 24;
/// Failing seeds after which no more are tried.
const FAILURES_MAX: usize = 50;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Plays a seed; an assertion of the tier itself is a broken promise, too.
fn attempt(seed: u64, steps: u64) -> Result<Outcome, (u64, String)> {
    catch_unwind(AssertUnwindSafe(|| play(seed, steps))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err((steps, text.unwrap_or_else(|| "a panic".to_owned())))
    })
}

/// The fewest steps that still break a promise, and which.
fn shortest(seed: u64, (steps, what): (u64, String)) -> (u64, String) {
    let (mut good, mut bad) = (0, (steps, what));
    for _ in 0..BISECTIONS {
        let middle = good + (bad.0 - good) / 2;
        if middle == good {
            break;
        }
        match attempt(seed, middle) {
            Ok(_) => good = middle,
            Err((at, what)) => bad = (at.min(middle), what),
        }
    }
    bad
}

#[test]
fn promises_hold_whatever_the_disk_does() {
    let steps = setting("TURNKV_SIM_STEPS").unwrap_or(STEPS);
    let (first, usual) = setting("TURNKV_SIM_SEED").map_or((0, SEEDS), |seed| (seed, 1));
    let seeds = setting("TURNKV_SIM_SEEDS").unwrap_or(usual);
    let (mut all, mut broken) = (Outcome::default(), Vec::new());
    for seed in first..first + seeds {
        match attempt(seed, steps) {
            Ok(outcome) => all.add(&outcome),
            Err(what) => broken.push((seed, what)),
        }
        if broken.len() == FAILURES_MAX {
            break;
        }
    }
    println!("{seeds} seeds of {steps} steps: {all:#?}");
    for (seed, (step, what)) in &broken {
        println!("seed {seed}, step {step}: {what}");
    }
    let Some((seed, first)) = broken.into_iter().next() else { return };
    let (steps, what) = shortest(seed, first);
    panic!(
        "seed {seed} breaks a promise after {steps} steps: {what}\n\
         again: TURNKV_SIM_SEED={seed} TURNKV_SIM_STEPS={steps} cargo test --locked -p turnkv-tier --test \
         simulation net -- --nocapture"
    );
}

#[test]
fn a_seed_is_one_run() {
    for seed in [1, 2, 3, 4] {
        let (one, other) = (attempt(seed, 400), attempt(seed, 400));
        assert_eq!(one, other, "seed {seed}");
        assert_ne!(one.map(|outcome| outcome.trace), attempt(seed + 10, 400).map(|outcome| outcome.trace));
    }
}
