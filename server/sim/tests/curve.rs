//! The pool's sampled miss-ratio curve against the exact one. The public traces are not part of the repository:
//! `TURNKV_TRACES` names their folder, else `../shared/traces` beside the workspace is tried.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures, for those who ask with --nocapture")]

mod common;

use common::{plain_lru, public, walks};
use proptest::prelude::*;
use turnkv_pool::{CurveTuning, MissRatioCurve};
use turnkv_sim::account::Counts;
use turnkv_sim::device::Speed;
use turnkv_sim::drive::{Admission, PoolModel, replay_curve};
use turnkv_sim::exact::ExactCurve;
use turnkv_sim::generate::{Shape, generate};
use turnkv_sim::grid::Workload;
use turnkv_sim::policy;
use turnkv_sim::trace::{Builder, Draft, Stop, Trace};

/// Sizes that are compared, evenly spread over the logarithm from 0.3 % of the unique blocks to all.
const SIZES: u32 = 40;
/// Points that the sampled curve may be off, mean over all sizes.
const ERROR_MAX: f64 = 2.0;
/// Choices of the pages that are followed.
const CHOICES: u64 = 12;

fn curve(workload: &Workload, dram_pages: u64, name: &str, samples_max: u32) -> (Counts, MissRatioCurve) {
    let policy = policy::find(name).expect("a known policy");
    let speed = Speed { read_bytes_s: None, write_bytes_s: None };
    let admission = Admission::default();
    let model = PoolModel { dram_pages, nvme_pages: 0, policy, hints: None, page_bytes: 1, speed, admission };
    let tuning = CurveTuning { samples_max, half_life_ms: 0 };
    let (stream, history) = &workload.pools[0];
    replay_curve(&workload.trace, stream, history, &model, tuning, || ()).expect("the trace plays")
}

/// Mean and largest error over all sizes, in points.
fn errors(workload: &Workload, curve: &MissRatioCurve) -> (f64, f64) {
    let exact = ExactCurve::of(&workload.trace, &workload.pools[0].0);
    let (mut sum, mut worst) = (0.0, 0.0f64);
    for step in 0..SIZES {
        let share = 0.003 * (1.0f64 / 0.003).powf(f64::from(step) / f64::from(SIZES - 1));
        let pages = ((workload.unique_blocks as f64 * share) as u64).max(1);
        let error = 100.0 * (curve.hit_ratio(pages * curve.page_bytes) - exact.hit_ratio(pages)).abs();
        sum += error;
        worst = worst.max(error);
    }
    (sum / f64::from(SIZES), worst)
}

/// The curve with at most `samples_max` pages followed is within the bound, and follows at most `rate_max` of all.
fn within(name: &str, workload: &Workload, samples_max: u32, rate_max: f64) {
    let (_, sampled) = curve(workload, workload.unique_blocks.max(16), "lru", samples_max);
    let (mean, worst) = errors(workload, &sampled);
    println!(
        "| {name} | {} | {} | {:.2} % | {} | {mean:.2} | {worst:.2} |",
        workload.unique_blocks,
        sampled.samples,
        100.0 * sampled.rate,
        sampled.hot
    );
    assert!(sampled.rate <= rate_max, "{name}: {} of the pages are followed", sampled.rate);
    assert!(mean <= ERROR_MAX, "{name}: {mean:.2} points off on average, at worst {worst:.2}");
}

/// The same requests after one of so many blocks that never come again: every block has another number then, and with it
/// another chance to be followed.
fn shifted(trace: &Trace, by: u64) -> Trace {
    let mut builder = Builder::new(&trace.name, trace.block_tokens, "", "");
    let mut push = |at_ms: u64, blocks: &[u64]| {
        let (session, parent, turn, input_tokens, output_tokens) = (None, None, 0, 0, 0);
        let stop = Stop::Unknown;
        let draft = Draft { at_ms, session, parent, turn, input_tokens, output_tokens, blocks, stop };
        builder.push(&draft).expect("a fine request");
    };
    push(0, &(1 << 32..(1 << 32) + by).collect::<Vec<u64>>());
    for request in &trace.requests {
        push(
            request.at_ms,
            &trace.blocks(request).iter().map(|block| u64::from(*block)).collect::<Vec<u64>>(),
        );
    }
    builder.finish()
}

/// One in a hundred, for a dozen choices of which: none may be off by more than the bound.
fn within_by_any_choice(name: &str, workload: &Workload) {
    let (mut sum, mut worst) = (0.0, 0.0f64);
    for choice in 1..=CHOICES {
        let other = Workload::new(shifted(&workload.trace, choice), 1);
        let (_, sampled) = curve(&other, other.unique_blocks, "lru", (other.unique_blocks / 100) as u32);
        let (mean, _) = errors(&other, &sampled);
        assert!(sampled.rate <= 0.01 && mean <= ERROR_MAX, "{name}, choice {choice}: {mean:.2} points off");
        sum += mean;
        worst = worst.max(mean);
    }
    println!(
        "| {name}, {CHOICES} choices of the pages | mean {:.2} | worst {worst:.2} |",
        sum / CHOICES as f64
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn all_pages_followed_is_exact_whatever_the_pool_holds(
        paths in prop::collection::vec(prop::collection::vec(0u8..3, 0..7), 1..60),
        capacity in 1u64..40,
    ) {
        let workload = Workload::new(walks(&paths), 1);
        let exact = ExactCurve::of(&workload.trace, &workload.pools[0].0);
        prop_assert_eq!(exact.hits(capacity), plain_lru(&workload.trace, capacity));
        for pages in [capacity, 4000] {
            let (counts, curve) = curve(&workload, pages, "lru", 4096);
            prop_assert!((curve.references - exact.references as f64).abs() < 1e-6, "{} references", curve.references);
            prop_assert!((curve.found - counts.hits() as f64).abs() < 1e-6);
            // Up to 15 pages a bucket is one page wide.
            for size in 1..16 {
                let hits = curve.hit_ratio(size * curve.page_bytes) * curve.references;
                prop_assert!((hits - exact.hits(size) as f64).abs() < 1e-6, "{size} pages: {hits}, not {}", exact.hits(size));
            }
        }
    }
}

#[test]
fn one_in_a_hundred_is_enough_for_generated_sessions() {
    let shape = Shape { requests: 6_000, ..Shape::AGENTIC };
    let workload = Workload::new(generate("generated", &shape, 5), 1);
    within("generated", &workload, (workload.unique_blocks / 100) as u32, 0.01);
}

#[test]
fn a_pool_of_any_size_and_policy_keeps_the_same_curve() {
    let shape = Shape { requests: 500, burn_in_requests: 500, ..Shape::AGENTIC };
    let workload = Workload::new(generate("generated", &shape, 6), 1);
    for (pages, name) in [(100, "lru"), (1_000, "lru"), (1_000, "lru-sessions"), (100_000, "lru-sessions")] {
        let (_, curve) = curve(&workload, pages, name, 4096);
        let (mean, worst) = errors(&workload, &curve);
        println!("{pages} pages, {name}: {mean:.3} points, at worst {worst:.3}");
        assert!(mean < 0.5, "{pages} pages, {name}: {mean:.2} points, at worst {worst:.2}");
    }
}

#[test]
fn a_small_trace_is_followed_almost_whole() {
    let Some(workload) = public("miniswe") else { return };
    within("miniswe", &workload, 4096, 1.0);
}

#[test]
#[ignore = "seconds in a release build, minutes in a debug one"]
fn conversation_is_within_the_bound() {
    let workload = public("conversation").expect("TURNKV_TRACES names the folder of the public traces");
    within("conversation", &workload, (workload.unique_blocks / 100) as u32, 0.01);
    within_by_any_choice("conversation", &workload);
    within("conversation, as served", &workload, 4096, 1.0);
}

#[test]
#[ignore = "seconds in a release build, minutes in a debug one"]
fn agentic_is_within_the_bound() {
    let workload = public("agentic").expect("TURNKV_TRACES names the folder of the public traces");
    within("agentic", &workload, (workload.unique_blocks / 100) as u32, 0.01);
    within_by_any_choice("agentic", &workload);
    within("agentic, as served", &workload, 4096, 1.0);
}
