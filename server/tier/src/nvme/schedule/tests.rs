//! Order and bounds of the schedule.

use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Fake {
    read: bool,
    bytes: u64,
    number: usize,
}

impl Job for Fake {
    fn is_read(&self) -> bool {
        self.read
    }
    fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn fake(read: bool, bytes: u64, number: usize) -> Fake {
    Fake { read, bytes, number }
}

#[test]
fn reads_go_first_and_writes_are_not_starved() {
    let mut schedule = Schedule::new(1 << 30);
    schedule.push(fake(false, 10, 0));
    (0..100).for_each(|number| schedule.push(fake(true, 10, number)));
    let order: Vec<bool> = std::iter::from_fn(|| schedule.next()).map(|job| job.read).collect();
    let write = order.iter().position(|read| !read).unwrap();
    assert_eq!(write, READS_PER_WRITE as usize);
    assert_eq!(order.len(), 101);
}

/// Small reads that never end would take each byte that comes free before it is enough for a larger write.
#[test]
fn a_write_larger_than_each_read_is_not_starved_by_reads_that_always_wait() {
    for (write_bytes, write_in_flight) in [(40, false), (50, false), (90, false), (400, false), (20, true)] {
        let mut schedule = Schedule::new(100);
        let mut flying = VecDeque::new();
        if write_in_flight {
            // Another one has most of what writes may have: this one waits for it and for nothing else.
            schedule.push(fake(false, 40, 0));
            flying.extend(schedule.next());
        }
        (0..20).for_each(|number| schedule.push(fake(true, 10, 10 + number)));
        flying.extend(std::iter::from_fn(|| schedule.next()));
        schedule.push(fake(false, write_bytes, 1));
        let mut started_after = None;
        for reads in 0..200 {
            schedule.push(fake(true, 10, 100 + reads));
            while let Some(job) = schedule.next() {
                if !job.read {
                    started_after = started_after.or(Some(reads));
                }
                flying.push_back(job);
            }
            let ended = flying.pop_front().unwrap();
            schedule.ended(&ended);
        }
        let reads = started_after.unwrap_or_else(|| panic!("{write_bytes} bytes never start"));
        // As many as may go first, and those in flight then.
        assert!(reads <= READS_PER_WRITE as usize + 12, "{write_bytes} bytes waited for {reads} reads");
    }
}

#[test]
fn an_operation_above_the_bound_runs_alone() {
    let mut schedule = Schedule::new(100);
    schedule.push(fake(true, 1000, 0));
    schedule.push(fake(true, 1, 1));
    let large = schedule.next().unwrap();
    assert!(schedule.next().is_none());
    schedule.ended(&large);
    assert_eq!(schedule.next().unwrap().number, 1);
}

proptest! {
    #[test]
    fn bytes_and_operations_in_flight_are_bounded_and_order_is_kept(
        jobs in proptest::collection::vec((any::<bool>(), 1u64..300, any::<bool>()), 1..600)
    ) {
        let mut schedule = Schedule::new(500);
        let mut flying: VecDeque<Fake> = VecDeque::new();
        let mut started: Vec<Fake> = Vec::new();
        let count = jobs.len();
        for (number, (read, bytes, run)) in jobs.into_iter().enumerate() {
            schedule.push(fake(read, bytes, number));
            if run && let Some(job) = schedule.next() {
                started.push(job.clone());
                flying.push_back(job);
            }
            let bytes: u64 = flying.iter().map(|job| job.bytes).sum();
            prop_assert!(bytes <= 500 && flying.len() <= INFLIGHT_OPS_MAX);
            prop_assert_eq!(bytes, schedule.inflight_bytes());
            if number % 3 == 0 && let Some(job) = flying.pop_front() {
                schedule.ended(&job);
            }
        }
        // Whatever was held back starts once there is room: nothing is stuck.
        while started.len() < count {
            match schedule.next() {
                Some(job) => { started.push(job.clone()); flying.push_back(job); }
                None => schedule.ended(&flying.pop_front().unwrap()),
            }
        }
        prop_assert!(schedule.is_empty());
        for read in [true, false] {
            let numbers: Vec<_> = started.iter().filter(|job| job.read == read).map(|job| job.number).collect();
            prop_assert!(numbers.is_sorted());
        }
    }
}
