//! Tests of what windows and replies add up to.

use super::*;

const ONE: Shards = Shards::one(0);

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
    let granted = Granted::read(&reply(&[Present, Grant, Present, Grant, NoSpace, Grant]), 6, ONE).unwrap();
    assert_eq!(
        granted,
        Granted { fill: vec![1, 3], present: 2, decline: Some(Decline::NoSpace), moved: ONE }
    );
    let granted = Granted::read(&reply(&[InFlight, Grant]), 2, ONE).unwrap();
    assert_eq!(granted, Granted { fill: vec![], present: 0, decline: Some(Decline::InFlight), moved: ONE });
}

#[test]
fn a_reply_of_another_length_or_meaning_is_refused() {
    assert!(Granted::read(&reply(&[OffloadOutcome::Granted]), 2, ONE).is_err());
    assert!(Granted::read(&reply(&[OffloadOutcome::Unspecified]), 1, ONE).is_err());
    let unknown = wire::BeginOffloadReply { outcomes: vec![77], ..reply(&[]) };
    assert!(Granted::read(&unknown, 1, ONE).is_err());
}

#[test]
fn dropped_pages_end_the_run() {
    let granted = || Granted { fill: vec![1, 3, 4], present: 2, decline: None, moved: ONE };
    let done = granted().committed(&dropped(&[]), 0).unwrap();
    assert_eq!((done.stored, done.present, done.decline), (3, 2, None));
    let done = granted().committed(&dropped(&[4, 3]), 0).unwrap();
    assert_eq!((done.stored, done.present, done.decline), (1, 2, Some(Decline::NoParent)));
    assert!(granted().committed(&dropped(&[2]), 0).is_err(), "page 2 was not offered");
}

#[test]
fn pages_of_several_shards_count_whole() {
    use OffloadOutcome::{Granted as Grant, LeaseLimit, Present};
    let moved = Shards::new(2, 2).unwrap();
    let outcomes = [Present, Present, Present, Grant, Grant, Grant, Grant, LeaseLimit, Grant, Grant];
    let granted = || Granted::read(&reply(&outcomes), 5, moved).unwrap();
    let expected = Granted { fill: vec![3, 4, 5], present: 1, decline: Some(Decline::LeaseLimit), moved };
    assert_eq!(granted(), expected, "page 3 is declined with its second shard");
    let done = granted().committed(&dropped(&[]), 0).unwrap();
    assert_eq!((done.stored, done.present, done.decline), (2, 1, Some(Decline::LeaseLimit)));
    let done = granted().committed(&dropped(&[5]), 0).unwrap();
    assert_eq!((done.stored, done.present, done.decline), (1, 1, Some(Decline::NoParent)), "page 2 is torn");
    let done = granted().committed(&dropped(&[3, 5]), 0).unwrap();
    assert_eq!((done.stored, done.present), (0, 1));
    assert!(granted().committed(&dropped(&[6]), 0).is_err(), "position 6 was not committed");
    assert!(Granted::read(&reply(&outcomes), 10, moved).is_err(), "one outcome a position");
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
    assert_eq!(window_pages(64 << 20, ONE), 1);
    assert_eq!(window_pages(2 << 20, ONE), 32);
    assert_eq!(window_pages(1, ONE), WINDOW_PAGES_MAX);
    let eight = Shards::new(0, 8).unwrap();
    assert_eq!(window_pages(64 << 20, eight), 1, "a page is not cut");
    assert_eq!(window_pages(3 << 20, eight), 2, "21 shards fit");
    assert_eq!(window_pages(1, eight), WINDOW_PAGES_MAX / 8, "a lease's slots");
}
