//! What is printed.

use super::*;
use crate::drive::Admission;
use crate::grid::{Cell, Machine, Workload, run_grid};
use crate::trace::Trace;
use crate::{capacity::Capacity, device::Speed, policy};

/// Two sessions that take turns, 16 tokens a block, one of three blocks always lost.
pub(crate) fn sample() -> Vec<Row> {
    let text = r#"{"trace":"a,\"b\"","block_tokens":16}
{"t":0,"session":"x","parent":null,"turn":1,"input":50,"output":1,"blocks":[0,1,2],"stop":null}
{"t":1,"session":"y","parent":null,"turn":1,"input":50,"output":1,"blocks":[0,3],"stop":null}
{"t":2,"session":"x","parent":null,"turn":2,"input":50,"output":1,"blocks":[0,1,2],"stop":null}"#;
    let workloads = [Workload::new(Trace::read(text.as_bytes()).expect("a fine trace"), 0)];
    let cell = |blocks| Cell {
        policy: policy::find("lru").expect("lru"),
        dram: Capacity::Blocks(blocks),
        nvme: Capacity::Blocks(0),
        hints: None,
    };
    let machine = Machine { bytes_per_token: 1, speed: Speed::default(), admission: Admission::default() };
    let outcomes = run_grid(&workloads, &[cell(3), cell(4)], &machine, 2, &|| ()).expect("the grid runs");
    rows(&workloads, &outcomes)
}

#[test]
fn figures_add_up() {
    let [small, large] = <[Row; 2]>::try_from(sample()).expect("two cells");
    // At three blocks y's own block pushes out x's last one.
    assert_eq!((small.tokens_saved, large.tokens_saved), (3 * 16, 4 * 16));
    assert_eq!((small.blocks, small.requests, small.evicted), (8, 3, 2));
    assert!((small.lost_multi_turn_percent - 12.5).abs() < 1e-9 && small.lost_cross_session_percent == 0.0);
    assert_eq!((large.infinite_percent, large.belady_percent), (50.0, 50.0));
    assert_eq!((small.gap_closed_percent, large.gap_closed_percent), (Some(0.0), None));
}

#[test]
fn the_table_has_a_line_a_row() {
    let text = table(&sample());
    assert_eq!(text.lines().count(), 1 + 1 + 2 + 1, "{text}");
    assert!(text.contains("3 (3)") && text.contains("37.5"), "{text}");
}

#[test]
fn csv_and_json_hold_the_same_fields() {
    let rows = sample();
    let csv = csv(&rows).expect("plain data");
    let json: serde_json::Value = serde_json::from_str(&json(&rows).expect("plain data")).expect("JSON");
    let head = csv.lines().next().expect("a header");
    assert_eq!(head.split(',').count(), json[0].as_object().expect("a row").len());
    assert_eq!(csv.lines().count(), 3);
    assert!(csv.contains(r#""a,""b""""#), "{csv}");
}

#[test]
fn numbers_are_grouped() {
    assert_eq!([thousands(0), thousands(999), thousands(1_234_567)], ["0", "999", "1 234 567"]);
}
