//! Operations that are cut into parts which land in any order, well or not: each ends once, when its last part is over, with all of
//! its bytes moved once or with the cause that says most.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::fabric::completion::CompletionQueue;
use crate::fabric::conformance::region;
use crate::fabric::operation::{Completed, Op, Operation, RegionKey, RemoteSpan};
use crate::region::Region;

const PART: u32 = 1000;
const PARTS: usize = 5;
const SLAB: usize = 16_384;
const KEY: RegionKey = RegionKey { key: 9, base: 1 << 40, bytes: 1 << 20 };

/// A part that the pair has.
struct Given {
    token: u32,
    op: u64,
    remote: u64,
    bytes: u32,
}

/// What must become of an operation.
#[derive(Default)]
struct Wanted {
    bytes: u32,
    /// By offset: parts that landed well.
    moved: BTreeMap<u64, u32>,
    over: u32,
    fault: Option<Cause>,
}

struct Stage {
    flights: Flights<()>,
    queue: Arc<CompletionQueue>,
    slab: Arc<Region>,
    given: Vec<Given>,
    wanted: BTreeMap<u64, Wanted>,
    began: u64,
}

impl Stage {
    fn new() -> Stage {
        Stage {
            flights: Flights::new(PARTS, PART),
            queue: CompletionQueue::new(64),
            slab: region(SLAB),
            given: Vec::new(),
            wanted: BTreeMap::new(),
            began: 0,
        }
    }

    /// Each operation has a place of its own in the target's memory, by which its parts are told apart.
    fn begin(&mut self, bytes: u32) {
        if !self.flights.has_room() {
            return;
        }
        let op = self.began % 60;
        if self.wanted.contains_key(&op) {
            return;
        }
        self.began += 1;
        let remote = RemoteSpan::new(KEY, op * SLAB as u64, bytes).unwrap();
        let slot = self.slab.slot(0, bytes as usize).unwrap();
        let operation = Operation::read(remote, slot, Op(op)).unwrap();
        self.flights.begin(self.queue.admit(operation).unwrap(), Local::of((), &self.slab));
        self.wanted.insert(op, Wanted { bytes, ..Wanted::default() });
    }

    fn give(&mut self, room: usize) {
        let batch = self.flights.batch();
        let taken = batch.len().min(room);
        for part in &batch[..taken] {
            let from = part.remote - KEY.base;
            let (op, remote) = (from / SLAB as u64, from % SLAB as u64);
            let at = part.local.as_ptr().addr() - self.slab.as_ptr().addr();
            assert_eq!(at as u64, remote, "a part's two places are as far from the operation's");
            assert!(part.bytes > 0 && part.bytes <= PART && part.key == KEY.key);
            assert!(self.given.iter().all(|other| other.token != part.token), "tokens tell parts apart");
            self.given.push(Given { token: part.token, op, remote, bytes: part.bytes });
        }
        self.flights.taken(taken);
        assert!(self.given.len() <= PARTS && self.flights.given() == self.given.len());
    }

    fn land(&mut self, pick: usize, fault: Option<Cause>) {
        if self.given.is_empty() {
            return;
        }
        let part = self.given.swap_remove(pick % self.given.len());
        let outcome = fault.clone().map_or(Ok(()), Err);
        let finished = self.flights.landed(LandedPart { token: part.token, outcome });
        // Told again, by a library that is mistaken: unless the token is a part's that the pair has by now, nothing happens.
        let given = self.given.len();
        for token in [part.token, u32::MAX] {
            assert!(self.flights.landed(LandedPart { token, outcome: Ok(()) }).is_none());
        }
        drop(self.flights.batch()); // the token may be that of a part that waits
        assert!(self.flights.landed(LandedPart { token: part.token, outcome: Ok(()) }).is_none());
        assert_eq!(self.flights.given(), given, "of those that the pair has none landed");
        let wanted = self.wanted.get_mut(&part.op).unwrap();
        wanted.over += part.bytes;
        match fault {
            None => assert!(wanted.moved.insert(part.remote, part.bytes).is_none(), "moved once"),
            // That it was cancelled says less than why.
            Some(cause) if wanted.fault.as_ref().is_none_or(|fault| *fault == Cause::Cancelled) => {
                wanted.fault = Some(cause)
            }
            Some(_) => {}
        }
        assert_eq!(finished.is_some(), wanted.over == wanted.bytes, "it ends with its last part");
        if let Some(finished) = finished {
            assert_eq!(finished.bytes(), wanted.bytes);
            finished.complete();
        }
        self.collect(None);
    }

    /// Compares what was told with what must be.
    fn collect(&mut self, ended: Option<&Cause>) {
        let mut told = Vec::new();
        self.queue.poll(&mut told, Duration::ZERO);
        for Completed { op, outcome } in told {
            let wanted = self.wanted.remove(&op.0).expect("an operation ends once");
            let cause = match (wanted.fault, ended) {
                (None | Some(Cause::Cancelled), Some(ended)) => Some(ended.clone()),
                (fault, _) => fault,
            };
            assert_eq!(outcome, cause.map_or(Outcome::Done, Outcome::Failed));
            if outcome == Outcome::Done {
                let end = wanted.moved.iter().fold(0, |end, (at, bytes)| {
                    assert_eq!(*at, end, "no byte is left out, none comes twice");
                    end + u64::from(*bytes)
                });
                assert_eq!(end, u64::from(wanted.bytes));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_operation_ends_once_whatever_lands_and_whenever_the_pair_ends(
        steps in proptest::collection::vec((0u8..10, any::<usize>(), 1u32..SLAB as u32), 1..300), ends in any::<bool>()
    ) {
        let mut stage = Stage::new();
        for (step, pick, bytes) in steps {
            match step {
                0..=2 => stage.begin(bytes),
                3..=5 => stage.give(bytes as usize % 4),
                6 => stage.land(pick, Some([Cause::PeerGone, Cause::Cancelled, Cause::Stalled][bytes as usize % 3].clone())),
                _ => stage.land(pick, None),
            }
        }
        if ends {
            let under_way = stage.wanted.len();
            let ended = stage.flights.end(&Cause::Refused);
            prop_assert_eq!(ended.len(), under_way);
            ended.into_iter().for_each(Finished::complete);
            stage.collect(Some(&Cause::Refused));
        } else {
            while !stage.wanted.is_empty() {
                stage.give(PARTS);
                stage.land(0, None);
            }
        }
        prop_assert!(stage.wanted.is_empty() && stage.flights.is_empty() && stage.flights.given() == 0);
        prop_assert!(stage.flights.has_room() && stage.queue.admitted() == 0);
        prop_assert_eq!(Arc::strong_count(&stage.slab), 1, "nothing holds the slab");
    }
}
