//! What is learned of waits, and from whom.

use super::*;
use crate::eviction::policy::class::Habits;

fn session(turn: u32) -> WaitClass {
    Habits::default().class(turn, 40, 0)
}

/// So many waits of a class, of which every `back`th comes back in a bucket; the others stay away until
/// `end`.
fn wait(chances: &mut Chances, ns: u16, class: &WaitClass, waits: u32, back: u32, bucket: usize, end: usize) {
    for at in 0..waits {
        let returns = at % back == 0;
        for lived in 0..if returns { bucket } else { end } {
            chances.observe(ns, class, lived, false, 1.0);
        }
        if returns {
            chances.observe(ns, class, bucket, true, 1.0);
        }
    }
}

#[test]
fn before_anything_was_seen_the_least_recently_used_goes() {
    let chances = Chances::new();
    for class in [session(1), session(9), WaitClass::of_page(3, true), WaitClass::LEFT] {
        let indexes: Vec<f32> = (0..BUCKETS).map(|bucket| chances.index(0, &class, bucket)).collect();
        assert!(indexes.is_sorted_by(|younger, older| younger >= older), "{class:?}: {indexes:?}");
    }
}

#[test]
fn classes_that_come_back_are_told_from_those_that_do_not() {
    let mut chances = Chances::new();
    for _ in 0..20 {
        wait(&mut chances, 0, &session(9), 10, 1, 12, 24);
        wait(&mut chances, 0, &session(1), 10, 10, 12, 24);
    }
    let (often, seldom) = (chances.index(0, &session(9), 8), chances.index(0, &session(1), 8));
    assert!(often > 4.0 * seldom, "{often} {seldom}");
    // What is past the time at which it comes back is worth less than what is before it.
    assert!(chances.index(0, &session(9), 16) < often);
}

#[test]
fn a_namespace_begins_with_what_others_know_and_learns_its_own() {
    let mut chances = Chances::new();
    let before = chances.index(7, &session(9), 8);
    wait(&mut chances, 0, &session(9), 200, 1, 9, 24);
    let taught = chances.index(7, &session(9), 8);
    assert!(taught > 2.0 * before, "{taught} {before}");
    let elsewhere = chances.index(0, &session(9), 8);
    wait(&mut chances, 7, &session(9), 400, 400, 9, 24);
    let own = chances.index(7, &session(9), 8);
    assert!(own < taught / 4.0, "{own} {taught}");
    // The other namespace keeps more of its own mind than of what this one taught the pool.
    assert!(chances.index(0, &session(9), 8) > 4.0 * own, "{elsewhere} {own}");
}

#[test]
fn an_age_that_nobody_had_reached_is_like_the_one_before() {
    let mut chances = Chances::new();
    wait(&mut chances, 0, &session(1), 300, 300, 3, 10);
    let always = Cells::at_any_age(&session(1));
    let chance = |chances: &Chances, bucket| {
        logistic(chances.sum(0, &always) + chances.sum(0, &Cells::in_bucket(&session(1), bucket)))
    };
    let last = chance(&chances, 9);
    assert!(last < 0.05, "{last}");
    chances.observe(0, &session(1), 12, false, 1.0);
    for bucket in 10..13 {
        assert!(chance(&chances, bucket) <= last * 1.01, "{bucket}: {}", chance(&chances, bucket));
    }
}

#[test]
fn weights_stay_within_their_bounds_whatever_is_seen() {
    let mut chances = Chances::new();
    for at in 0..2000usize {
        let class = if at % 3 == 0 { WaitClass::LEFT } else { session(at as u32 % 40) };
        chances.observe((at % 5) as u16, &class, at * 7 % BUCKETS, at % 2 == 0, 1e6);
        chances.observe((at % 5) as u16, &class, at % BUCKETS, true, 1.0);
    }
    chances.check(1).expect("bounded");
    let finite = |bucket| chances.index(0, &session(3), bucket).is_finite();
    assert!((0..BUCKETS).all(finite));
}
