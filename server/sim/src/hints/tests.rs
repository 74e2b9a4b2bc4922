//! What is known when.

use super::*;
use crate::trace::{Builder, Draft};

fn trace(requests: &[(u64, &str, Option<&str>, Stop)]) -> Trace {
    let mut builder = Builder::new("t", 16, "", "");
    for (at_ms, session, parent, stop) in requests {
        let draft = Draft {
            at_ms: *at_ms,
            session: Some(session),
            parent: *parent,
            turn: 0,
            input_tokens: 0,
            output_tokens: 0,
            blocks: &[],
            stop: *stop,
        };
        builder.push(&draft).expect("a fine request");
    }
    builder.finish()
}

fn advice(trace: &Trace) -> Vec<Advice> {
    let stream: Vec<u32> = (0..trace.requests.len() as u32).collect();
    let mut hints = Hints::new(trace, &stream, HintRules { close_after_ms: 1000 });
    trace.requests.iter().map(|request| hints.observe(request)).collect()
}

#[test]
fn the_expected_return_follows_the_gaps_seen() {
    let requests: Vec<_> = (0..40).map(|at| (at * 100_000, "a", None, Stop::ToolUse)).collect();
    let advice = advice(&trace(&requests));
    assert!((7_000..10_000).contains(&advice[0].expected_return_ms), "{:?}", advice[0]);
    assert!((85_000..118_000).contains(&advice[39].expected_return_ms), "{:?}", advice[39]);
}

#[test]
fn an_unknown_end_says_nothing() {
    assert_eq!(
        advice(&trace(&[(0, "a", None, Stop::Unknown), (9, "a", None, Stop::Unknown)]))[0],
        Advice::default()
    );
}

#[test]
fn a_sub_agent_is_closed_when_it_has_reported_back_and_a_session_after_its_last_request() {
    let requests = [
        (0, "main", None, Stop::ToolUse),
        (1, "sub", Some("main"), Stop::ToolUse),
        (2, "sub", Some("main"), Stop::EndTurn),
        (3, "main", None, Stop::EndTurn),
    ];
    let close: Vec<Option<Now>> = advice(&trace(&requests)).iter().map(|advice| advice.close_at).collect();
    assert_eq!(close, [None, None, Some(2 + TURN_OVER_MS), Some(1003)]);
}
