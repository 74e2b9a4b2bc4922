//! The books against a plain model: nothing alive is overwritten, nothing read is reused, bytes add up.

use super::super::segment::{extent_bytes, first_use};
use super::*;
use crate::errno::ErrnoClass;
use crate::limits::{SHORT_RETRY, UNREADABLE_EXTENTS_MAX};
use proptest::prelude::*;
use std::collections::HashMap;
use turnkv_proto::{BlockHash, NamespaceId};

mod unlucky;

const BLOCKS: u32 = 64;
const SEGMENTS: u32 = 6;

fn meta(payload_bytes: u32) -> ExtentMeta {
    let (namespace, hash) = (NamespaceId([0; 32]), BlockHash([0; 32]));
    ExtentMeta {
        namespace,
        hash,
        parent: None,
        shard: 0,
        shards: 1,
        tail_tokens: 0,
        payload_bytes,
        checksum: 0,
    }
}

/// Does every chore at once, as a keeper on a good disk.
fn keep_house(log: &mut Log, now: Instant) {
    while let Some(chore) = log.next_chore(now) {
        match chore {
            Chore::Make { segment, file, .. } => {
                let file = file.unwrap_or_else(|| Arc::new(SegmentFile::fake()));
                log.made(segment, file, Nonce([segment as u8; 16]));
            }
            Chore::Blank { segment, .. } => log.blanked(segment),
            Chore::Seal { segment, .. } => log.sealed(segment),
            Chore::Sync => {
                let round = log.begin_sync();
                log.sync_ended(&round);
            }
            Chore::GiveBack { segment, .. } => log.given_back(segment),
        }
    }
}

fn write(log: &mut Log, bytes: u32) -> Option<Location> {
    match log.append(&meta(bytes), bytes, false) {
        Append::Placed(placed) => {
            log.written(placed.at, bytes, true);
            Some(placed.at)
        }
        Append::Wait | Append::Full => None,
    }
}

/// Fills a segment.
const BIG: u32 = 200_000;

fn make(log: &mut Log, now: Instant) {
    let Some(Chore::Make { segment, .. }) = log.next_chore(now) else { panic!("nothing to make") };
    log.made(segment, Arc::new(SegmentFile::fake()), Nonce([0; 16]));
}

/// The next segment to be made cannot be.
fn refuse(log: &mut Log, fault: ErrnoClass, now: Instant) {
    let Some(Chore::Make { segment, file: None, .. }) = log.next_chore(now) else {
        panic!("nothing to make")
    };
    log.make_failed(segment, fault, now);
}

/// A log whose disk was full after two segments, of which one is open and in use.
fn of_two_segments() -> (Log, Instant) {
    let mut log = Log::new(SEGMENTS, BLOCKS);
    let now = Instant::now();
    make(&mut log, now);
    make(&mut log, now);
    assert!(write(&mut log, BIG).is_some());
    refuse(&mut log, ErrnoClass::Full, now);
    (log, now)
}

#[test]
fn a_full_disk_makes_the_tier_smaller_until_it_has_space_again() {
    let (mut log, now) = of_two_segments();
    assert!(log.disk_full());
    assert_eq!((log.capacity_segments(), log.free_segments()), (2, 1));
    assert!(log.next_chore(now).is_none());
    assert!(matches!(log.append(&meta(BIG), BIG, false), Append::Full));
    let later = log.next_look().unwrap();
    keep_house(&mut log, later);
    assert!(!log.disk_full());
    assert_eq!(log.capacity_segments(), u64::from(SEGMENTS));
    assert!(write(&mut log, BIG).is_some());
    assert_eq!(log.next_look(), None);
}

#[test]
fn a_disk_without_space_is_asked_again_soon_and_then_more_rarely() {
    let mut log = Log::new(SEGMENTS, BLOCKS);
    let mut now = Instant::now();
    let mut rests = Vec::new();
    for _ in 0..6 {
        refuse(&mut log, ErrnoClass::Full, now);
        let next = log.next_look().unwrap();
        rests.push((next - now).as_secs());
        assert!(log.next_chore(next - Duration::from_millis(1)).is_none(), "not before");
        now = next;
    }
    assert_eq!(rests, [1, 2, 4, 8, 8, 8], "a disk that was full for a moment costs a second");
    make(&mut log, now);
    refuse(&mut log, ErrnoClass::Full, now);
    assert_eq!((log.next_look().unwrap() - now).as_secs(), 1, "it had space meanwhile");
}

#[test]
fn the_last_segment_with_space_is_for_what_moves() {
    let mut log = Log::new(SEGMENTS, BLOCKS);
    let now = Instant::now();
    make(&mut log, now);
    assert!(
        matches!(log.append(&meta(BIG), BIG, false), Append::Wait),
        "the disk may have space for another"
    );
    make(&mut log, now);
    assert!(write(&mut log, BIG).is_some());
    assert!(
        matches!(log.append(&meta(BIG), BIG, false), Append::Wait),
        "the other segments are not made yet"
    );
    refuse(&mut log, ErrnoClass::Full, now);
    assert!(matches!(log.append(&meta(BIG), BIG, false), Append::Full), "and never will be");
    assert!(matches!(log.append(&meta(BIG), BIG, true), Append::Placed(_)), "reclaim has where to move");
}

#[test]
fn what_is_left_of_the_last_segment_is_for_what_moves_too() {
    let (mut log, _) = of_two_segments();
    let small = BIG / 8;
    assert!(matches!(log.append(&meta(small), small, true), Append::Placed(_)), "the open one has room");
    while write(&mut log, small).is_some() {}
    assert_eq!(log.free_segments(), 1, "what comes leaves the last one alone");
    for _ in 0..3 {
        assert!(matches!(log.append(&meta(small), small, true), Append::Placed(_)));
        assert!(
            matches!(log.append(&meta(small), small, false), Append::Full),
            "also when a move has opened it"
        );
    }
    assert!(log.movable_bytes() >= small);
}

#[test]
fn what_the_system_is_short_of_is_waited_for_and_costs_no_capacity() {
    let mut log = Log::new(SEGMENTS, BLOCKS);
    let now = Instant::now();
    refuse(&mut log, ErrnoClass::Short, now);
    assert_eq!((log.disk_full(), log.capacity_segments()), (false, u64::from(SEGMENTS)));
    assert!(log.next_chore(now).is_none(), "not at once");
    assert!(matches!(log.append(&meta(BIG), BIG, false), Append::Wait), "a write waits");
    let later = log.next_look().unwrap();
    keep_house(&mut log, later);
    assert!(write(&mut log, BIG).is_some());
    log.fill_open();
    let Some(Chore::Seal { segment, .. }) = log.seal_chore() else { panic!() };
    log.seal_failed(segment, ErrnoClass::Short, later);
    assert!(log.closing_chore(later).is_none(), "closing does not wait for it");
    keep_house(&mut log, later + SHORT_RETRY);
    assert_eq!(log.claim(|sealed| sealed.age as f64), Some(segment), "it was sealed in the end");
}

#[test]
fn a_surplus_segment_is_read_and_emptied_and_takes_nothing() {
    let mut log = Log::new(4, BLOCKS);
    let now = Instant::now();
    for number in [1, 6] {
        let record = Record { meta: meta(4096), block: 1, sequence: u64::from(number), stored_bytes: 4096 };
        let found = Found::Extents { nonce: Nonce([1; 16]), records: vec![record], sealed: true };
        log.restore(number, Some(SegmentFile::fake()), found);
        log.restore_live(first_use(number, 1), 4096);
    }
    log.restore_sequence(10);
    keep_house(&mut log, now);
    assert_eq!((log.capacity_segments(), log.surplus_segments()), (4, 1));
    assert!(log.needs_reclaim());
    let at = first_use(6, 1);
    assert!(log.begin_read(at, 4096).is_some());
    assert_eq!(log.claim(SealedSegment::dead_bytes), Some(6), "the surplus goes first");
    assert!(log.release(6));
    assert_eq!(log.surplus_segments(), 1, "it is still read");
    log.read_ended(at);
    keep_house(&mut log, now);
    assert_eq!(
        (log.surplus_segments(), log.waiting_segments()),
        (1, 1),
        "what moved out of it is not synced"
    );
    let later = log.next_look().unwrap();
    keep_house(&mut log, later);
    assert_eq!(log.surplus_segments(), 0);
    while let Some(at) = write(&mut log, BIG) {
        assert!(at.segment < 4);
        keep_house(&mut log, now);
    }
}

#[test]
fn the_footer_waits_for_writes_and_lists_every_good_one() {
    let mut log = Log::new(SEGMENTS, BLOCKS);
    keep_house(&mut log, Instant::now());
    let Append::Placed(one) = log.append(&meta(4096), 4096, false) else { panic!() };
    let Append::Placed(two) = log.append(&meta(4096), 4096, false) else { panic!() };
    let Append::Placed(three) = log.append(&meta(4096), 4096, false) else { panic!() };
    log.fill_open();
    log.written(one.at, 4096, true);
    log.written(two.at, 4096, false);
    assert!(log.seal_chore().is_none());
    log.written(three.at, 4096, true);
    let round = log.begin_sync();
    log.forget(one.at, 4096);
    log.sync_ended(&round);
    let Some(Chore::Seal { records, .. }) = log.seal_chore() else { panic!() };
    assert_eq!(records, vec![one.record, three.record], "what died, too: its header is still there");
}

/// A log with every segment full, one extent in each.
fn full_log(now: Instant) -> (Log, Vec<Location>) {
    let mut log = Log::new(SEGMENTS, BLOCKS);
    keep_house(&mut log, now);
    let mut places = Vec::new();
    while let Some(at) = write(&mut log, BIG) {
        places.push(at);
        keep_house(&mut log, now);
    }
    (log, places)
}

/// The segments that the keeper would write to now, other than those that were never used.
fn rewritten(log: &mut Log, now: Instant) -> Vec<u32> {
    let mut segments = Vec::new();
    while let Some(chore) = log.next_chore(now) {
        match chore {
            Chore::Make { segment, .. } | Chore::Blank { segment, .. } => segments.push(segment),
            Chore::Seal { segment, .. } => log.sealed(segment),
            Chore::Sync => return segments,
            Chore::GiveBack { segment, .. } => log.given_back(segment),
        }
    }
    segments
}

#[test]
fn a_released_segment_is_not_written_before_what_was_written_until_then_is_synced() {
    let now = Instant::now();
    let (mut log, places) = full_log(now);
    let Append::Placed(moved) = log.append(&meta(BIG), BIG, true) else { panic!() };
    log.written(moved.at, BIG, true);
    let old = places[0];
    let claimed = log.claim(|sealed| sealed.age as f64).unwrap();
    assert_eq!(claimed, u32::from(old.segment));
    log.release(claimed);
    let Append::Full = log.append(&meta(BIG), BIG, false) else { panic!() };
    assert_eq!((rewritten(&mut log, now), log.waiting_segments()), (vec![], 1));
    let round = log.begin_sync();
    log.sync_ended(&round);
    assert_eq!((rewritten(&mut log, now), log.waiting_segments()), (vec![claimed], 0));
}

#[test]
fn a_sync_that_began_before_a_write_does_not_count_for_it() {
    let now = Instant::now();
    let (mut log, places) = full_log(now);
    let early = log.begin_sync();
    let Append::Placed(moved) = log.append(&meta(BIG), BIG, true) else { panic!() };
    log.written(moved.at, BIG, true);
    log.forget(places[0], BIG);
    log.sync_ended(&early);
    assert_eq!((rewritten(&mut log, now), log.waiting_segments()), (vec![], 1));
    let round = log.begin_sync();
    assert!(!round.files.is_empty(), "what changed since is still to be synced");
}

#[test]
fn released_segments_share_a_sync() {
    let now = Instant::now();
    let (mut log, places) = full_log(now);
    let syncs = |log: &mut Log| {
        let mut syncs = 0;
        while let Some(chore) = log.next_chore(now) {
            match chore {
                Chore::Make { segment, file, .. } => log.made(segment, file.unwrap(), Nonce([9; 16])),
                Chore::Blank { segment, .. } => log.blanked(segment),
                Chore::Seal { segment, .. } => log.sealed(segment),
                Chore::Sync => {
                    syncs += 1;
                    let round = log.begin_sync();
                    log.sync_ended(&round);
                }
                Chore::GiveBack { segment, .. } => log.given_back(segment),
            }
        }
        syncs
    };
    places.iter().take(4).for_each(|at| log.forget(*at, BIG));
    assert_eq!(syncs(&mut log), 1, "four segments, one sync");
    assert_eq!(log.waiting_segments(), 0);
}

#[test]
fn a_place_of_an_earlier_use_names_nothing() {
    let now = Instant::now();
    let (mut log, places) = full_log(now);
    let old = places[0];
    log.forget(old, BIG);
    keep_house(&mut log, now);
    let mut again = || {
        let Append::Placed(placed) = log.append(&meta(BIG), BIG, true) else { panic!() };
        log.written(placed.at, BIG, true);
        keep_house(&mut log, now);
        placed.at
    };
    let new = [again(), again()].into_iter().find(|at| at.segment == old.segment).unwrap();
    assert_eq!((new.segment, new.block), (old.segment, old.block));
    let live = log.live();
    log.forget(old, BIG);
    assert!(!log.unreadable(old, BIG));
    assert_eq!(log.live(), live, "a late forget kills nothing");
    assert!(log.begin_read(old, BIG).is_none(), "a late read reads nothing");
    assert!(log.begin_read(new, BIG).is_some());
}

#[test]
fn a_worn_segment_is_never_written_again_and_what_lives_in_it_is_read() {
    let now = Instant::now();
    let mut log = Log::new(SEGMENTS, BLOCKS);
    keep_house(&mut log, now);
    let places: Vec<Location> = (0..6).map(|_| write(&mut log, 4096).unwrap()).collect();
    let worn = u32::from(places[0].segment);
    for (number, at) in places.iter().take(UNREADABLE_EXTENTS_MAX as usize).enumerate() {
        let last = number as u32 + 1 == UNREADABLE_EXTENTS_MAX;
        assert_eq!(log.unreadable(*at, 4096), last);
        assert!(!log.unreadable(*at, 4096), "an extent counts once");
    }
    assert!(log.seal_chore().is_none(), "a worn segment has no footer");
    keep_house(&mut log, now);
    let next = write(&mut log, 4096).unwrap();
    assert_ne!(u32::from(next.segment), worn, "a worn segment takes no more");
    assert_eq!((log.worn_segments(), log.capacity_segments()), (1, u64::from(SEGMENTS)));
    for at in &places[4..] {
        assert!(log.begin_read(*at, 4096).is_some());
        log.read_ended(*at);
        log.forget(*at, 4096);
    }
    assert_eq!(log.capacity_segments(), u64::from(SEGMENTS) - 1);
    assert!(!rewritten(&mut log, now).contains(&worn));
}

#[test]
fn a_worn_segment_that_is_released_keeps_what_its_reclaim_did_not_see() {
    let now = Instant::now();
    let (mut log, places) = full_log(now);
    let claimed = log.claim(SealedSegment::dead_bytes).unwrap();
    log.wear(claimed);
    assert!(log.release(claimed));
    let at = places.iter().find(|at| u32::from(at.segment) == claimed).unwrap();
    assert!(log.begin_read(*at, BIG).is_some());
    assert_eq!(
        log.claim(SealedSegment::dead_bytes).filter(|next| *next == claimed),
        None,
        "it is not emptied again"
    );
}

proptest! {
    #[test]
    fn nothing_alive_is_overwritten_and_nothing_read_is_reused(
        steps in proptest::collection::vec((0u8..7, any::<proptest::sample::Index>(), 1u32..60_000), 1..400)
    ) {
        let mut log = Log::new(SEGMENTS, BLOCKS);
        let now = Instant::now();
        let mut alive: HashMap<Location, u32> = HashMap::new();
        let mut reading: Vec<(Location, u32)> = Vec::new();
        let overlap = |(a, a_bytes): (Location, u32), (b, b_bytes): (Location, u32)| {
            a.segment == b.segment
                && a.block < b.block + extent_blocks(b_bytes)
                && b.block < a.block + extent_blocks(a_bytes)
        };
        for (step, pick, bytes) in steps {
            let mut places: Vec<_> = alive.iter().map(|(at, bytes)| (*at, *bytes)).collect();
            places.sort();
            let chosen = (!places.is_empty()).then(|| places[pick.index(places.len())]);
            match (step, chosen) {
                (0..=2, _) => if let Some(at) = write(&mut log, bytes) {
                    for other in places.iter().chain(&reading) {
                        prop_assert!(!overlap((at, bytes), *other), "{at:?} lies on {other:?}");
                    }
                    prop_assert!(at.block >= 1 && at.block + extent_blocks(bytes) < BLOCKS);
                    alive.insert(at, bytes);
                },
                (3, Some((at, bytes))) => {
                    log.forget(at, bytes);
                    alive.remove(&at);
                    prop_assert!(log.begin_read(at, bytes).is_none());
                }
                (4, Some((at, bytes))) => {
                    prop_assert!(log.begin_read(at, bytes).is_some());
                    reading.push((at, bytes));
                }
                (5, _) if !reading.is_empty() => {
                    let (at, _) = reading.swap_remove(pick.index(reading.len()));
                    log.read_ended(at);
                }
                (6, _) => if let Some(segment) = log.claim(SealedSegment::dead_bytes) {
                    if bytes % 3 == 0 {
                        log.keep(segment);
                    } else {
                        prop_assert!(log.release(segment));
                        alive.retain(|at, _| u32::from(at.segment) != segment);
                    }
                },
                _ => {}
            }
            keep_house(&mut log, now);
            let bytes: u64 = alive.values().map(|bytes| extent_bytes(*bytes)).sum();
            prop_assert_eq!(log.live(), (bytes, alive.len() as u64));
            prop_assert!(log.used_segments() + log.free_segments() <= u64::from(SEGMENTS));
        }
        // Once everything is dead and nothing is read, all of it is free again, but for the open segment.
        reading.iter().for_each(|(at, _)| log.read_ended(*at));
        alive.iter().for_each(|(at, bytes)| log.forget(*at, *bytes));
        log.fill_open();
        keep_house(&mut log, now);
        prop_assert_eq!((log.free_segments(), log.live()), (u64::from(SEGMENTS), (0, 0)));
    }
}
