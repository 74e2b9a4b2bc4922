//! Ghosts against a plain list: what was remembered last is, and each note comes back once.

use super::*;
use proptest::prelude::*;

fn hash(name: u8) -> BlockHash {
    BlockHash([name; 32])
}

proptest! {
    #[test]
    fn the_latest_are_remembered_no_more_than_said_and_every_note_comes_back_once(
        max in 1usize..8,
        ops in prop::collection::vec((any::<bool>(), 0u8..14), 1..200),
    ) {
        let mut ghosts = Ghosts::default();
        // Notes that are remembered by their page, in the order in which they came; and all that came back.
        let (mut plain, mut back): (Vec<(u8, usize)>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut made = 0;
        for (inserts, name) in ops {
            if inserts {
                let lost = ghosts.insert(&hash(name), made, max);
                for note in &lost {
                    prop_assert!(plain.iter().any(|(_, known)| known == note), "note {} was there", note);
                    plain.retain(|(_, known)| known != note);
                }
                back.extend(lost);
                plain.push((name, made));
                made += 1;
            } else {
                let known = plain.iter().position(|(other, _)| *other == name);
                let taken = ghosts.take(&hash(name));
                prop_assert_eq!(taken, known.map(|at| plain.remove(at).1));
                back.extend(taken);
            }
            prop_assert_eq!(ghosts.len(), plain.len());
            prop_assert!(plain.len() <= max && ghosts.order.len() <= 2 * max);
            // Of the last so many that came, none was forgotten but by coming again or being taken.
            let lately = back.iter().filter(|note| **note + max >= made).count();
            let there = plain.iter().filter(|(_, note)| *note + max >= made).count();
            prop_assert_eq!(lately + there, made.min(max));
        }
        let mut all = back;
        all.extend(plain.iter().map(|(_, note)| *note));
        all.sort_unstable();
        prop_assert_eq!(all, (0..made).collect::<Vec<_>>());
    }
}

#[test]
fn the_oldest_goes_first_and_a_page_that_comes_again_is_the_newest() {
    let mut ghosts = Ghosts::default();
    for (name, note) in [(1, 'a'), (2, 'b'), (3, 'c')] {
        assert!(ghosts.insert(&hash(name), note, 3).is_empty());
    }
    assert_eq!(ghosts.insert(&hash(1), 'd', 3), ['a'], "its older note");
    assert_eq!(ghosts.insert(&hash(4), 'e', 3), ['b'], "the oldest by now");
    assert_eq!(ghosts.insert(&hash(5), 'f', 2), ['c', 'd'], "with less room more go at once");
    assert_eq!([1, 4, 5].map(|name| ghosts.take(&hash(name))), [None, Some('e'), Some('f')]);
    assert!(ghosts.insert(&hash(6), 'g', 0).contains(&'g'), "with no room it is forgotten at once");
}
