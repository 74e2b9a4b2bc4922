//! Tests of the search, against the plain prefix length.

use super::*;
use proptest::prelude::*;

/// Searches a pool that holds `present` of `total` pages; the rounds it took.
fn run(total: usize, present: usize) -> (usize, usize) {
    let mut search = Search::new(total);
    let mut rounds = 0;
    while !search.is_settled() {
        let sample = search.sample();
        assert!(!sample.is_empty() && sample.len() <= LOOKUP_SAMPLE_MAX);
        assert!(sample.is_sorted_by(|a, b| a < b), "ascending, none twice");
        assert!(sample[0] > search.known && *sample.last().unwrap() <= search.possible);
        let answer = sample.iter().take_while(|count| **count <= present).count();
        search.narrow(&sample, answer).unwrap();
        rounds += 1;
    }
    (search.known, rounds)
}

#[test]
fn two_rounds_settle_8900_hashes() {
    for present in 0..=8900 {
        let (found, rounds) = run(8900, present);
        assert_eq!(found, present);
        assert!(rounds <= 2, "{rounds} rounds for {present} of 8900");
    }
}

#[test]
fn small_prompts_take_one_round() {
    for total in 1..=LOOKUP_SAMPLE_MAX {
        for present in 0..=total {
            assert_eq!(run(total, present), (present, 1));
        }
    }
    assert_eq!(run(0, 0), (0, 0), "nothing to ask");
}

#[test]
fn signposts_are_multiples_of_64_and_no_more_than_one_round_asks_about() {
    for total in [0, 63, 64, 96, 200, 6_144, 6_208, 8_900, 65_536] {
        for known in [0, 1, 63, 64, total / 2, total] {
            let posts = Search { known: known.min(total), possible: total }.posts();
            assert!(posts.len() <= LOOKUP_SAMPLE_MAX && posts.is_sorted_by(|a, b| a < b));
            assert!(posts.iter().all(|post| post % 64 == 0 && *post > known.min(total) && *post <= total));
            assert_eq!(posts.is_empty(), total / 64 == known.min(total) / 64, "{known} of {total}");
        }
    }
    let posts = Search { known: 700, possible: 900 }.posts();
    assert_eq!(posts, [704, 768, 832, 896]);
}

#[test]
fn an_absurd_answer_is_refused() {
    let mut search = Search::new(10);
    let sample = search.sample();
    assert!(search.narrow(&sample, 11).is_err());
}

proptest! {
    #[test]
    fn finds_the_prefix_length(total in 0..200_000usize, share in 0.0..=1.0f64) {
        let present = (total as f64 * share) as usize;
        let (found, rounds) = run(total, present);
        prop_assert_eq!(found, present);
        prop_assert!(rounds <= 3);
    }

    #[test]
    fn pages_evicted_between_rounds_end_the_search_all_the_same(total in 1..20_000usize, answers in prop::collection::vec(0..200usize, 0..8)) {
        let mut search = Search::new(total);
        for answer in answers {
            if search.is_settled() { break; }
            let sample = search.sample();
            search.narrow(&sample, answer.min(sample.len())).unwrap();
            prop_assert!(search.known <= search.possible && search.possible <= total);
        }
    }
}
