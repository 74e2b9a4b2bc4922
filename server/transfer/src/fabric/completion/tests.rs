//! Tests of the completion queue.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::fabric::operation::{RegionKey, RemoteSpan};
use crate::region::{HugePages, Region, RegionOptions};

fn region() -> Arc<Region> {
    let options = RegionOptions {
        bytes: 4096,
        huge_pages: HugePages::Off,
        touch: false,
        lock: false,
        name: "turnkv-test".to_owned(),
    };
    Region::create(&options).unwrap().0
}

fn read(region: &Arc<Region>, op: u64) -> Operation {
    let remote = RemoteSpan::new(RegionKey { key: 1, base: 0, bytes: 4096 }, 0, 64).unwrap();
    Operation::read(remote, region.slot(0, 64).unwrap(), Op(op)).unwrap()
}

fn taken(queue: &CompletionQueue) -> Vec<Completed> {
    let mut taken = Vec::new();
    queue.poll(&mut taken, Duration::ZERO);
    taken
}

#[test]
fn an_operation_ends_once_however_it_ends() {
    let (queue, region) = (CompletionQueue::new(4), region());
    queue.admit(read(&region, 1)).unwrap().complete(Outcome::Done);
    drop(queue.admit(read(&region, 2)).unwrap());
    let unposted = queue.admit(read(&region, 3)).unwrap().hand_back(WhyUnposted::Dead);
    assert_eq!(unposted.operation.op(), Op(3));
    let outcomes: Vec<_> = taken(&queue).into_iter().map(|done| (done.op.0, done.outcome)).collect();
    assert_eq!(outcomes, [(1, Outcome::Done), (2, Outcome::Failed(Cause::Cancelled))]);
    assert_eq!(queue.admitted(), 0);
}

#[test]
fn a_place_is_held_until_the_completion_is_taken() {
    let (queue, region) = (CompletionQueue::new(2), region());
    let first = queue.admit(read(&region, 1)).unwrap();
    let second = queue.admit(read(&region, 2)).unwrap();
    first.complete(Outcome::Done);
    let refused = queue.admit(read(&region, 3)).unwrap_err();
    assert_eq!((refused.why, refused.operation.op()), (WhyUnposted::Full, Op(3)));
    assert_eq!(taken(&queue).len(), 1);
    queue.admit(refused.operation).unwrap().complete(Outcome::Done);
    second.complete(Outcome::Done);
    assert_eq!(taken(&queue).len(), 2);
}

#[test]
fn who_is_told_of_the_end_finds_the_region_let_go() {
    let (queue, region) = (CompletionQueue::new(1), region());
    let posted = queue.admit(read(&region, 1)).unwrap();
    assert_eq!(Arc::strong_count(&region), 2);
    posted.complete(Outcome::Done);
    assert_eq!(Arc::strong_count(&region), 1);
}

#[test]
fn a_poll_wakes_for_a_completion_of_another_thread() {
    let (queue, region) = (CompletionQueue::new(1), region());
    let posted = queue.admit(read(&region, 7)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| posted.complete(Outcome::Done));
        let mut taken = Vec::new();
        assert_eq!(queue.poll(&mut taken, Duration::from_secs(60)), 1);
        assert_eq!(taken[0].op, Op(7));
    });
}

#[test]
fn spans_outside_of_their_memory_cannot_be_made() {
    let key = RegionKey { key: 1, base: 0, bytes: 100 };
    assert!(RemoteSpan::new(key, 0, 100).is_some());
    assert!(RemoteSpan::new(key, 99, 1).is_some());
    assert!(RemoteSpan::new(key, 0, 0).is_none());
    assert!(RemoteSpan::new(key, 1, 100).is_none());
    assert!(RemoteSpan::new(key, u64::MAX, 1).is_none());
    assert!(RemoteSpan::new(RegionKey { base: u64::MAX, ..key }, 0, 1).is_none());
    let huge = RegionKey { key: 1, base: 0, bytes: u64::MAX };
    assert!(RemoteSpan::new(huge, 0, crate::limits::OPERATION_BYTES_MAX as u32 + 1).is_none());
}
