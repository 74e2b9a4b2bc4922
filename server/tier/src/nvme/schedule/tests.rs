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
