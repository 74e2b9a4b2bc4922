//! Frames through a ring: their order, room, sleep, and a peer that writes anything.

use std::thread;

use super::*;
use crate::frame::FLAG_MORE;

fn pair() -> (Rings, Rings) {
    let (one, fd) = Rings::create().unwrap();
    let other = Rings::open(&fd).unwrap();
    (one, other)
}

fn header(verb: u8, bytes: usize) -> FrameHeader {
    FrameHeader::new(verb, FLAG_MORE, bytes).unwrap()
}

/// A body that says which frame it is of, of a length that goes through all remainders.
fn body_of(number: usize) -> Vec<u8> {
    let bytes = if number.is_multiple_of(97) { RING_BODY_BYTES_MAX } else { (number * 131) % 700 };
    (0..bytes).map(|at| (number + at) as u8).collect()
}

#[test]
fn frames_come_out_as_they_went_in_around_the_end_many_times() {
    let (one, other) = pair();
    let (mut written, mut read) = (0, 0);
    for number in 0..5_000 {
        let body = body_of(number);
        assert!(one.write(&mut written, header(number as u8, body.len()), &body).unwrap());
        let frame = other.read(&mut read).unwrap().unwrap();
        assert_eq!((frame.verb, frame.flags, frame.body), (number as u8, FLAG_MORE, body));
        assert!(other.read(&mut read).unwrap().is_none());
    }
    assert!(written > 10 * RING_WORDS as u64);
}

#[test]
fn both_directions_are_their_own_and_two_threads_keep_order() {
    const FRAMES: usize = 20_000;
    let (one, other) = pair();
    let pump = |out: &Rings, seed: usize| {
        let mut written = 0;
        for number in 0..FRAMES {
            let body = body_of(seed + number);
            while !out.write(&mut written, header(number as u8, body.len()), &body).unwrap() {
                thread::yield_now();
            }
        }
    };
    let drain = |into: &Rings, seed: usize| {
        let mut read = 0;
        for number in 0..FRAMES {
            let frame = loop {
                match into.read(&mut read).unwrap() {
                    Some(frame) => break frame,
                    None => thread::yield_now(),
                }
            };
            assert_eq!((frame.verb, frame.body), (number as u8, body_of(seed + number)));
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| pump(&one, 0));
        scope.spawn(|| pump(&other, 7));
        scope.spawn(|| drain(&other, 0));
        scope.spawn(|| drain(&one, 7));
    });
}

#[test]
fn a_full_ring_takes_no_more_until_something_is_read() {
    let (one, other) = pair();
    let (mut written, mut read) = (0, 0);
    let body = vec![7; RING_BODY_BYTES_MAX];
    let mut frames = 0;
    while one.write(&mut written, header(1, body.len()), &body).unwrap() {
        frames += 1;
    }
    assert_eq!(frames, RING_WORDS as u64 / words_of(RING_BODY_BYTES_MAX));
    assert!(other.read(&mut read).unwrap().is_some());
    assert!(one.write(&mut written, header(1, body.len()), &body).unwrap());
}

#[test]
fn a_dozing_reader_is_rung_once() {
    let (one, other) = pair();
    let mut written = 0;
    assert!(one.write(&mut written, header(1, 0), &[]).unwrap());
    assert!(!one.must_ring(), "nobody dozes");
    other.doze();
    assert!(one.must_ring());
    assert!(!one.must_ring(), "once is enough");
    assert!(other.rouse(), "it was rung");
    other.doze();
    assert!(!other.rouse(), "nobody wrote meanwhile");
    assert!(!one.must_ring());
}

#[test]
fn the_closed_side_reads_nothing_more_and_the_other_what_is_there() {
    let (one, other) = pair();
    let (mut written, mut back, mut read) = (0, 0, 0);
    assert!(one.write(&mut written, header(1, 0), &[]).unwrap());
    assert!(other.write(&mut back, header(2, 0), &[]).unwrap());
    one.close();
    assert!(one.is_closed() && other.is_closed());
    assert_eq!(one.read(&mut 0).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(other.read(&mut read).unwrap().unwrap().verb, 1);
    assert!(other.read(&mut read).unwrap().is_none());
}

/// Every word of the other side's is taken for what it may be: anything.
#[test]
fn a_peer_that_scribbles_gets_an_error_and_nothing_else() {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let (mut refused, mut taken) = (0, 0);
    for round in 0..2_000 {
        let (one, other) = pair();
        let mut written = 0;
        for number in 0..8 {
            let body = body_of(round + number);
            assert!(one.write(&mut written, header(1, body.len()), &body).unwrap());
        }
        for _ in 0..1 + random() % 4 {
            let near = (random() % 64) as usize;
            let at = match random() % 3 {
                0 => WRITTEN,
                1 => CONTROL_WORDS + near,
                _ => READ,
            };
            let word = if random() % 2 == 0 { random() } else { random() % 5_000 };
            one.word(one.out + at).store(word, Ordering::Relaxed);
        }
        let mut read = 0;
        for _ in 0..RING_WORDS {
            match other.read(&mut read) {
                Ok(Some(frame)) => {
                    assert!(frame.body.len() <= RING_BODY_BYTES_MAX);
                    taken += 1;
                }
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
                    refused += 1;
                    break;
                }
            }
        }
        // A reader that claims what was never written.
        one.word(one.out + READ).store(random(), Ordering::Relaxed);
        assert!(one.write(&mut written, header(1, 0), &[]).is_err());
    }
    assert!(refused > 500 && taken > 500, "both happen: {refused} refused, {taken} frames taken");
}

#[test]
fn memory_that_can_be_taken_away_is_refused() {
    let fd = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, MEMORY_BYTES as u64).unwrap();
    assert_eq!(Rings::open(&fd).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    let small = sealed_memfd("small", 4096).unwrap();
    assert_eq!(Rings::open(&small).unwrap_err().kind(), io::ErrorKind::InvalidInput);
}
