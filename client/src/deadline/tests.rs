//! Tests of the arithmetic of deadlines.

use super::Deadline;
use crate::error::ErrorKind;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn one_that_has_passed_leaves_nothing() {
    let past = Deadline::after(Duration::ZERO);
    assert_eq!((past.left(), past.server_wait_ms()), (Duration::ZERO, 0));
    assert_eq!(past.check().unwrap_err().kind, ErrorKind::Deadline);
    assert_eq!(past.within(HOUR), past, "nothing makes it later");
}

#[test]
fn the_earlier_one_counts() {
    let late = Deadline::after(HOUR);
    assert!(late.check().is_ok());
    let soon = late.within(HOUR / 2);
    assert!(soon < late && soon.within(HOUR) == soon);
}

#[test]
fn the_server_is_given_less_than_there_is() {
    let late = Deadline::after(HOUR);
    let given = u128::from(late.server_wait_ms());
    assert!(given > HOUR.as_millis() / 2 && given <= HOUR.as_millis() * 3 / 4);
}

#[test]
fn a_wait_beyond_the_clock_is_a_day_and_its_part_fits_the_wire() {
    let far = Deadline::after(Duration::MAX);
    assert!(far.left() > 23 * HOUR && far.left() <= 24 * HOUR);
    let weeks = Deadline::after(HOUR * 24 * 365);
    assert_eq!(weeks.server_wait_ms(), u32::MAX, "a year is more milliseconds than the wire has");
}

#[tokio::test]
async fn what_is_ready_is_answered_though_the_time_is_over() {
    let past = Deadline::after(Duration::ZERO);
    assert_eq!(past.bound(async { 7 }).await.unwrap(), 7);
    assert_eq!(past.bound(std::future::pending::<()>()).await.unwrap_err().kind, ErrorKind::Deadline);
}
