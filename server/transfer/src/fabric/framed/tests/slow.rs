//! Peers that are slow, silent or stuck. What keeps the pace goes on, however long it takes; what does not
//! ends; a rail with nothing under way waits for ever.

use std::time::{Duration, Instant};

use super::pair::{Alone, Lender};
use crate::fabric::framed::wire::{Answered, Asked, Range, Reply, Request};
use crate::fabric::{Cause, Direction, Initiator, Outcome, Target};
use crate::limits::{OPERATION_BYTES_MAX, RAIL_PACE_BYTES};

/// Long enough that a busy machine's pauses are shorter.
const STALL: Duration = Duration::from_millis(1500);
/// Pauses of a slow peer, so many that they come to more than a stall.
const PAUSE: Duration = Duration::from_millis(150);
const PAUSES: usize = 16;
/// Bytes after each pause that come to the pace within a stall, with much to spare.
const BRISK: usize = RAIL_PACE_BYTES as usize / 2;
/// What they come to.
const SLOW_BYTES: usize = PAUSES * BRISK;

#[test]
fn a_client_that_answers_nothing_is_stalled() {
    for direction in [Direction::Read, Direction::Write] {
        let alone = Alone::new(4096, STALL);
        alone.post(direction, 4096, 1);
        let started = Instant::now();
        assert_eq!(alone.only(), Outcome::Failed(Cause::Stalled));
        assert!(started.elapsed() >= STALL - PAUSE);
        assert_eq!(alone.death(), Cause::Stalled);
    }
}

#[test]
fn a_client_that_takes_nothing_is_stalled() {
    let alone = Alone::new(OPERATION_BYTES_MAX, STALL);
    alone.post(Direction::Write, OPERATION_BYTES_MAX, 1);
    assert_eq!(alone.only(), Outcome::Failed(Cause::Stalled));
}

#[test]
fn a_client_that_stops_in_the_middle_is_stalled() {
    let alone = Alone::new(4096, STALL);
    alone.post(Direction::Read, 4096, 1);
    alone.peer.request();
    alone.peer.send(&Reply { answered: Answered::Data { bytes: 4096 }, op: 0 }.encode());
    alone.peer.send(&[1; 100]);
    assert_eq!(alone.only(), Outcome::Failed(Cause::Stalled));
}

#[test]
fn a_slow_client_is_waited_for() {
    let alone = Alone::new(SLOW_BYTES, STALL);
    alone.post(Direction::Read, SLOW_BYTES, 1);
    let header = Reply { answered: Answered::Data { bytes: SLOW_BYTES as u32 }, op: alone.peer.request().op };
    alone.peer.send(&header.encode());
    for byte in 0..PAUSES {
        std::thread::sleep(PAUSE);
        alone.peer.send(&[byte as u8; BRISK]);
    }
    assert_eq!(alone.only(), Outcome::Done);
    let wanted: Vec<u8> = (0..PAUSES as u8).flat_map(|byte| [byte; BRISK]).collect();
    assert_eq!(alone.slab.slot(0, SLOW_BYTES).unwrap().page().to_vec(), wanted);
}

/// A byte now and then is no progress.
#[test]
fn a_client_that_drips_is_stalled() {
    let alone = Alone::new(SLOW_BYTES, STALL);
    alone.post(Direction::Read, SLOW_BYTES, 1);
    let header = Reply { answered: Answered::Data { bytes: SLOW_BYTES as u32 }, op: alone.peer.request().op };
    alone.peer.send(&header.encode());
    let deadline = Instant::now() + STALL * 4;
    while alone.initiator.death().is_none() {
        assert!(Instant::now() < deadline, "a rail that drips lives on");
        std::thread::sleep(PAUSE);
        alone.peer.try_send(&[1]);
    }
    assert_eq!(alone.only(), Outcome::Failed(Cause::Stalled));
}

#[test]
fn a_client_that_sips_is_stalled() {
    let alone = Alone::new(OPERATION_BYTES_MAX, STALL);
    alone.post(Direction::Write, OPERATION_BYTES_MAX, 1);
    let deadline = Instant::now() + STALL * 4;
    while alone.initiator.death().is_none() {
        assert!(Instant::now() < deadline, "a rail that sips lives on");
        std::thread::sleep(PAUSE);
        alone.peer.try_receive(1024);
    }
    assert_eq!(alone.only(), Outcome::Failed(Cause::Stalled));
}

/// What is asked of it meanwhile finds room in sockets, and is no progress of what it owes.
#[test]
fn a_client_that_takes_everything_and_answers_nothing_is_stalled() {
    let alone = Alone::new(BRISK, STALL);
    alone.post(Direction::Write, BRISK, 1);
    let began = Instant::now();
    while alone.initiator.death().is_none() && began.elapsed() < STALL * 4 {
        alone.peer.try_receive(BRISK);
        std::thread::sleep(PAUSE);
        alone.try_post(Direction::Write, BRISK, 1);
    }
    assert_eq!(alone.death(), Cause::Stalled);
    assert!(began.elapsed() < STALL * 2, "it lived for {:?}", began.elapsed());
}

/// Each answer is progress, also where several are due all the time.
#[test]
fn a_client_that_answers_one_after_another_is_waited_for() {
    let alone = Alone::new(BRISK, STALL);
    for _ in 0..3 {
        alone.post(Direction::Write, BRISK, 1);
    }
    for _ in 0..PAUSES {
        let op = alone.peer.request().op;
        alone.peer.receive(BRISK);
        std::thread::sleep(PAUSE);
        alone.peer.send(&Reply { answered: Answered::Ack, op }.encode());
        assert_eq!(alone.completed(1)[0].outcome, Outcome::Done);
        alone.post(Direction::Write, BRISK, 1);
    }
    assert!(alone.initiator.death().is_none());
}

#[test]
fn a_slow_server_is_waited_for_and_a_stuck_one_is_not() {
    let lender = Lender::new(SLOW_BYTES, STALL);
    let range = Range { key: lender.key.key, offset: 0, bytes: SLOW_BYTES as u32 };
    let header = Request { asked: Asked::Write, op: 0, range }.encode();
    for part in header.chunks(8) {
        std::thread::sleep(PAUSE / 2);
        lender.peer.send(part);
    }
    for byte in 0..PAUSES {
        std::thread::sleep(PAUSE);
        lender.peer.send(&[byte as u8; BRISK]);
    }
    assert_eq!(lender.peer.reply().answered, Answered::Ack);
    lender.peer.send(&header[..31]);
    assert_eq!(lender.death(), Cause::Stalled);
}

#[test]
fn a_server_that_drips_is_stalled() {
    let lender = Lender::new(SLOW_BYTES, STALL);
    lender.ask(Asked::Write, 0, SLOW_BYTES as u32);
    let deadline = Instant::now() + STALL * 4;
    while lender.target.death().is_none() {
        assert!(Instant::now() < deadline, "a rail that drips lives on");
        std::thread::sleep(PAUSE);
        lender.peer.try_send(&[1]);
    }
    assert_eq!(lender.death(), Cause::Stalled);
}

#[test]
fn a_server_that_does_not_read_what_it_asked_for_is_stalled() {
    let lender = Lender::new(OPERATION_BYTES_MAX, STALL);
    lender.ask(Asked::Read, 0, OPERATION_BYTES_MAX as u32);
    assert_eq!(lender.death(), Cause::Stalled);
}

#[test]
fn idle_rails_live() {
    let (alone, lender) = (Alone::new(4096, PAUSE), Lender::new(4096, PAUSE));
    std::thread::sleep(PAUSE * 4);
    assert_eq!((alone.initiator.death(), lender.target.death()), (None, None));
    alone.post(Direction::Read, 8, 1);
    alone.peer.request();
    alone.peer.send(&Reply { answered: Answered::Data { bytes: 8 }, op: 0 }.encode());
    alone.peer.send(&[3; 8]);
    assert_eq!(alone.only(), Outcome::Done);
}

/// The time in which nothing was due is no stall, also where a header comes in two parts after it.
#[test]
fn an_idle_rail_waits_for_all_of_a_header() {
    let lender = Lender::new(4096, STALL);
    std::thread::sleep(STALL + PAUSE);
    let range = Range { key: lender.key.key, offset: 0, bytes: 8 };
    let header = Request { asked: Asked::Read, op: 0, range }.encode();
    lender.peer.send(&header[..8]);
    std::thread::sleep(PAUSE);
    lender.peer.send(&header[8..]);
    assert_eq!(lender.peer.reply().answered, Answered::Data { bytes: 8 });
}
