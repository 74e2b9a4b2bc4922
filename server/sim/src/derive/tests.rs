//! Which requests are one session.

use super::*;
use crate::trace::{Builder, Draft, Stop};

fn sessions(requests: &[&[u64]]) -> Vec<(u32, u32)> {
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
    let mut trace = builder.finish();
    derive_sessions(&mut trace);
    trace
        .requests
        .iter()
        .map(|request| (request.session.expect("every request has one"), request.turn))
        .collect()
}

#[test]
fn a_longer_prefix_continues_its_session() {
    assert_eq!(sessions(&[&[0, 1, 2, 3], &[0, 1, 2, 3, 4]]), [(0, 1), (0, 2)]);
}

#[test]
fn a_shared_head_is_no_session() {
    assert_eq!(sessions(&[&[0, 1, 2], &[0, 1, 5], &[0, 6]]), [(0, 1), (1, 1), (2, 1)]);
}

#[test]
fn blocks_of_several_sessions_prove_nothing() {
    // Two sessions share a head of two; a third shares three blocks of one of them and continues it; from then on a
    // request that ends in blocks of both is new.
    let head: [&[u64]; 4] = [&[0, 1, 2, 3], &[0, 1, 7, 8], &[0, 1, 2, 4], &[0, 1, 7, 8, 9]];
    assert_eq!(sessions(&head), [(0, 1), (1, 1), (0, 2), (1, 2)]);
}
