//! The published shape, and that a seed is all there is.

use super::*;
use crate::drive::Admission;
use crate::grid::{Cell, Machine, Workload};
use crate::{capacity::Capacity, device::Speed, policy};
use std::collections::HashMap;

/// Infinite and LRU hits in percent of blocks, and the share of the loss that is multi-turn.
fn figures(seed: u64, blocks: u64, private: u32) -> (f64, f64, f64) {
    let workload = Workload::new(generate("agentic", &Shape::AGENTIC, seed), private);
    let (dram, nvme) = (Capacity::Blocks(blocks), Capacity::Blocks(0));
    let cell = Cell { policy: policy::find("lru").expect("lru"), dram, nvme, hints: None };
    let machine = Machine { bytes_per_token: 1, speed: Speed::default(), admission: Admission::default() };
    let counts = workload.run(&cell, &machine, || ()).expect("the cell runs");
    let share = 100.0 * counts.lost_multi_turn as f64 / counts.lost() as f64;
    (counts.percent(counts.infinite_hits), counts.hit_percent(), share)
}

#[test]
fn a_seed_makes_one_trace() {
    let shape = Shape { requests: 50, burn_in_requests: 100, ..Shape::AGENTIC };
    assert_eq!(generate("a", &shape, 7), generate("a", &shape, 7));
    assert_ne!(generate("a", &shape, 7), generate("a", &shape, 8));
}

#[test]
fn the_published_agentic_figures_come_out() {
    let (infinite, lru, multi_turn) = figures(AGENTIC_SEED, 550, 0);
    assert!((infinite - 53.4).abs() < 1.0, "infinite {infinite:.1} %, published 53.4");
    assert!((lru - 43.3).abs() < 1.0, "LRU at 550 blocks {lru:.1} %, published 43.3");
    assert!((multi_turn - 66.0).abs() < 3.0, "multi-turn share of the loss {multi_turn:.0} %, published 66");
    // Eight instances of 550 blocks each, sessions staying where they began.
    let (infinite, lru, _) = figures(AGENTIC_SEED, 8 * 550, 8);
    assert!((infinite - 51.0).abs() < 1.5, "eight infinite ones {infinite:.1} %, published 51.0");
    assert!((lru - 49.2).abs() < 3.0, "eight of 550 {lru:.1} %, published 49.2");
}

#[test]
fn the_published_gaps_and_sizes_come_out() {
    let trace = generate("agentic", &Shape::AGENTIC, AGENTIC_SEED);
    let mut turns: HashMap<Option<u32>, Vec<usize>> = HashMap::new();
    for (at, request) in trace.requests.iter().enumerate() {
        turns.entry(request.session).or_default().push(at);
    }
    turns.retain(|_, turns| turns.len() > 1);
    let between = |turns: &Vec<usize>| turns.windows(2).map(|pair| pair[1] - pair[0] - 1).collect::<Vec<_>>();
    let mut gaps: Vec<usize> = turns.values().flat_map(between).collect();
    gaps.sort_unstable();
    assert_eq!((gaps[gaps.len() / 2], gaps[gaps.len() * 9 / 10]), (2, 12), "published: 2 and 12");
    let last = |turns: &Vec<usize>| trace.blocks(&trace.requests[turns[turns.len() - 1]]).len();
    let mut sizes: Vec<usize> = turns.values().map(last).collect();
    sizes.sort_unstable();
    assert!((88..=98).contains(&sizes[sizes.len() / 2]), "{}, published: about 93", sizes[sizes.len() / 2]);
    let alive =
        |at: usize| turns.values().filter(|turns| turns[0] <= at && at <= turns[turns.len() - 1]).count();
    let most = (0..trace.requests.len()).map(alive).max();
    assert!((14..=21).contains(&most.unwrap_or(0)), "{most:?} sessions at a time, published: 14 to 21");
}
