//! Tests of pauses: how they grow, and that none outlasts its deadline; and of how often a call asks again.

use super::{Attempts, Backoff};
use crate::deadline::Deadline;
use crate::limits::{CONNECT_PAUSE_MAX, CONNECT_PAUSE_MIN, RECONNECTS_MAX, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};
use std::time::Duration;

/// Later than any test lasts.
fn late() -> Deadline {
    Deadline::after(Duration::from_secs(3600))
}

#[test]
fn pauses_double_up_to_the_longest() {
    let mut backoff = Backoff::new(Some(late()));
    let mut wanted = CONNECT_PAUSE_MIN;
    for _ in 0..40 {
        assert_eq!(backoff.next(), Some(wanted));
        wanted = (wanted * 2).min(CONNECT_PAUSE_MAX);
    }
    assert_eq!(wanted, CONNECT_PAUSE_MAX);
}

#[test]
fn without_a_deadline_there_is_one_attempt() {
    assert_eq!(Backoff::new(None).next(), None);
}

#[test]
fn no_pause_is_as_long_as_what_is_left() {
    assert_eq!(Backoff::new(Some(Deadline::after(Duration::ZERO))).next(), None);
    assert_eq!(Backoff::new(Some(Deadline::after(CONNECT_PAUSE_MIN / 2))).next(), None);
}

#[tokio::test]
async fn what_the_server_says_is_kept_to_within_bounds() {
    let mut attempts = Attempts::default();
    assert!(attempts.pause(0, late()).await);
    assert_eq!(
        attempts.least,
        RETRY_PAUSE_MIN * 2,
        "a server that says nothing is not asked without a pause"
    );
    // Asked to wait for a minute, it would wait for its own longest: there is no time for that.
    let soon = Deadline::after(RETRY_PAUSE_MAX / 2);
    assert!(!attempts.pause(60_000, soon).await, "the deadline comes first");
    assert_eq!(attempts.least, RETRY_PAUSE_MIN * 2, "what was not waited for does not count");
}

#[tokio::test]
async fn each_pause_is_longer_until_something_is_served() {
    let mut attempts = Attempts::default();
    for doubled in 1..4 {
        assert!(attempts.pause(1, late()).await);
        assert_eq!(attempts.least, RETRY_PAUSE_MIN.max(Duration::from_millis(1)) * (1 << doubled));
    }
    attempts.progressed();
    assert!(attempts.pause(1, late()).await);
    assert_eq!(attempts.least, RETRY_PAUSE_MIN.max(Duration::from_millis(1)) * 2);
}

#[test]
fn a_call_asks_on_other_connections_a_few_times_from_its_last_progress_on() {
    let mut attempts = Attempts::default();
    let asked = |attempts: &mut Attempts| (0..100).take_while(|_| attempts.may_reconnect()).count();
    assert_eq!(asked(&mut attempts), RECONNECTS_MAX as usize);
    assert_eq!(asked(&mut attempts), 0);
    attempts.progressed();
    assert_eq!(asked(&mut attempts), RECONNECTS_MAX as usize);
}
