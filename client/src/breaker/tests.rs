//! Tests of the breaker, on times handed in.

use super::*;

const COOLDOWN: Duration = Duration::from_secs(1);

fn opened(at: Instant) -> Breaker {
    let mut breaker = Breaker::new(3, COOLDOWN);
    for _ in 0..3 {
        let pass = breaker.admit(at).unwrap();
        breaker.end(pass, Outcome::Sick, at);
    }
    assert_eq!(breaker.state(), BreakerState::Open);
    breaker
}

#[test]
fn opens_after_failures_in_a_row_only() {
    let now = Instant::now();
    let mut breaker = Breaker::new(3, COOLDOWN);
    for outcome in
        [Outcome::Sick, Outcome::Sick, Outcome::Healthy, Outcome::Sick, Outcome::Unknown, Outcome::Sick]
    {
        let pass = breaker.admit(now).unwrap();
        breaker.end(pass, outcome, now);
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
    assert!(!breaker.is_healthy());
    let pass = breaker.admit(now).unwrap();
    breaker.end(pass, Outcome::Sick, now);
    assert_eq!(breaker.admit(now), Err(COOLDOWN));
}

#[test]
fn one_probe_after_the_cooldown_decides() {
    let start = Instant::now();
    let mut breaker = opened(start);
    let almost = start + COOLDOWN - Duration::from_millis(1);
    assert_eq!(breaker.admit(almost), Err(Duration::from_millis(1)));
    let later = start + COOLDOWN;
    assert_eq!(breaker.admit(later), Ok(Pass::Probe));
    assert!(breaker.admit(later).is_err(), "only one");
    assert_eq!(breaker.state(), BreakerState::HalfOpen);
    breaker.end(Pass::Probe, Outcome::Sick, later);
    assert_eq!(breaker.admit(later), Err(COOLDOWN), "the cool-down starts anew");
    assert_eq!(breaker.admit(later + COOLDOWN), Ok(Pass::Probe));
    breaker.end(Pass::Probe, Outcome::Healthy, later + COOLDOWN);
    assert_eq!(breaker.state(), BreakerState::Closed);
    assert!(breaker.is_healthy());
}

#[test]
fn an_abandoned_probe_makes_room_for_the_next() {
    let start = Instant::now();
    let mut breaker = opened(start);
    assert_eq!(breaker.admit(start + COOLDOWN), Ok(Pass::Probe));
    breaker.end(Pass::Probe, Outcome::Unknown, start + COOLDOWN);
    assert_eq!(breaker.admit(start + COOLDOWN), Ok(Pass::Probe));
}

#[test]
fn calls_of_another_epoch_say_nothing() {
    let start = Instant::now();
    let mut breaker = Breaker::new(1, COOLDOWN);
    let old = breaker.admit(start).unwrap();
    let sick = breaker.admit(start).unwrap();
    breaker.end(sick, Outcome::Sick, start);
    breaker.end(old, Outcome::Healthy, start);
    assert_eq!(breaker.state(), BreakerState::Open, "an answer to an older call does not close it");
    assert_eq!(breaker.admit(start + COOLDOWN), Ok(Pass::Probe));
    breaker.end(Pass::Probe, Outcome::Healthy, start + COOLDOWN);
    breaker.end(old, Outcome::Sick, start + COOLDOWN);
    assert!(breaker.is_healthy(), "a failure of an older call does not count");
}

#[test]
fn a_clock_that_does_not_move_is_harmless() {
    let start = Instant::now();
    let mut breaker = opened(start + COOLDOWN);
    assert_eq!(breaker.admit(start), Err(COOLDOWN));
}
