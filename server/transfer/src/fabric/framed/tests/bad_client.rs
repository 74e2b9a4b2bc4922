//! Clients that answer what was not asked, or wrongly: the server ends the rail, everything completes once.

use super::pair::{Alone, KEY, PATIENCE, Random};
use crate::fabric::conformance::pattern;
use crate::fabric::framed::wire::{Answered, Asked, HEADER_BYTES, Reply};
use crate::fabric::{Cause, Direction, Initiator, Op, Operation, Outcome, RemoteSpan, WhyUnposted};
use crate::limits::{FRAMED_STALL, OPERATION_BYTES_MAX};

const BYTES: usize = 4096;

fn ack(op: u32) -> [u8; HEADER_BYTES] {
    Reply { answered: Answered::Ack, op }.encode()
}

fn data(op: u32, bytes: u32) -> [u8; HEADER_BYTES] {
    Reply { answered: Answered::Data { bytes }, op }.encode()
}

fn refused(op: u32) -> [u8; HEADER_BYTES] {
    Reply { answered: Answered::Refused, op }.encode()
}

/// What ends a rail whose first operation is this one, when it comes as the answer to it.
fn breaks(direction: Direction, answer: &[u8]) {
    let alone = Alone::new(BYTES, FRAMED_STALL);
    let before = pattern(1, BYTES);
    alone.slab.slot(0, BYTES).unwrap().claim().unwrap().fill(&before);
    alone.post(direction, BYTES, 1);
    alone.peer.request();
    if direction == Direction::Write {
        assert_eq!(alone.peer.receive(BYTES), before);
    }
    alone.peer.send(answer);
    assert!(matches!(alone.only(), Outcome::Failed(Cause::Protocol(_))));
    assert!(matches!(alone.death(), Cause::Protocol(_)));
    assert_eq!(alone.slab.slot(0, BYTES).unwrap().page().to_vec(), before, "the slot is as it was");
    alone.peer.until_end();
}

#[test]
fn answers_that_do_not_fit_end_the_rail() {
    let most = BYTES as u32;
    for answer in
        [ack(0), data(1, most), data(0, most - 1), data(0, most + 1), refused(1), [0; 32], [255; 32]]
    {
        breaks(Direction::Read, &answer);
    }
    for answer in [ack(1), ack(u32::MAX), data(0, most), refused(7), [0; 32], [255; 32]] {
        breaks(Direction::Write, &answer);
    }
}

#[test]
fn every_flipped_bit_of_an_answer_ends_the_rail() {
    for bit in 0..HEADER_BYTES * 8 {
        let mut answer = ack(0);
        answer[bit / 8] ^= 1 << (bit % 8);
        breaks(Direction::Write, &answer);
    }
}

#[test]
fn an_answer_given_twice_ends_the_rail_and_completes_nothing_twice() {
    let alone = Alone::new(BYTES, FRAMED_STALL);
    alone.post(Direction::Write, BYTES, 1);
    alone.peer.request();
    alone.peer.receive(BYTES);
    alone.peer.send(&[ack(0), ack(0)].concat());
    assert_eq!(alone.only(), Outcome::Done);
    alone.peer.until_end();
    assert!(matches!(alone.death(), Cause::Protocol(_)));
}

#[test]
fn an_answer_to_nothing_ends_the_rail() {
    let alone = Alone::new(BYTES, FRAMED_STALL);
    alone.peer.send(&ack(0));
    alone.peer.until_end();
    assert!(matches!(alone.death(), Cause::Protocol(_)));
    let remote = RemoteSpan::new(KEY, 0, 1).unwrap();
    let operation = Operation::write(alone.slab.slot(0, 1).unwrap(), remote, Op(1));
    let unposted = alone.initiator.post(operation.unwrap()).unwrap_err();
    assert_eq!(unposted.why, WhyUnposted::Dead);
}

/// An answer guessed before its question: with any timing it is either that answer or the end of the rail.
#[test]
fn a_payload_sent_before_it_was_asked_for_does_no_harm() {
    for _ in 0..50 {
        let alone = Alone::new(BYTES, FRAMED_STALL);
        alone.post(Direction::Write, BYTES, 1);
        alone.peer.request();
        alone.peer.receive(BYTES);
        let guessed = [ack(0).as_slice(), &data(1, BYTES as u32), &[7; BYTES]].concat();
        alone.peer.send(&guessed);
        let remote = RemoteSpan::new(KEY, 0, BYTES as u32).unwrap();
        let read = Operation::read(remote, alone.slab.slot(0, BYTES).unwrap(), Op(2)).unwrap();
        let posted = alone.initiator.post(read).is_ok();
        let completed = alone.completed(1 + usize::from(posted));
        assert_eq!(completed[0].outcome, Outcome::Done);
        if completed.get(1).is_some_and(|done| done.outcome == Outcome::Done) {
            // The question had left when the answer was read: nothing tells the two apart.
            assert_eq!(alone.slab.slot(0, BYTES).unwrap().page().to_vec(), [7; BYTES]);
        } else {
            alone.peer.until_end();
            assert!(matches!(alone.death(), Cause::Protocol(_)), "{completed:?}");
        }
    }
}

/// The slot is still being sent: it must not be anybody's before that ended.
#[test]
fn a_write_answered_before_its_payload_left_ends_the_rail() {
    for answer in [refused(0), ack(0)] {
        let alone = Alone::new(OPERATION_BYTES_MAX, FRAMED_STALL);
        alone.post(Direction::Write, OPERATION_BYTES_MAX, 1);
        assert_eq!(alone.peer.request().asked, Asked::Write);
        // Nothing of the payload is read: far more than the socket's buffers is still to leave.
        alone.peer.send(&answer);
        assert!(matches!(alone.only(), Outcome::Failed(Cause::Protocol(_))));
    }
}

#[test]
fn a_refusal_fails_its_operation_alone() {
    let alone = Alone::new(BYTES, FRAMED_STALL);
    for (op, direction) in [Direction::Read, Direction::Write, Direction::Read].into_iter().enumerate() {
        alone.post(direction, BYTES, op as u64);
        assert_eq!(alone.peer.request().op, op as u32);
        if direction == Direction::Write {
            alone.peer.receive(BYTES);
        }
        alone.peer.send(&refused(op as u32));
        assert_eq!(alone.only(), Outcome::Failed(Cause::Refused));
    }
    assert_eq!(alone.initiator.death(), None);
}

#[test]
fn a_client_that_dies_in_the_middle_of_a_payload_or_a_header_is_gone() {
    let whole = [data(0, BYTES as u32).as_slice(), &[9; BYTES]].concat();
    for bytes in [0, 1, 31, 32, 33, 32 + BYTES / 2, 32 + BYTES - 1] {
        let alone = Alone::new(BYTES, FRAMED_STALL);
        (0..3).for_each(|op| alone.post(Direction::Read, BYTES, op));
        (0..3).for_each(|op| assert_eq!(alone.peer.request().op, op));
        alone.peer.send(&whole[..bytes]);
        alone.peer.0.shutdown(std::net::Shutdown::Both).unwrap();
        let completed = alone.completed(3);
        assert!(completed.iter().all(|done| done.outcome == Outcome::Failed(Cause::PeerGone)));
        assert_eq!(alone.queue.admitted(), 0);
        assert_eq!(alone.death(), Cause::PeerGone);
    }
}

/// Requests that wait at the client are few, whatever was posted.
#[test]
fn a_client_that_answers_nothing_is_asked_a_bounded_number() {
    let alone = Alone::new(BYTES, FRAMED_STALL);
    (0..100).for_each(|op| alone.post(Direction::Read, 8, op));
    for op in 0..crate::limits::RAIL_BEGUN_MAX as u32 {
        assert_eq!(alone.peer.request().op, op);
    }
    alone.peer.0.set_read_timeout(Some(std::time::Duration::from_millis(100))).unwrap();
    let more = std::io::Read::read(&mut (&alone.peer.0), &mut [0; 1]);
    assert!(more.is_err(), "one more came, or the end: {more:?}");
    alone.peer.send(&[data(0, 8).as_slice(), &[1; 8]].concat());
    alone.peer.0.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(alone.peer.request().op, crate::limits::RAIL_BEGUN_MAX as u32);
    assert_eq!(alone.completed(1)[0].outcome, Outcome::Done);
}

/// Good answers with bits flipped, bytes cut out or put in: every operation completes, once, and one that is done has
/// the bytes that came, or those that a flipped bit of a payload made of them.
#[test]
fn mutated_answers_complete_everything_once() {
    let mut random = Random::new(0x51ed_270b);
    for round in 0..300 {
        let alone = Alone::new(BYTES, FRAMED_STALL);
        let mut answers = Vec::new();
        for op in 0..4 {
            alone.post(Direction::Read, BYTES, op);
            answers.extend_from_slice(&data(op as u32, BYTES as u32));
            answers.extend_from_slice(&[0xaa; BYTES]);
        }
        let flips = random.mutate(&mut answers);
        (0..4).for_each(|op| assert_eq!(alone.peer.request().op, op));
        alone.peer.try_send(&answers);
        // It may have hung up already.
        alone.peer.0.shutdown(std::net::Shutdown::Both).unwrap_or_default();
        let completed = alone.completed(4);
        let names: std::collections::BTreeSet<_> = completed.iter().map(|done| done.op).collect();
        assert_eq!((names.len(), alone.queue.admitted()), (4, 0), "round {round}");
        let slot = alone.slab.slot(0, BYTES).unwrap().page().to_vec();
        let strange = slot.iter().filter(|byte| !matches!(byte, 0 | 0xaa)).count();
        assert!(strange <= flips + HEADER_BYTES, "round {round}: {strange} bytes that nobody sent");
        alone.death();
    }
}
