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

mod properties {
    use super::*;
    use proptest::prelude::*;

    /// What happens next: time goes by, a call begins, or one that is under way ends.
    #[derive(Debug, Clone)]
    enum Event {
        Wait(u64),
        Begin,
        End(usize, u8),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            (0..1500u64).prop_map(Event::Wait),
            Just(Event::Begin),
            (0..6usize, 0..3u8).prop_map(|(which, how)| Event::End(which, how)),
        ];
        prop::collection::vec(event, 0..80)
    }

    proptest! {
        /// Calls overlap, end late and in any order.
        #[test]
        fn whatever_calls_do_a_sick_pool_gets_one_at_a_time_and_a_well_one_is_found_again(
            events in events(), failures in 1..4u32
        ) {
            let mut now = Instant::now();
            let mut breaker = Breaker::new(failures, COOLDOWN);
            let (mut running, mut opened) = (Vec::new(), None);
            for event in events {
                match event {
                    Event::Wait(ms) => now += Duration::from_millis(ms),
                    Event::Begin => match breaker.admit(now) {
                        Ok(pass) => {
                            let probes = running.iter().filter(|pass| **pass == Pass::Probe).count();
                            prop_assert!(opened.is_none() || (pass == Pass::Probe && probes == 0));
                            let is_early = opened.is_some_and(|since| now < since + COOLDOWN);
                            prop_assert!(!is_early, "it was let through before its time");
                            running.push(pass);
                        }
                        Err(left) => {
                            prop_assert!(opened.is_some() && left <= COOLDOWN, "nothing was wrong");
                        }
                    },
                    Event::End(which, how) if which < running.len() => {
                        let outcome = [Outcome::Healthy, Outcome::Sick, Outcome::Unknown][how as usize];
                        let pass = running.remove(which);
                        let before = breaker.state();
                        breaker.end(pass, outcome, now);
                        let is_open = breaker.state() != BreakerState::Closed;
                        let is_anew = outcome == Outcome::Sick && (pass == Pass::Probe || opened.is_none());
                        if is_open && is_anew {
                            opened = Some(now);
                        } else if !is_open {
                            prop_assert!(before == BreakerState::Closed || pass == Pass::Probe);
                            opened = None;
                        }
                    }
                    Event::End(..) => {}
                }
            }
            for pass in running {
                breaker.end(pass, Outcome::Unknown, now);
            }
            let last = breaker.admit(now + COOLDOWN);
            prop_assert!(last.is_ok(), "nobody is under way, and none is let through");
            breaker.end(last.unwrap(), Outcome::Healthy, now + COOLDOWN);
            prop_assert_eq!((breaker.state(), breaker.is_healthy()), (BreakerState::Closed, true));
        }
    }
}
