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

fn window(pages: usize) -> (OffloadWindow, Vec<BlockHash>) {
    let hashes: Vec<BlockHash> = (0..pages as u32).map(|at| BlockHash::chain(None, &[at])).collect();
    let begin = wire::BeginOffloadRequest {
        hashes: pack_hashes(&hashes).into(),
        parent: vec![9; 32].into(),
        tail_tokens: 3,
        session: "session".to_owned(),
        durable: true,
        ..Default::default()
    };
    let deadline = Deadline::after(Duration::from_secs(1));
    (OffloadWindow { begin, pages, moved: ONE, durable: true, deadline }, hashes)
}

#[test]
fn parts_of_a_window_hang_on_one_another_and_only_the_last_has_the_tail() {
    let (window, hashes) = window(5);
    for start in 0..5 {
        for end in start + 1..=5 {
            let part = window.part(start..end);
            assert_eq!((part.pages, part.moved, part.durable), (end - start, ONE, true));
            assert_eq!(turnkv_proto::unpack_hashes(&part.begin.hashes).unwrap(), hashes[start..end]);
            let parent = if start == 0 { vec![9; 32] } else { hashes[start - 1].0.to_vec() };
            assert_eq!(part.begin.parent, parent, "{start}..{end}");
            assert_eq!(part.begin.tail_tokens, if end == 5 { 3 } else { 0 }, "{start}..{end}");
            assert_eq!(part.begin.session, "session");
        }
    }
}

#[test]
fn a_tail_has_fewer_tokens_than_a_page_and_an_error_becomes_the_reason_of_the_rest() {
    let options = |tail_tokens| OffloadOptions { tail_tokens, ..OffloadOptions::default() };
    for (tail_tokens, is_right) in [(0, true), (1, true), (15, true), (16, false), (17, false)] {
        assert_eq!(options(tail_tokens).check(16).is_ok(), is_right, "{tail_tokens} of 16");
    }
    assert!(options(1).check(1).is_err(), "a page of one token has no part");
    let table = [
        (ErrorKind::Deadline, Decline::Deadline),
        (ErrorKind::LeaseExpired, Decline::LeaseExpired),
        (ErrorKind::Draining, Decline::Draining),
        (ErrorKind::Busy { retry_after_ms: 0 }, Decline::LeaseLimit),
        (ErrorKind::Unavailable, Decline::Unavailable),
        (ErrorKind::Internal, Decline::Unavailable),
    ];
    for (kind, decline) in table {
        let report = OffloadReport { stored: 1, durable: true, ..OffloadReport::default() };
        let ended = report.clone().conclude(2, Err(Error::new(kind, "it ended"))).unwrap();
        assert_eq!((ended.declined, ended.first_decline), (1, Some(decline)), "{kind:?}");
        let all = report.conclude(1, Err(Error::new(kind, "it ended"))).unwrap();
        assert_eq!((all.declined, all.first_decline), (0, None), "{kind:?}: nothing is left to decline");
    }
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    /// What a pool says of each position: there, granted, or declined.
    fn outcomes() -> impl Strategy<Value = Vec<OffloadOutcome>> {
        let outcome = prop_oneof![
            4 => Just(OffloadOutcome::Present),
            6 => Just(OffloadOutcome::Granted),
            1 => Just(OffloadOutcome::NoSpace),
        ];
        prop::collection::vec(outcome, 12)
    }

    proptest! {
        #[test]
        fn what_is_kept_is_the_leading_pages_that_are_whole_whatever_was_torn(
            outcomes in outcomes(), count in 1..5u32, torn in any::<u16>()
        ) {
            let moved = Shards::new(0, count).unwrap();
            let (count, pages) = (count as usize, 12 / count as usize);
            let outcomes = &outcomes[..pages * count];
            let granted = Granted::read(&reply(outcomes), pages, moved).unwrap();
            let run = outcomes.chunks(count);
            let run = run.take_while(|page| !page.contains(&OffloadOutcome::NoSpace)).count();
            let is_filled = |at: &usize| *at < run * count && outcomes[*at] == OffloadOutcome::Granted;
            let fill: Vec<u32> = (0..outcomes.len()).filter(is_filled).map(|at| at as u32).collect();
            prop_assert_eq!(&granted.fill, &fill);
            let declined = (run < pages).then_some(Decline::NoSpace);
            prop_assert_eq!(granted.decline, declined);
            let dropped: Vec<u32> = fill.iter().copied().filter(|at| torn & (1 << at) != 0).collect();
            let whole = dropped.first().map_or(run, |at| *at as usize / count);
            let stored = (0..whole).filter(|page| {
                outcomes[page * count..(page + 1) * count].contains(&OffloadOutcome::Granted)
            }).count();
            let commit = wire::CommitOffloadReply { dropped: dropped.clone(), ..Default::default() };
            let done = granted.committed(&commit, 5).unwrap();
            prop_assert_eq!((done.stored, done.present), (stored, whole - stored));
            let decline = if dropped.is_empty() { declined } else { Some(Decline::NoParent) };
            prop_assert_eq!(done.decline, decline, "the page behind these");
        }
    }
}
