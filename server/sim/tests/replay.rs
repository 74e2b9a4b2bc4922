//! The replay against plain models: exact LRU, sums that must hold, the second tier, private pools, determinism.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod common;

use common::{plain_lru, walks};
use proptest::prelude::*;
use turnkv_sim::account::Counts;
use turnkv_sim::capacity::Capacity;
use turnkv_sim::device::Speed;
use turnkv_sim::drive::{Admission, Admit};
use turnkv_sim::generate::{Shape, generate};
use turnkv_sim::grid::{Cell, Machine, Workload, run_grid};
use turnkv_sim::hints::HintRules;
use turnkv_sim::policy;

const ALL: Admission = Admission { admit: Admit::All, write_bytes_per_day: 0 };
const INSTANT: Machine =
    Machine { bytes_per_token: 1, speed: Speed { read_bytes_s: None, write_bytes_s: None }, admission: ALL };

fn cell(name: &str, dram: u64, nvme: u64) -> Cell {
    let policy = policy::find(name).expect("a known policy");
    Cell { policy, dram: Capacity::Blocks(dram), nvme: Capacity::Blocks(nvme), hints: None }
}

fn run(workload: &Workload, cell: &Cell, machine: &Machine) -> Counts {
    workload.run(cell, machine, || ()).expect("the cell runs")
}

/// A small agentic trace.
fn small(seed: u64) -> Workload {
    let shape = Shape { requests: 300, burn_in_requests: 500, ..Shape::AGENTIC };
    Workload::new(generate("small", &shape, seed), 1)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_pool_is_a_tail_first_lru(
        paths in prop::collection::vec(prop::collection::vec(0u8..3, 0..7), 1..60),
        capacity in 1u64..40,
    ) {
        let workload = Workload::new(walks(&paths), 1);
        let counts = run(&workload, &cell("lru", capacity, 0), &INSTANT);
        prop_assert_eq!(counts.hits(), plain_lru(&workload.trace, capacity));
        prop_assert!(counts.hits() <= workload.belady_hits(capacity), "nothing beats Belady");
        prop_assert_eq!(counts.hits() + counts.lost(), workload.infinite_hits());
    }
}

#[test]
fn found_and_lost_are_what_an_infinite_pool_finds() {
    let workload = small(3);
    for (dram, nvme) in [(1, 0), (100, 0), (100, 400), (100_000, 0)] {
        for policy in policy::POLICIES {
            let counts = run(&workload, &cell(policy.name, dram, nvme), &INSTANT);
            assert_eq!(
                counts.hits() + counts.lost(),
                workload.infinite_hits(),
                "{} {dram} {nvme}",
                policy.name
            );
            assert_eq!((counts.requests, counts.blocks), (300, workload.blocks()));
        }
    }
    let all = run(&workload, &cell("lru", 100_000, 0), &INSTANT);
    assert_eq!((all.lost(), all.evicted, all.declined), (0, 0, 0));
}

#[test]
fn nvme_holds_what_dram_lets_go() {
    let workload = small(4);
    let alone = run(&workload, &cell("lru", 400, 0), &INSTANT);
    let both = run(&workload, &cell("lru", 400, 4000), &INSTANT);
    let large = run(&workload, &cell("lru", 4000, 0), &INSTANT);
    assert!(both.nvme_hits > 0 && both.nvme_written > 0 && both.nvme_read >= both.nvme_hits);
    assert!(both.hits() > alone.hits());
    let points = 100.0 * (both.hits() as f64 - large.hits() as f64).abs() / both.blocks as f64;
    assert!(points < 2.0, "two tiers find what one of their size does, to {points:.2} points");
    let ample = run(&workload, &cell("lru", 400, 100_000), &INSTANT);
    assert_eq!(ample.lost(), 0, "with room for everything nothing is lost");
}

#[test]
fn a_slow_device_makes_turns_wait() {
    let workload = small(4);
    let page = Machine { bytes_per_token: 1 << 17, speed: Speed::default(), admission: ALL };
    let slow = Machine { speed: Speed { read_bytes_s: Some(2 << 30), write_bytes_s: Some(2 << 30) }, ..page };
    let (instant, waited) =
        (run(&workload, &cell("lru", 400, 4000), &page), run(&workload, &cell("lru", 400, 4000), &slow));
    assert_eq!(instant.wait_ms, 0);
    assert!(waited.wait_ms > 0 && waited.wait_ms_max <= waited.wait_ms, "{waited:?}");
    assert_eq!(waited.hits() + waited.lost(), workload.infinite_hits());
}

#[test]
fn the_same_cell_gives_the_same_counts_on_any_number_of_threads() {
    let workloads = [small(5), small(6)];
    let mut cells = vec![cell("lru", 50, 0), cell("lru", 50, 300), cell("lru-sessions", 200, 0)];
    cells.push(Cell { hints: Some(HintRules::default()), ..cells[2] });
    let once = run_grid(&workloads, &cells, &INSTANT, 1, &|| ()).expect("the grid runs");
    assert_eq!(once, run_grid(&workloads, &cells, &INSTANT, 4, &|| ()).expect("the grid runs"));
    assert_eq!(once.len(), 8);
}

#[test]
fn private_pools_find_no_more_than_a_shared_one() {
    let shape = Shape { requests: 300, burn_in_requests: 500, ..Shape::AGENTIC };
    let trace = generate("small", &shape, 7);
    let (shared, private) = (Workload::new(trace.clone(), 1), Workload::new(trace, 4));
    assert_eq!((private.pools.len(), private.blocks()), (4, shared.blocks()));
    assert!(private.infinite_hits() <= shared.infinite_hits());
    let size = cell("lru", 1000, 0);
    assert!(run(&private, &size, &INSTANT).hits() < run(&shared, &size, &INSTANT).hits());
}

#[test]
fn nvme_finds_about_what_memory_of_its_size_does_and_writes_little_twice() {
    // Enough pages that the log has its usual segments.
    let shape = Shape { requests: 1500, burn_in_requests: 500, ..Shape::AGENTIC };
    let workload = Workload::new(generate("large", &shape, 11), 1);
    let memory = run(&workload, &cell("lru", 2400, 0), &INSTANT);
    for name in ["lru", "session"] {
        let both = run(&workload, &cell(name, 400, 2400), &INSTANT);
        let points = 100.0 * (memory.hits() as f64 - both.hits() as f64) / both.blocks as f64;
        assert!(points < 1.0, "{name}: NVMe finds {points:.2} points less");
        let amplification = both.nvme_written as f64 / both.stored as f64;
        assert!(amplification < 1.5, "{name}: {amplification:.2} writes a page");
    }
}

#[test]
fn admission_and_the_write_budget_hold_in_the_simulation_too() {
    let workload = small(4);
    let size = cell("lru", 400, 4000);
    let all = run(&workload, &size, &INSTANT);
    let reused = Machine { admission: Admission { admit: Admit::Reused, ..ALL }, ..INSTANT };
    assert!(
        run(&workload, &size, &reused).nvme_written < all.nvme_written * 9 / 10,
        "one-hit pages stay off"
    );
    let page_bytes = u64::from(workload.trace.block_tokens);
    let bounded =
        Machine { admission: Admission { write_bytes_per_day: 2400 * page_bytes, ..ALL }, ..INSTANT };
    let written = run(&workload, &size, &bounded).nvme_written;
    let last = workload.trace.requests.last().expect("a trace has requests");
    let allowed = 100 + 2400 * last.at_ms / 86_400_000;
    assert!(written > 0 && written <= allowed + 1, "{written} pages written, {allowed} allowed");
}

#[test]
fn adding_nvme_never_lowers_the_hit_ratio() {
    for seed in [4, 9] {
        let workload = small(seed);
        // What a policy has learned when something is asked differs with what it could keep: by chance a little is lost.
        for (name, least) in [("lru", -0.3), ("session", -1.0)] {
            for dram in [200, 1000] {
                let alone = run(&workload, &cell(name, dram, 0), &INSTANT);
                for nvme in [50, 400, 1000] {
                    let both = run(&workload, &cell(name, dram, nvme), &INSTANT);
                    let points = 100.0 * (both.hits() as f64 - alone.hits() as f64) / both.blocks as f64;
                    assert!(
                        points > least,
                        "{name}, seed {seed}: {dram} + {nvme} find {points:.2} points more"
                    );
                }
            }
        }
    }
}
