//! How many members a call asks, after which errors, and how its time is shared.

use super::*;
use crate::config::ClientConfig;
use std::time::Duration;
use turnkv_proto::Spec;

const LONG: Duration = Duration::from_secs(100);

/// A call at the first of so many members, which nobody follows.
fn tries(count: u16) -> Tries {
    let list: Vec<String> = (1..=count).map(|port| format!("tcp://host:{port}")).collect();
    let mut config = ClientConfig::at(list.join(","));
    config.breaker.failures = 1;
    config.breaker.cooldown_ms = 600_000;
    let members = Arc::new(Members::new(config).unwrap());
    let spec = Spec::opaque("tries", 16, 4096).check().unwrap();
    Tries { at: Namespace::new(members, spec), asked: Vec::new() }
}

fn failed(kind: ErrorKind) -> Error {
    Error::new(kind, "it failed")
}

#[test]
fn a_call_asks_as_many_members_as_it_may_each_once_and_no_more() {
    for count in [1, 2, TRIES_MAX as u16, TRIES_MAX as u16 + 3] {
        let (mut tries, deadline) = (tries(count), Deadline::after(LONG));
        let mut asked = vec![Arc::clone(&tries.at().link)];
        while tries.go_on(&failed(ErrorKind::Unavailable), deadline) {
            assert!(!is_among(&tries.at().link, &asked), "nobody twice");
            asked.push(Arc::clone(&tries.at().link));
        }
        assert_eq!(asked.len(), TRIES_MAX.min(count.into()), "of {count}");
        let last = Arc::clone(&tries.at().link);
        assert!(!tries.go_on(&failed(ErrorKind::Unavailable), deadline));
        assert!(Arc::ptr_eq(&last, &tries.at().link), "it stays where it ended");
    }
}

#[test]
fn another_member_is_asked_only_where_it_may_answer_otherwise() {
    let goes_on = [ErrorKind::Unavailable, ErrorKind::BreakerOpen, ErrorKind::Deadline, ErrorKind::Draining];
    let stays = [
        ErrorKind::Invalid,
        ErrorKind::Busy { retry_after_ms: 1 },
        ErrorKind::NamespaceUnknown,
        ErrorKind::SessionUnknown,
        ErrorKind::LeaseExpired,
        ErrorKind::Limit,
        ErrorKind::Device,
        ErrorKind::Internal,
        ErrorKind::PermissionDenied,
    ];
    for kind in goes_on {
        assert!(tries(2).go_on(&failed(kind), Deadline::after(LONG)), "{kind:?}");
        assert!(!tries(2).go_on(&failed(kind), Deadline::after(Duration::ZERO)), "{kind:?}: no time is left");
        assert!(!tries(1).go_on(&failed(kind), Deadline::after(LONG)), "{kind:?}: there is no other");
    }
    for kind in stays {
        assert!(!tries(2).go_on(&failed(kind), Deadline::after(LONG)), "{kind:?}");
    }
}

#[test]
fn half_of_the_time_is_left_for_another_member_that_could_answer() {
    let deadline = Deadline::after(LONG);
    let share = |tries: &Tries, deadline: Deadline| tries.share(deadline).left();
    let mut two = tries(2);
    let half = share(&two, deadline);
    assert!(half <= LONG / 2 && half > LONG / 4, "{half:?}");
    let short = Deadline::after(MEMBER_WAIT_MIN + MEMBER_WAIT_MIN / 2);
    assert!(share(&two, short) > MEMBER_WAIT_MIN / 2, "not less than an answer takes");
    assert!(two.share(short) < short);
    let shortest = Deadline::after(MEMBER_WAIT_MIN / 2);
    assert_eq!(two.share(shortest), shortest, "never more than there is");
    assert_eq!(tries(1).share(deadline), deadline);
    assert!(two.go_on(&failed(ErrorKind::Deadline), deadline));
    assert_eq!(two.share(deadline), deadline, "the last one gets all of the rest");
    let sick = tries(2);
    sick.at.members.next(&sick.at.id(), &[Arc::clone(&sick.at.link)]).unwrap().sicken();
    assert_eq!(sick.share(deadline), deadline, "who is sick needs no time");
}

#[test]
fn a_call_that_was_sent_on_comes_back_to_whoever_sent_it_but_goes_nowhere_twice() {
    let (mut tries, deadline) = (tries(3), Deadline::after(LONG));
    let first = Arc::clone(&tries.at().link);
    assert!(!tries.follow(Arc::clone(&first)), "it is there");
    let second = tries.at.members.next(&tries.at.id(), std::slice::from_ref(&first)).unwrap();
    assert!(tries.follow(Arc::clone(&second)));
    assert!(tries.go_on(&failed(ErrorKind::Unavailable), deadline), "the one that was named is gone");
    assert!(Arc::ptr_eq(&tries.at().link, &first), "whoever sent it there can serve it");
    assert!(!tries.follow(second), "it did not answer");
    assert!(tries.go_on(&failed(ErrorKind::Unavailable), deadline));
    assert!(!is_among(&tries.at().link, &[first]), "the third");
}
