//! What is noted of extents: a start that knows the notes finds a tier as it was left.

use crate::support::*;
use turnkv_tier::nvme::{Recovered, SegmentNote};

const PAGE: u32 = 60_000;

fn seeds(recovered: &[Recovered]) -> Vec<(u64, bool)> {
    let seed = |extent: &Recovered| {
        extent.meta.hash.0[..8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    };
    let mut seeds: Vec<(u64, bool)> = recovered.iter().map(|extent| (seed(extent), extent.leaving)).collect();
    seeds.sort_unstable();
    seeds
}

#[test]
fn what_died_stays_dead_and_what_was_leaving_leaves_where_the_notes_are_kept() {
    everywhere(|bench| {
        for clean in [false, true] {
            let (tier, mut recovered, _) = bench.open();
            recovered.iter().for_each(|extent| tier.forget(extent.at, PAGE)); // of the round before
            recovered.clear();
            let places: Vec<_> = (1..=40).map(|seed| write(&tier, &bench, seed, PAGE).unwrap()).collect();
            for at in places[..20].iter().step_by(2) {
                tier.forget(*at, PAGE);
            }
            tier.forget_moved(places[20], PAGE);
            tier.note_leaving(places[21], true);
            tier.note_leaving(places[22], true);
            tier.note_leaving(places[22], false);
            tier.note_leaving(places[0], true); // it is dead
            let live = tier.usage().live_bytes;
            assert!(tier.notes_waiting() > 0);
            let notes = tier.take_notes(usize::MAX);
            assert_eq!(tier.notes_waiting(), 0, "each is handed out once");
            tier.notes_failed(&notes);
            assert_eq!(tier.take_notes(usize::MAX).len(), notes.len(), "unless it could not be kept");
            if clean {
                tier.shutdown().unwrap();
            }
            drop(tier);

            let (tier, mut recovered, _) = bench.open();
            let all = seeds(&recovered).len();
            assert!(all >= 40, "the segments tell of all: {all}");
            let gone = tier.recall(&notes, &mut recovered);
            assert_eq!(all as u64 - gone, recovered.len() as u64);
            let expected: Vec<(u64, bool)> =
                (1..=40).filter(|seed| *seed > 20 || seed % 2 == 0).map(|seed| (seed, seed == 22)).collect();
            assert_eq!(seeds(&recovered), expected, "what was moved may be what is left: it is not noted");
            let moved = u64::from(PAGE).next_multiple_of(4096) + 4096;
            assert_eq!(tier.usage().live_bytes, live + moved, "the tier knows, too");
            assert_eq!(tier.notes_waiting(), 0, "what was read back need not be saved");
            tier.note_all_again();
            assert!(tier.notes_waiting() > 0, "but can be");
            recovered.iter().for_each(|extent| tier.forget(extent.at, PAGE));
        }
    });
}

#[test]
fn notes_of_another_use_of_a_segment_or_of_none_are_harmless() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let at = write(&tier, &bench, 1, PAGE).unwrap();
        tier.forget(at, PAGE);
        let note = tier.take_notes(1).remove(0);
        write(&tier, &bench, 2, PAGE).unwrap();
        drop(tier);
        let (tier, mut recovered, _) = bench.open();
        let other = SegmentNote { nonce: [9; 16], dead: vec![0xFF; 4096], ..note.clone() };
        let nowhere = SegmentNote { segment: u16::MAX, dead: vec![0xFF; 4096], ..note.clone() };
        assert_eq!(tier.recall(&[other, nowhere], &mut recovered), 0);
        assert_eq!(seeds(&recovered), [(1, false), (2, false)]);
        let long = SegmentNote { dead: [note.dead.clone(), vec![0; 1 << 20], vec![0xFF]].concat(), ..note };
        assert_eq!(tier.recall(&[long], &mut recovered), 1);
        assert_eq!(seeds(&recovered), [(2, false)]);
        tier.take_notes(usize::MAX)
            .iter()
            .for_each(|note| assert!(note.dead.len() <= (SEGMENT / 4096) as usize / 8));
    });
}

#[test]
fn segments_take_turns_and_one_that_is_free_has_no_note() {
    everywhere(|bench| {
        let (tier, _, _) = bench.open();
        let places: Vec<_> = (1..=48).map(|seed| write(&tier, &bench, seed, PAGE).unwrap()).collect();
        let first: Vec<_> = places.iter().filter(|at| at.segment == places[0].segment).collect();
        let others = places.iter().filter(|at| at.segment != places[0].segment).step_by(4);
        others.for_each(|at| tier.forget(*at, PAGE));
        let waiting = tier.notes_waiting();
        assert!(waiting >= 2);
        let mut seen: Vec<u16> = (0..waiting).map(|_| tier.take_notes(1).remove(0).segment).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), waiting);
        eventually("its footer", || {
            first.iter().for_each(|at| tier.forget(**at, PAGE));
            tier.notes_waiting() == 0
        });
    });
}

#[test]
fn a_note_of_an_extent_that_was_lost_says_nothing_of_the_one_in_its_place() {
    everywhere(|bench| {
        for unread in [false, true] {
            let (tier, mut recovered, _) = bench.open();
            recovered.drain(..).for_each(|extent| tier.forget(extent.at, PAGE)); // of the round before
            write(&tier, &bench, 1, PAGE).unwrap();
            let lost = write(&tier, &bench, 2, PAGE).unwrap();
            tier.forget(lost, PAGE);
            let notes = tier.take_notes(usize::MAX);
            drop(tier);
            // As after power loss: what was not synced is gone, what was noted is not.
            let (path, offset) = segment_file(&bench, lost.segment);
            let at = offset + u64::from(lost.block) * 4096;
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &vec![0; PAGE as usize], at).unwrap();

            let (tier, mut recovered, _) = bench.open();
            if unread {
                tier.recall_nothing();
            } else {
                tier.recall(&notes, &mut recovered);
            }
            let instead = write(&tier, &bench, 3, PAGE).unwrap();
            assert_eq!((instead.segment, instead.block), (lost.segment, lost.block), "it is in its place");
            drop(tier);

            let (tier, mut recovered, _) = bench.open();
            tier.recall(&notes, &mut recovered);
            assert!(seeds(&recovered).contains(&(3, false)), "unread {unread}: {:?}", seeds(&recovered));
            recovered.drain(..).for_each(|extent| tier.forget(extent.at, PAGE));
        }
    });
}
