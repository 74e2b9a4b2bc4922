//! Tests of what a rail does next.

use std::sync::Arc;

use super::*;
use crate::fabric::conformance::region;
use crate::fabric::operation::{Op, RegionKey, RemoteSpan};
use crate::region::Region;

const BYTES: usize = 1 << 20;

fn operation(slab: &Arc<Region>, direction: Direction, op: u64) -> Operation {
    let key = RegionKey { key: 1, base: 0, bytes: BYTES as u64 };
    let (remote, slot) = (RemoteSpan::new(key, 0, BYTES as u32).unwrap(), slab.slot(0, BYTES).unwrap());
    match direction {
        Direction::Read => Operation::read(remote, slot, Op(op)).unwrap(),
        Direction::Write => Operation::write(slot, remote, Op(op)).unwrap(),
    }
}

fn next(pending: &Pending, reads: usize) -> Option<u64> {
    pending.next(reads).map(|posted| posted.operation().op().0)
}

#[test]
fn a_write_waits_until_all_reads_are_answered() {
    let (slab, queue) = (region(BYTES), CompletionQueue::new(8));
    let pending = Pending::new(&queue).unwrap();
    pending.post(operation(&slab, Direction::Write, 1)).unwrap();
    assert!(pending.fall_asleep(true, 1), "nothing to do before the answers");
    assert_eq!(next(&pending, 1), None);
    assert!(!pending.fall_asleep(true, 0));
    assert_eq!(next(&pending, 0), Some(1));
}

#[test]
fn neither_direction_waits_for_ever_behind_the_other() {
    let (slab, queue) = (region(BYTES), CompletionQueue::new(200));
    let pending = Pending::new(&queue).unwrap();
    for op in 0..40 {
        pending.post(operation(&slab, Direction::Read, op)).unwrap();
        pending.post(operation(&slab, Direction::Write, 100 + op)).unwrap();
    }
    let order: Vec<_> = std::iter::from_fn(|| next(&pending, 0)).collect();
    assert_eq!(order.len(), 80);
    let turns: Vec<_> = order.chunk_by(|one, other| (*one < 100) == (*other < 100)).collect();
    let in_a_turn = RAIL_TURN_BYTES as usize / BYTES;
    assert_eq!(turns.len(), 2 * 40 / in_a_turn);
    assert!(turns.iter().all(|turn| turn.len() == in_a_turn));
}

#[test]
fn a_rail_holds_a_bounded_number_whatever_the_queue_holds() {
    let (slab, queue) = (region(BYTES), CompletionQueue::new(RAIL_OPERATIONS_MAX + 2));
    let pending = Pending::new(&queue).unwrap();
    for op in 0..RAIL_OPERATIONS_MAX as u64 {
        pending.post(operation(&slab, Direction::Read, op)).unwrap();
    }
    let refused = pending.post(operation(&slab, Direction::Read, 0)).unwrap_err();
    assert_eq!(refused.why, WhyUnposted::Full);
    let first = pending.next(0).unwrap();
    assert!(pending.post(operation(&slab, Direction::Read, 0)).is_err(), "what has begun is held, too");
    pending.complete(first, Outcome::Done);
    pending.post(operation(&slab, Direction::Read, 0)).unwrap();
    pending.die(Cause::PeerGone);
    assert_eq!((pending.queued_bytes(), pending.death()), (0, Some(Cause::PeerGone)));
    let mut taken = Vec::new();
    queue.poll(&mut taken, std::time::Duration::ZERO);
    assert_eq!(taken.len(), RAIL_OPERATIONS_MAX + 1, "each once");
}
