//! Agreement with the reference table of the public traces, within 0.3 points. The traces are not part of the
//! repository: `TURNKV_TRACES` names their folder, else `../shared/traces` beside the workspace is tried.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the figures, for those who ask with --nocapture")]

mod common;

use common::public;
use turnkv_sim::capacity::Capacity;
use turnkv_sim::device::Speed;
use turnkv_sim::drive::Admission;
use turnkv_sim::grid::{Cell, Machine, Workload, run_grid};
use turnkv_sim::policy;

const SHARES: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 30.0];
const TOLERANCE: f64 = 0.3;

struct Reference {
    trace: &'static str,
    unique_blocks: u64,
    infinite: f64,
    lru: [f64; 5],
    belady: [f64; 5],
}

const REFERENCES: [Reference; 3] = [
    Reference {
        trace: "miniswe",
        unique_blocks: 2_366,
        infinite: 93.7,
        lru: [23.2, 42.9, 66.3, 79.1, 93.6],
        belady: [23.2, 42.9, 66.3, 79.1, 93.7],
    },
    Reference {
        trace: "conversation",
        unique_blocks: 182_790,
        infinite: 36.6,
        lru: [5.2, 7.9, 19.6, 27.9, 35.8],
        belady: [24.6, 31.4, 36.6, 36.6, 36.6],
    },
    Reference {
        trace: "agentic",
        unique_blocks: 56_896,
        infinite: 96.6,
        lru: [33.5, 54.4, 84.2, 93.5, 96.1],
        belady: [56.1, 73.4, 90.3, 95.3, 96.6],
    },
];

fn agree(reference: &Reference, workload: Workload, shares: &[usize]) {
    let cells: Vec<Cell> = shares
        .iter()
        .map(|at| Cell {
            policy: policy::find("lru").expect("the plainest policy"),
            dram: Capacity::Percent(SHARES[*at]),
            nvme: Capacity::Blocks(0),
            hints: None,
        })
        .collect();
    let machine = Machine { bytes_per_token: 1, speed: Speed::default(), admission: Admission::default() };
    let percent = |hits: u64| 100.0 * hits as f64 / workload.blocks() as f64;
    assert_eq!(workload.unique_blocks, reference.unique_blocks);
    let mut faults = Vec::new();
    let mut check = |what: String, ours: f64, theirs: f64| {
        println!("{} {what}: {ours:.2}, reference {theirs:.1}", reference.trace);
        if (ours - theirs).abs() > TOLERANCE {
            faults.push(format!("{} {what}: {ours:.2}, reference {theirs:.1}", reference.trace));
        }
    };
    check("infinite".into(), percent(workload.infinite_hits()), reference.infinite);
    let workloads = [workload];
    let outcomes = run_grid(&workloads, &cells, &machine, 2, &|| ()).expect("the grid runs");
    for (at, outcome) in shares.iter().zip(outcomes) {
        let percent = |hits: u64| outcome.counts.percent(hits);
        check(format!("lru at {}%", SHARES[*at]), percent(outcome.counts.hits()), reference.lru[*at]);
        check(format!("belady at {}%", SHARES[*at]), percent(outcome.belady_hits), reference.belady[*at]);
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn a_small_trace_agrees() {
    let Some(workload) = public(REFERENCES[0].trace) else {
        println!("{}: the trace is not here, nothing was checked", REFERENCES[0].trace);
        return;
    };
    agree(&REFERENCES[0], workload, &[0, 1, 2, 3, 4]);
}

#[test]
#[ignore = "seconds in a release build, minutes in a debug one"]
fn conversation_agrees() {
    let workload = public(REFERENCES[1].trace).expect("TURNKV_TRACES names the folder of the public traces");
    agree(&REFERENCES[1], workload, &[0, 1, 2, 3, 4]);
}

#[test]
#[ignore = "seconds in a release build, minutes in a debug one"]
fn agentic_agrees() {
    let workload = public(REFERENCES[2].trace).expect("TURNKV_TRACES names the folder of the public traces");
    agree(&REFERENCES[2], workload, &[0, 1, 2, 3, 4]);
}
