//! The exact curve against requests that can be followed by hand.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::ExactCurve;
use crate::trace::{Builder, Draft, Stop, Trace};

fn trace(requests: &[&[u64]]) -> Trace {
    let mut builder = Builder::new("hand", 16, "", "");
    for (at, blocks) in requests.iter().enumerate() {
        let (at_ms, input_tokens) = (at as u64, 16 * blocks.len() as u64);
        let (session, parent, turn, output_tokens, stop) = (None, None, 0, 0, Stop::Unknown);
        builder
            .push(&Draft { at_ms, session, parent, turn, input_tokens, output_tokens, blocks, stop })
            .unwrap();
    }
    builder.finish()
}

#[test]
fn heads_are_nearer_than_tails_and_others_come_between() {
    // The second request's blocks lie above the first's when the third begins: 10 is the third, 11 the fourth.
    let trace = trace(&[&[10, 11], &[20, 21], &[10, 11]]);
    let curve = ExactCurve::of(&trace, &[0, 1, 2]);
    assert_eq!(curve.references, 6);
    assert_eq!([0, 2, 3, 4, 99].map(|blocks| curve.hits(blocks)), [0, 0, 1, 2, 2]);
}

#[test]
fn a_block_that_was_just_used_is_at_distance_one() {
    let trace = trace(&[&[1], &[1], &[1, 2], &[1, 2]]);
    let curve = ExactCurve::of(&trace, &[0, 1, 2, 3]);
    assert_eq!([0, 1, 2].map(|blocks| curve.hits(blocks)), [0, 3, 4]);
}

#[test]
fn nothing_sent_is_nothing_found() {
    let curve = ExactCurve::of(&trace(&[]), &[]);
    assert_eq!((curve.references, curve.hits(5), curve.hit_ratio(5)), (0, 0, 0.0));
}
