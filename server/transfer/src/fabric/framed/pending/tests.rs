//! Tests of what a rail does next.

use std::sync::Arc;

use proptest::prelude::*;

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

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is posted when: each direction keeps its order, and neither has more than its turn while the other waits.
    #[test]
    fn turns_are_fair_and_keep_the_order_of_each_direction(
        steps in proptest::collection::vec((0u8..6, 1usize..=BYTES), 1..400)
    ) {
        let (slab, queue) = (region(BYTES), CompletionQueue::new(1000));
        let pending = Pending::new(&queue).unwrap();
        let key = RegionKey { key: 1, base: 0, bytes: BYTES as u64 };
        let (mut waiting, mut unanswered) = ([VecDeque::new(), VecDeque::new()], Vec::new());
        // Since when one direction goes on although the other waits, in bytes.
        let mut turn: (Option<Direction>, u64) = (None, 0);
        for (number, (step, bytes)) in steps.into_iter().enumerate() {
            let (remote, slot) = (RemoteSpan::new(key, 0, bytes as u32).unwrap(), slab.slot(0, bytes).unwrap());
            let op = Op(number as u64);
            match step {
                0 => pending.post(Operation::read(remote, slot, op).unwrap()).unwrap(),
                1 => pending.post(Operation::write(slot, remote, op).unwrap()).unwrap(),
                2 => if let Some(posted) = unanswered.pop() {
                    pending.complete(posted, Outcome::Done);
                },
                _ => {
                    let can_begin = !pending.fall_asleep(true, unanswered.len());
                    pending.awake();
                    let begun = pending.next(unanswered.len());
                    prop_assert_eq!(begun.is_some(), can_begin, "who sleeps has nothing to begin");
                    let Some(posted) = begun else {
                        let idle = waiting.iter().all(VecDeque::is_empty);
                        prop_assert!(idle || !waiting[1].is_empty() && !unanswered.is_empty());
                        continue;
                    };
                    let direction = posted.operation().direction();
                    let is_write = direction == Direction::Write;
                    prop_assert!(!is_write || unanswered.is_empty(), "reads are answered before a write begins");
                    prop_assert_eq!(waiting[usize::from(is_write)].pop_front(), Some(posted.operation().op()));
                    if turn.0 != Some(direction) || waiting[usize::from(!is_write)].is_empty() {
                        turn = (Some(direction), 0);
                    }
                    turn.1 += u64::from(posted.operation().bytes());
                    prop_assert!(turn.1 < RAIL_TURN_BYTES + BYTES as u64, "{direction:?} goes on for {} bytes", turn.1);
                    if is_write { pending.complete(posted, Outcome::Done) } else { unanswered.push(posted) }
                }
            }
            if step < 2 {
                waiting[usize::from(step)].push_back(op);
            }
        }
        let left = waiting.iter().map(VecDeque::len).sum::<usize>();
        pending.die(Cause::PeerGone);
        unanswered.drain(..).for_each(|posted| pending.complete(posted, Outcome::Failed(Cause::PeerGone)));
        let mut told = Vec::new();
        queue.poll(&mut told, std::time::Duration::ZERO);
        let cancelled = told.iter().filter(|one| one.outcome == Outcome::Failed(Cause::Cancelled)).count();
        prop_assert_eq!((cancelled, pending.queued_bytes(), queue.admitted()), (left, 0, 0));
        let refused = pending.post(operation(&slab, Direction::Read, 0)).unwrap_err();
        prop_assert_eq!((refused.why, pending.death()), (WhyUnposted::Dead, Some(Cause::PeerGone)));
    }
}
