//! The books where everything comes late, out of order, or not at all: writes that fail, syncs under way, chores that the system was
//! short of something for, extents that cannot be read.

use super::*;
use crate::nvme::log::durable::Round;
use std::collections::BTreeMap;

/// What a plain onlooker knows of a log.
struct Onlooker {
    log: Log,
    now: Instant,
    alive: BTreeMap<Location, u32>,
    writing: Vec<(Location, u32)>,
    reading: Vec<(Location, u32)>,
    syncing: Vec<(Round, u64)>,
    /// Good writes and footers so far, and how many of these a sync has covered that ended.
    wrote: u64,
    synced: u64,
    /// Of segments that are released: what was written until then.
    released: BTreeMap<u32, u64>,
    worn: Vec<u32>,
    /// Extents of each segment that were written well since it was prepared.
    good: BTreeMap<u32, Vec<u32>>,
}

/// One of a list, by a number of chance; nothing of an empty one.
fn take<T>(list: &mut Vec<T>, pick: usize) -> Option<T> {
    (!list.is_empty()).then(|| list.swap_remove(pick % list.len()))
}

impl Onlooker {
    fn new() -> Onlooker {
        Onlooker {
            log: Log::new(SEGMENTS, BLOCKS),
            now: Instant::now(),
            alive: BTreeMap::new(),
            writing: Vec::new(),
            reading: Vec::new(),
            syncing: Vec::new(),
            wrote: 0,
            synced: 0,
            released: BTreeMap::new(),
            worn: Vec::new(),
            good: BTreeMap::new(),
        }
    }

    fn append(&mut self, bytes: u32, reserve: bool) {
        let Append::Placed(placed) = self.log.append(&meta(bytes), bytes, reserve) else { return };
        let (at, end) = (placed.at, placed.at.block + extent_blocks(bytes));
        let segment = u32::from(at.segment);
        assert!(!self.worn.contains(&segment), "nothing new is written to a worn segment");
        assert!(at.block >= 1 && end < BLOCKS, "{at:?} is within its segment");
        for (other, bytes) in
            self.alive.iter().map(|(at, bytes)| (*at, *bytes)).chain(self.writing.iter().copied())
        {
            let apart = other.block >= end || at.block >= other.block + extent_blocks(bytes);
            assert!(other.segment != at.segment || apart, "{at:?} lies on {other:?}");
        }
        assert!(
            !self
                .reading
                .iter()
                .any(|(other, _)| { other.segment == at.segment && other.generation != at.generation }),
            "a segment is not reused while it is read"
        );
        self.writing.push((at, bytes));
    }

    fn end_write(&mut self, pick: usize, good: bool) {
        let Some((at, bytes)) = take(&mut self.writing, pick) else { return };
        self.log.written(at, bytes, good);
        if good {
            self.wrote += 1;
            self.alive.insert(at, bytes);
            self.good.entry(at.segment.into()).or_default().push(at.block);
        }
    }

    fn kill(&mut self, at: Location, bytes: u32, unreadable: bool) {
        if unreadable {
            if self.log.unreadable(at, bytes) {
                self.worn.push(at.segment.into());
            }
        } else {
            self.log.forget(at, bytes);
        }
        self.alive.remove(&at);
        assert!(self.log.begin_read(at, bytes).is_none(), "{at:?} is dead");
        self.log.forget(at, bytes); // doubled: it changes nothing
    }

    fn reclaim(&mut self, keep: bool) {
        let Some(segment) = self.log.claim(SealedSegment::dead_bytes) else { return };
        if keep {
            self.log.keep(segment);
            assert!(!self.log.release(segment), "what is kept is not claimed any more");
            return;
        }
        assert!(self.log.release(segment) && !self.log.release(segment));
        if !self.worn.contains(&segment) {
            self.alive.retain(|at, _| u32::from(at.segment) != segment);
        }
    }

    /// The keeper's next chore, done or put back.
    fn chore(&mut self, fault: Option<ErrnoClass>) -> bool {
        let Some(chore) = self.log.next_chore(self.now) else { return false };
        let (log, now) = (&mut self.log, self.now);
        let reused = match &chore {
            Chore::Make { segment, file: Some(_), .. }
            | Chore::Blank { segment, .. }
            | Chore::GiveBack { segment, .. } => Some(*segment),
            _ => None,
        };
        if let Some(segment) = reused {
            assert!(!self.worn.contains(&segment), "a worn segment is not written again");
            let until = self.released.get(&segment).copied().unwrap_or(0);
            assert!(self.synced >= until, "what replaced segment {segment}'s extents is not synced");
        }
        match (chore, fault) {
            (Chore::Make { segment, .. }, Some(fault)) => log.make_failed(segment, fault, now),
            (Chore::Blank { segment, .. }, Some(fault)) => log.blank_failed(segment, fault, now),
            (Chore::Seal { segment, .. }, Some(fault)) => log.seal_failed(segment, fault, now),
            (Chore::GiveBack { segment, .. }, Some(fault)) => log.give_back_failed(segment, fault, now),
            (Chore::Make { segment, file, .. }, None) => {
                let file = file.unwrap_or_else(|| Arc::new(SegmentFile::fake()));
                self.good.remove(&segment);
                log.made(segment, file, Nonce([1; 16]));
            }
            (Chore::Blank { segment, .. }, None) => log.blanked(segment),
            (Chore::GiveBack { segment, .. }, None) => log.given_back(segment),
            (Chore::Seal { segment, records, .. }, None) => {
                assert!(!self.worn.contains(&segment), "a worn segment has no footer");
                assert!(!self.writing.iter().any(|(at, _)| u32::from(at.segment) == segment));
                let listed: Vec<u32> = records.iter().map(|record| record.block).collect();
                let mut good = self.good.get(&segment).cloned().unwrap_or_default();
                good.sort_unstable();
                assert_eq!(listed, good, "the footer of segment {segment} lists what was written well");
                log.sealed(segment);
                self.wrote += 1;
            }
            (Chore::Sync, _) => self.begin_sync(),
        }
        true
    }

    fn begin_sync(&mut self) {
        self.syncing.push((self.log.begin_sync(), self.wrote));
    }

    fn end_sync(&mut self, pick: usize) {
        if let Some((round, wrote)) = take(&mut self.syncing, pick) {
            self.log.sync_ended(&round);
            self.synced = self.synced.max(wrote);
        }
    }

    /// After each step: what is released was so from here on, and the books add up.
    fn check(&mut self) {
        for number in 0..SEGMENTS {
            match self.log.segment(number).state {
                SegmentState::Leaving | SegmentState::Vacant => {
                    self.released.entry(number).or_insert(self.wrote);
                }
                SegmentState::Making | SegmentState::Blanking | SegmentState::Blank => {}
                _ => drop(self.released.remove(&number)),
            }
        }
        let bytes: u64 = self.alive.values().map(|bytes| extent_bytes(*bytes)).sum();
        assert_eq!(self.log.live(), (bytes, self.alive.len() as u64));
        assert!(self.log.used_segments() + self.log.free_segments() <= u64::from(SEGMENTS));
        assert_eq!(self.log.worn_segments(), self.worn.len() as u64);
    }

    /// All ends well from here on: whatever was in flight ends, and the system has all that it was short of.
    fn settle(&mut self) {
        while !self.writing.is_empty() {
            self.end_write(0, true);
        }
        while let Some((at, _)) = self.reading.pop() {
            self.log.read_ended(at);
        }
        for (at, bytes) in std::mem::take(&mut self.alive) {
            self.log.forget(at, bytes);
        }
        self.check();
        self.log.fill_open();
        for _ in 0..100 {
            while self.chore(None) {
                self.end_sync(0);
                self.check();
            }
            self.now = self.log.next_look().unwrap_or(self.now).max(self.now);
        }
    }
}

type Step = (u8, usize, u32);

fn play(looker: &mut Onlooker, (step, pick, bytes): Step) {
    let chosen = looker.alive.iter().nth(pick % looker.alive.len().max(1)).map(|(at, bytes)| (*at, *bytes));
    let faults = [ErrnoClass::Full, ErrnoClass::Short, ErrnoClass::Interrupted];
    match (step, chosen) {
        (0..=3, _) => looker.append(bytes, pick.is_multiple_of(8)),
        (4..=6, _) => looker.end_write(pick, !pick.is_multiple_of(5)),
        (7, Some((at, bytes))) => looker.kill(at, bytes, pick.is_multiple_of(3)),
        (8, Some((at, bytes))) => {
            assert!(looker.log.begin_read(at, bytes).is_some(), "{at:?} is alive");
            looker.reading.push((at, bytes));
        }
        (9, _) => {
            if let Some((at, _)) = take(&mut looker.reading, pick) {
                looker.log.read_ended(at);
            }
        }
        (10, _) => looker.reclaim(pick.is_multiple_of(4)),
        (11..=14, _) => drop(looker.chore(None)),
        (15, _) => drop(looker.chore(Some(faults[pick % faults.len()]))),
        (16, _) => looker.begin_sync(),
        (17, _) => looker.end_sync(pick),
        (18, _) => looker.now = looker.log.next_look().unwrap_or(looker.now).max(looker.now),
        _ => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn nothing_is_lost_or_written_over_however_late_and_badly_everything_ends(
        steps in proptest::collection::vec((0u8..19, 0usize..1000, 1u32..60_000), 1..500)
    ) {
        let mut looker = Onlooker::new();
        for step in steps {
            play(&mut looker, step);
            looker.check();
        }
        looker.settle();
        // All of it is free again but for what is worn, and a disk that was full was asked again.
        let worn = looker.worn.len() as u64;
        prop_assert_eq!((looker.log.live(), looker.log.used_segments()), ((0, 0), 0));
        prop_assert_eq!(looker.log.free_segments(), u64::from(SEGMENTS) - worn);
        prop_assert_eq!(looker.log.capacity_segments(), u64::from(SEGMENTS) - worn);
        prop_assert!(!looker.log.has_full() && looker.log.waiting_segments() == 0);
    }
}
