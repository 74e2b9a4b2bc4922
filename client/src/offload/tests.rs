//! Tests of what windows and replies add up to.

use super::*;

fn reply(outcomes: &[OffloadOutcome]) -> wire::BeginOffloadReply {
    let outcomes = outcomes.iter().map(|outcome| *outcome as i32).collect();
    wire::BeginOffloadReply { lease: 1, lease_ms: 1000, outcomes, retry_after_ms: 5, ..Default::default() }
}

fn dropped(positions: &[u32]) -> wire::CommitOffloadReply {
    wire::CommitOffloadReply { dropped: positions.to_vec(), durable: true, ..Default::default() }
}

#[test]
fn only_the_leading_run_is_filled() {
    use OffloadOutcome::{Granted as Grant, InFlight, NoSpace, Present};
    let granted = Granted::read(&reply(&[Present, Grant, Present, Grant, NoSpace, Grant]), 6).unwrap();
    assert_eq!(granted, Granted { fill: vec![1, 3], present: 2, decline: Some(Decline::NoSpace) });
    let granted = Granted::read(&reply(&[InFlight, Grant]), 2).unwrap();
    assert_eq!(granted, Granted { fill: vec![], present: 0, decline: Some(Decline::InFlight) });
}

#[test]
fn a_reply_of_another_length_or_meaning_is_refused() {
    assert!(Granted::read(&reply(&[OffloadOutcome::Granted]), 2).is_err());
    assert!(Granted::read(&reply(&[OffloadOutcome::Unspecified]), 1).is_err());
    let unknown = wire::BeginOffloadReply { outcomes: vec![77], ..reply(&[]) };
    assert!(Granted::read(&unknown, 1).is_err());
}

#[test]
fn dropped_pages_end_the_run() {
    let granted = || Granted { fill: vec![1, 3, 4], present: 2, decline: None };
    let done = granted().committed(&dropped(&[]), 0).unwrap();
    assert_eq!((done.stored, done.present, done.decline), (3, 2, None));
    let done = granted().committed(&dropped(&[4, 3]), 0).unwrap();
    assert_eq!((done.stored, done.present, done.decline), (1, 2, Some(Decline::NoParent)));
    assert!(granted().committed(&dropped(&[2]), 0).is_err(), "page 2 was not offered");
}

#[test]
fn what_was_stored_before_an_error_is_reported() {
    let report = OffloadReport { stored: 2, present: 1, durable: true, ..OffloadReport::default() };
    let concluded = report.clone().conclude(5, Err(Error::deadline())).unwrap();
    assert_eq!((concluded.declined, concluded.first_decline), (2, Some(Decline::Deadline)));
    assert!(OffloadReport::default().conclude(5, Err(Error::deadline())).is_err());
    let all = report.conclude(3, Ok(())).unwrap();
    assert_eq!((all.declined, all.first_decline, all.durable), (0, None, true));
    let present =
        OffloadReport { present: 3, durable: true, ..OffloadReport::default() }.conclude(3, Ok(())).unwrap();
    assert!(present.durable, "what was there already counts");
    let nothing = OffloadReport { durable: true, ..OffloadReport::default() }.conclude(0, Ok(())).unwrap();
    assert!(!nothing.durable, "nothing was kept");
}

#[test]
fn windows_hold_at_least_a_page() {
    assert_eq!(window_pages(64 << 20), 1);
    assert_eq!(window_pages(2 << 20), 32);
    assert_eq!(window_pages(1), WINDOW_PAGES_MAX);
}
