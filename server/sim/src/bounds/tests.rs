//! Belady against every possible choice, on small streams.

use super::*;
use crate::trace::{Builder, Draft, Stop};
use std::collections::BTreeSet;

fn trace(requests: &[Vec<u64>]) -> Trace {
    let mut builder = Builder::new("t", 16, "", "");
    for (at, blocks) in requests.iter().enumerate() {
        let draft = Draft {
            at_ms: at as u64,
            session: None,
            parent: None,
            turn: 0,
            input_tokens: 0,
            output_tokens: 0,
            blocks,
            stop: Stop::Unknown,
        };
        builder.push(&draft).expect("a fine request");
    }
    builder.finish()
}

/// The most leading blocks that can be found, trying every set of blocks to keep after every request.
fn best(trace: &Trace, at: usize, kept: &BTreeSet<u32>, capacity: usize) -> u64 {
    let Some(request) = trace.requests.get(at) else { return 0 };
    let blocks = trace.blocks(request);
    let hits = blocks.iter().take_while(|block| kept.contains(block)).count() as u64;
    let all: Vec<u32> =
        kept.iter().copied().chain(blocks.iter().copied().filter(|block| !kept.contains(block))).collect();
    let choices = (0u32..1 << all.len()).filter(|choice| choice.count_ones() as usize <= capacity);
    let keep = |choice: u32| {
        all.iter().enumerate().filter(|(bit, _)| choice >> bit & 1 == 1).map(|(_, block)| *block).collect()
    };
    hits + choices.map(|choice| best(trace, at + 1, &keep(choice), capacity)).max().unwrap_or(0)
}

#[test]
fn no_choice_beats_belady_on_small_streams() {
    let streams: [&[&[u64]]; 3] = [
        &[&[0, 1], &[2], &[0, 1], &[2]],
        &[&[0, 1, 2], &[3, 4], &[3, 4], &[0, 1]],
        &[&[0], &[1], &[0, 2], &[1], &[0, 2]],
    ];
    for requests in streams {
        let requests: Vec<Vec<u64>> = requests.iter().map(|blocks| blocks.to_vec()).collect();
        let trace = trace(&requests);
        let stream: Vec<u32> = (0..trace.requests.len() as u32).collect();
        for capacity in 1..4 {
            let most = best(&trace, 0, &BTreeSet::new(), capacity);
            assert_eq!(belady_hits(&trace, &stream, capacity as u64), most, "{requests:?} at {capacity}");
        }
    }
}
