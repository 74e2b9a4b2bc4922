//! The curve by itself: ageing, bounds, hot pages, offloads that ask twice.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::{BlockHash, Curve, CurveTuning, MissRatioCurve, Seen, samples_share};
use crate::limits::{CURVE_SAMPLES_MAX, CURVE_SAMPLES_MIN, CURVE_SAMPLES_TOTAL_MAX};

const HALF_LIFE_MS: u64 = 16_000;

fn hash(number: u64) -> BlockHash {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    BlockHash(bytes)
}

fn curve(samples_max: u32, half_life_ms: u64) -> Curve {
    Curve::new(CurveTuning { samples_max, half_life_ms })
}

fn see(curve: &mut Curve, numbers: impl DoubleEndedIterator<Item = u64>, seen: Seen, now: u64) {
    curve.begin(now);
    numbers.rev().for_each(|number| curve.see(&hash(number), seen));
    curve.check().unwrap();
}

fn view(curve: &Curve) -> MissRatioCurve {
    curve.view(1, 16, 0)
}

#[test]
fn distances_are_those_of_the_begin_of_the_call() {
    let mut curve = curve(100, 0);
    see(&mut curve, 0..4, Seen::Stored(1), 0);
    see(&mut curve, 10..13, Seen::Stored(1), 0);
    see(&mut curve, 0..4, Seen::Found, 0); // three others, then heads before tails
    let view = view(&curve);
    assert_eq!((view.references, view.found), (11.0, 4.0));
    let hits = |pages: u64| (view.hit_ratio(pages) * view.references).round();
    assert_eq!([3, 4, 5, 6, 7, 100].map(hits), [0.0, 1.0, 2.0, 3.0, 4.0, 4.0]);
    assert_eq!((view.bytes_max(), view.hit_ratio_max()), (7, 4.0 / 11.0));
}

#[test]
fn the_sample_never_exceeds_its_bound_and_stands_for_all() {
    let mut curve = curve(256, 0);
    for round in 0..3 {
        for block in 0..200u64 {
            let seen = if round == 0 { Seen::Stored(1) } else { Seen::Found };
            see(&mut curve, block * 100..block * 100 + 100, seen, 0);
        }
    }
    let view = view(&curve);
    assert!(view.samples <= 256 && view.rate < 0.02, "{} at {}", view.samples, view.rate);
    assert_eq!((view.references, view.found), (60_000.0, 40_000.0));
    // Every page comes back when all 20,000 have been used.
    assert!(view.hit_ratio(10_000) < 0.01, "{}", view.hit_ratio(10_000));
    assert!((view.hit_ratio(30_000) - 2.0 / 3.0).abs() < 0.01, "{}", view.hit_ratio(30_000));
    assert!(curve.bytes() < 200 << 10, "{} bytes", curve.bytes());
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let mut curve = curve(CURVE_SAMPLES_MAX, 0);
    for block in 0..3_000u64 {
        see_quietly(&mut curve, block * 100..block * 100 + 100);
    }
    curve.check().unwrap();
    assert!(curve.bytes() < 600 << 10, "{} bytes", curve.bytes());
}

fn see_quietly(curve: &mut Curve, numbers: std::ops::Range<u64>) {
    curve.begin(0);
    numbers.rev().for_each(|number| curve.see(&hash(number), Seen::Stored(1)));
}

#[test]
fn what_is_old_counts_less_and_is_forgotten() {
    let mut curve = curve(1000, HALF_LIFE_MS);
    see(&mut curve, 0..100, Seen::Stored(1), 0);
    see(&mut curve, 200..201, Seen::Stored(1), HALF_LIFE_MS);
    let half = curve.view(1, 16, HALF_LIFE_MS);
    assert!((half.references - 51.0).abs() < 1e-6, "{}", half.references);
    assert!((half.window_ms - HALF_LIFE_MS as f64 / 2.0).abs() < 1e-6, "{}", half.window_ms);
    assert_eq!(half.samples, 101);
    see(&mut curve, 300..301, Seen::Stored(1), 5 * HALF_LIFE_MS);
    assert_eq!(curve.view(1, 16, 0).samples, 2, "pages not used for four half-lives are gone");
}

#[test]
fn a_working_set_that_shrinks_is_followed_whole_again() {
    let mut curve = curve(256, HALF_LIFE_MS);
    see(&mut curve, 0..20_000, Seen::Stored(1), 0);
    assert!(view(&curve).rate < 0.02);
    see(&mut curve, 0..10, Seen::Found, 6 * HALF_LIFE_MS);
    see(&mut curve, 0..10, Seen::Found, 6 * HALF_LIFE_MS);
    let view = view(&curve);
    assert_eq!((view.rate, view.samples), (1.0, 10));
}

#[test]
fn a_page_that_is_in_every_prompt_is_followed_whether_its_hash_is_sampled_or_not() {
    for shared in 0..20u64 {
        let mut curve = curve(64, 0);
        for turn in 0..2_000u64 {
            curve.begin(0);
            for page in (0..19).rev() {
                curve.see(&hash(1_000 + turn * 19 + page), Seen::Stored(1));
            }
            let seen = if turn == 0 { Seen::Stored(1) } else { Seen::Found };
            curve.see(&hash(shared), seen);
        }
        curve.check().unwrap();
        let view = view(&curve);
        assert_eq!(view.hot, 1, "page {shared} has a twentieth of all references");
        // It was hot after some hundred turns at the latest; from then on it is found by any size above one
        // turn's.
        assert!((view.hit_ratio(64) - 0.05).abs() < 0.015, "page {shared}: {}", view.hit_ratio(64));
    }
}

#[test]
fn a_page_that_is_hot_no_more_is_let_go() {
    let mut curve = curve(64, HALF_LIFE_MS);
    (0..2_000).for_each(|_| see(&mut curve, 0..1, Seen::Found, 0));
    assert_eq!(view(&curve).hot, 1);
    for turn in 0..2_000u64 {
        see(&mut curve, 1_000 + turn * 10..1_010 + turn * 10, Seen::Stored(1), turn * 100);
    }
    assert_eq!(view(&curve).hot, 0);
}

#[test]
fn asking_twice_for_a_slot_is_one_reference() {
    let mut curve = curve(100, 0);
    see(&mut curve, 0..5, Seen::Stored(1), 0);
    see(&mut curve, 10..15, Seen::Declined(2), 0);
    see(&mut curve, 10..15, Seen::Declined(2), 0);
    assert_eq!(view(&curve).references, 10.0);
    see(&mut curve, 10..15, Seen::Stored(2), 0);
    assert_eq!(view(&curve).references, 10.0, "granted in the end: still the same five");
    see(&mut curve, 10..15, Seen::Declined(3), 0);
    let view = view(&curve);
    assert_eq!((view.references, view.found), (15.0, 0.0), "another turn's are others");
    assert!((view.hit_ratio(5) - 5.0 / 15.0).abs() < 1e-9, "they would have been found, had there been room");
}

#[test]
fn what_was_used_without_the_pool_is_recent_and_no_reference() {
    let mut curve = curve(100, 0);
    see(&mut curve, 0..5, Seen::Stored(1), 0);
    see(&mut curve, 10..15, Seen::Stored(1), 0);
    see(&mut curve, 0..5, Seen::Recent, 0);
    see(&mut curve, 0..5, Seen::Found, 0);
    let view = view(&curve);
    assert_eq!(view.references, 15.0);
    assert!((view.hit_ratio(5) - 5.0 / 15.0).abs() < 1e-9);
}

#[test]
fn many_namespaces_share_what_may_be_followed() {
    assert_eq!(samples_share(1, CURVE_SAMPLES_MAX), CURVE_SAMPLES_MAX as usize);
    assert_eq!(samples_share(64, CURVE_SAMPLES_MAX), CURVE_SAMPLES_TOTAL_MAX / 64);
    assert_eq!(samples_share(65_000, CURVE_SAMPLES_MAX), CURVE_SAMPLES_MIN);
    assert_eq!(samples_share(1, 0), 0);
}
