//! The books against a plain model: nothing alive is overwritten, nothing read is reused, bytes add up.

use super::super::errno::Fault;
use super::super::segment::extent_bytes;
use super::*;
use crate::limits::SHORT_RETRY;
use proptest::prelude::*;
use std::collections::HashMap;
use turnkv_proto::{BlockHash, NamespaceId};

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
            Chore::Retire { segment, .. } => log.retired(segment),
        }
    }
}

fn write(log: &mut Log, bytes: u32) -> Option<Location> {
    match log.append(&meta(bytes), false) {
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
fn refuse(log: &mut Log, fault: Fault, now: Instant) {
    let Some(Chore::Make { segment, file: None, .. }) = log.next_chore(now) else {
        panic!("nothing to make")
    };
    log.make_failed(segment, fault, now);
}

#[test]
fn a_full_disk_makes_the_tier_smaller_until_it_has_space_again() {
    let mut log = Log::new(SEGMENTS, BLOCKS);
    let now = Instant::now();
    make(&mut log, now);
    make(&mut log, now);
    assert!(write(&mut log, BIG).is_some());
    refuse(&mut log, Fault::Full, now);
    assert!(log.disk_full());
    assert_eq!((log.capacity_segments(), log.free_segments()), (2, 1));
    assert!(log.next_chore(now).is_none());
    assert!(matches!(log.append(&meta(BIG), false), Append::Full));
    let later = log.next_look().unwrap();
    keep_house(&mut log, later);
    assert!(!log.disk_full());
    assert_eq!(log.capacity_segments(), u64::from(SEGMENTS));
    assert!(write(&mut log, BIG).is_some());
    assert_eq!(log.next_look(), None);
}

#[test]
fn the_last_segment_with_space_is_for_what_moves() {
    let mut log = Log::new(SEGMENTS, BLOCKS);
    let now = Instant::now();
    make(&mut log, now);
    assert!(matches!(log.append(&meta(BIG), false), Append::Wait), "the disk may have space for another");
    make(&mut log, now);
    assert!(write(&mut log, BIG).is_some());
    assert!(matches!(log.append(&meta(BIG), false), Append::Wait), "the other segments are not made yet");
    refuse(&mut log, Fault::Full, now);
    assert!(matches!(log.append(&meta(BIG), false), Append::Full), "and never will be");
    assert!(matches!(log.append(&meta(BIG), true), Append::Placed(_)), "reclaim has where to move");
}

#[test]
fn what_the_system_is_short_of_is_waited_for_and_costs_no_capacity() {
    let mut log = Log::new(SEGMENTS, BLOCKS);
    let now = Instant::now();
    refuse(&mut log, Fault::Short, now);
    assert_eq!((log.disk_full(), log.capacity_segments()), (false, u64::from(SEGMENTS)));
    assert!(log.next_chore(now).is_none(), "not at once");
    assert!(matches!(log.append(&meta(BIG), false), Append::Wait), "a write waits");
    let later = log.next_look().unwrap();
    keep_house(&mut log, later);
    assert!(write(&mut log, BIG).is_some());
    log.fill_open();
    let Some(Chore::Seal { segment, .. }) = log.seal_chore() else { panic!() };
    log.seal_failed(segment, Fault::Short, later);
    assert!(log.closing_chore(later).is_none(), "closing does not wait for it");
    keep_house(&mut log, later + SHORT_RETRY);
    assert_eq!(log.claim(|_| 0), Some(segment), "it was sealed in the end");
}

#[test]
fn a_surplus_segment_is_read_and_emptied_and_takes_nothing() {
    let mut log = Log::new(4, BLOCKS);
    let now = Instant::now();
    for number in [1, 6] {
        let record = Record { meta: meta(4096), block: 1, sequence: u64::from(number) };
        let found = Found::Extents { nonce: Nonce([1; 16]), records: vec![record], sealed: true };
        log.restore(number, SegmentFile::fake(), found);
        log.restore_live(Location { segment: number, block: 1 }, 4096);
    }
    log.restore_sequence(10);
    keep_house(&mut log, now);
    assert_eq!((log.capacity_segments(), log.surplus_segments()), (4, 1));
    assert!(log.needs_reclaim());
    let at = Location { segment: 6, block: 1 };
    assert!(log.begin_read(at, 4096).is_some());
    assert_eq!(log.claim(|_| u64::MAX), Some(6), "the surplus goes first");
    assert!(log.release(6));
    assert_eq!(log.surplus_segments(), 1, "it is still read");
    log.read_ended(6);
    keep_house(&mut log, now);
    assert_eq!(log.surplus_segments(), 0);
    while let Some(at) = write(&mut log, BIG) {
        assert!(at.segment < 4);
        keep_house(&mut log, now);
    }
}

#[test]
fn the_footer_waits_for_writes_and_lists_only_what_lives() {
    let mut log = Log::new(SEGMENTS, BLOCKS);
    keep_house(&mut log, Instant::now());
    let Append::Placed(one) = log.append(&meta(4096), false) else { panic!() };
    let Append::Placed(two) = log.append(&meta(4096), false) else { panic!() };
    let Append::Placed(three) = log.append(&meta(4096), false) else { panic!() };
    log.fill_open();
    log.written(one.at, 4096, true);
    log.written(two.at, 4096, false);
    assert!(log.seal_chore().is_none());
    log.written(three.at, 4096, true);
    log.forget(one.at, 4096);
    let Some(Chore::Seal { records, .. }) = log.seal_chore() else { panic!() };
    assert_eq!(records, vec![three.record]);
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
                    log.read_ended(at.segment);
                }
                (6, _) => if let Some(segment) = log.claim(|_| u64::MAX) {
                    if bytes % 3 == 0 {
                        log.keep(segment);
                    } else {
                        prop_assert!(log.release(segment));
                        alive.retain(|at, _| at.segment != segment);
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
        reading.iter().for_each(|(at, _)| log.read_ended(at.segment));
        alive.iter().for_each(|(at, bytes)| log.forget(*at, *bytes));
        log.fill_open();
        keep_house(&mut log, now);
        prop_assert_eq!((log.free_segments(), log.live()), (u64::from(SEGMENTS), (0, 0)));
    }
}
