//! The router's tables against plain lists: what they remember, in which order they forget.

use super::*;
use std::collections::BTreeSet;

/// Numbers that follow from a seed (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (word ^ (word >> 27)) % end
    }
}

/// A table by name, with every value ever put, in order, and what was taken out.
struct PlainRecent(Vec<(u64, Option<u64>)>);

impl PlainRecent {
    fn latest(&self, key: u64) -> Option<u64> {
        self.0.iter().rev().find(|(other, _)| *other == key).and_then(|(_, value)| *value)
    }

    /// Names put last, the latest first, each once.
    fn last_put(&self, most: usize) -> BTreeSet<u64> {
        let mut names = BTreeSet::new();
        for (key, value) in self.0.iter().rev() {
            if names.len() == most {
                break;
            }
            names.extend(value.map(|_| *key));
        }
        names
    }
}

#[test]
fn a_table_is_never_over_its_bound_and_has_the_latest_of_what_was_put_last() {
    const MAX: usize = 16;
    for seed in 0..12 {
        let (mut dice, mut table, mut plain) = (Dice(seed), Recent::default(), PlainRecent(Vec::new()));
        for value in 0..300 {
            let key = dice.below(5 + 3 * seed);
            if dice.below(6) == 0 {
                let (before, taken) = (table.get(&key).copied(), table.remove(&key));
                assert_eq!(taken, before, "what is taken out is what was found");
                plain.0.push((key, None));
            } else {
                table.put(key, value, MAX);
                plain.0.push((key, Some(value)));
            }
            assert!(table.len() <= MAX, "{} of {MAX}", table.len());
            let found = (0..5 + 3 * seed).filter(|key| table.get(key).is_some()).count();
            assert_eq!(table.len(), found, "each name counts once");
            for key in 0..5 + 3 * seed {
                let (found, latest) = (table.get(&key).copied(), plain.latest(key));
                assert!(found.is_none() || found == latest, "{key}: {found:?}, put last: {latest:?}");
                let kept = plain.last_put(MAX / 2).contains(&key) && latest.is_some();
                assert!(!kept || found.is_some(), "{key} was put lately and is forgotten");
            }
        }
    }
}

#[test]
fn a_page_remembers_the_engines_that_ran_it_last_each_with_its_latest_clock() {
    let (mut dice, mut holders, mut plain) = (Dice(7), Holders::default(), Vec::<(u32, u64)>::new());
    for clock in 0..2_000 {
        let id = dice.below(HOLDERS_MAX as u64 + 3) as u32;
        holders.put(id, clock);
        plain.retain(|(other, _)| *other != id);
        plain.insert(0, (id, clock));
        plain.truncate(HOLDERS_MAX);
        for id in 0..HOLDERS_MAX as u32 + 3 {
            let known = plain.iter().find(|(other, _)| *other == id).map(|(_, clock)| *clock);
            assert_eq!(holders.clock_of(id), known, "engine {id} after {clock}");
        }
    }
}

#[test]
fn marks_are_on_the_first_the_last_and_never_further_apart_than_said() {
    assert_eq!(marked(0).count(), 0);
    for pages in 1..200 {
        let marks: Vec<usize> = marked(pages).collect();
        assert_eq!((marks[0], marks.last().copied()), (0, Some(pages - 1)), "{pages} pages");
        let gaps: Vec<usize> = marks.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| (1..=MARK_EVERY).contains(gap)), "{pages} pages: {marks:?}");
        assert!(marks.len() <= pages.div_ceil(MARK_EVERY) + 2, "{pages} pages: {} marks", marks.len());
    }
}

#[test]
fn what_is_left_of_a_time_halves_and_never_grows_when_a_clock_goes_back() {
    assert_eq!(decay(5, 5), 1.0);
    assert_eq!(decay(9_000, 5), 1.0, "a later moment than now is now");
    assert_eq!(decay(0, 3 * HALF_LIFE_MS), 0.125);
    assert_eq!(decay(0, u64::MAX), 0.0);
    let mut engine =
        Engine { name: String::new(), clock: 0, capacity_pages: 9, resident: 64.0, decayed: 0, seen: 0 };
    for now in [2 * HALF_LIFE_MS, HALF_LIFE_MS, 2 * HALF_LIFE_MS, 0] {
        engine.decay(now);
        assert_eq!(engine.resident, 16.0, "at {now}: no time counts twice");
    }
}
