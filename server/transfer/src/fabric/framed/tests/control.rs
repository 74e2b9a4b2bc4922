//! Frames of verbs over the streams that rails have: what is long, what waits, who leaves.

use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use super::pair::tcp;
use super::tls::{tcp_ends_meet, tls};
use crate::fabric::framed::FramedStream;
use crate::frame::FLAG_MORE;
use crate::limits::{FRAME_BYTES_MAX, FRAME_CHECK_BYTES};
use crate::local::LocalSocket;

const LATE: Duration = Duration::from_secs(20);

/// Both ends of a connection: plain, and under TLS.
fn streams() -> [(FramedStream, FramedStream); 2] {
    let (here, there) = tcp();
    let plain = (FramedStream::plain(here).unwrap(), FramedStream::plain(there).unwrap());
    [plain, tls(tcp(), tcp_ends_meet)]
}

/// The same as control connections.
fn ends() -> [(LocalSocket, LocalSocket); 2] {
    streams().map(|(here, there)| {
        (LocalSocket::over_network(here).unwrap(), LocalSocket::over_network(there).unwrap())
    })
}

fn late() -> Option<Instant> {
    Some(Instant::now() + LATE)
}

#[test]
fn frames_arrive_whole_and_in_order() {
    for (one, other) in ends() {
        let long: Vec<u8> = (0..FRAME_BYTES_MAX - FRAME_CHECK_BYTES).map(|at| (at * 7) as u8).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                one.send(1, FLAG_MORE, b"first", &[]).unwrap();
                one.send_by(2, 0, &long, &[], late().unwrap()).unwrap();
                one.send(3, 0, b"", &[]).unwrap();
            });
            let first = other.recv(late()).unwrap();
            assert_eq!((first.verb, first.flags, &first.body[..]), (1, FLAG_MORE, &b"first"[..]));
            // Two small frames may have been decrypted at once: the system knows of neither any more.
            assert!(other.recv(late()).unwrap().body == long);
            assert_eq!(other.recv_spin(Duration::ZERO, LATE).unwrap().verb, 3);
        });
        other.send(4, 0, b"back", &[]).unwrap();
        assert_eq!(one.recv(late()).unwrap().body, b"back");
        assert_eq!(one.try_recv().unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(!one.peer_is_gone().unwrap());
    }
}

#[test]
fn what_was_read_before_is_put_back() {
    for (here, mut there) in streams() {
        let one = LocalSocket::over_network(here).unwrap();
        one.send(9, 0, b"whole", &[]).unwrap();
        let mut first = [0; 4];
        there.read_exact_by(&mut first, late().unwrap()).unwrap();
        let other = LocalSocket::over_network(there).unwrap();
        assert!(other.put_back(&[0; 8]).is_err(), "more than a part of a header");
        other.put_back(&first).unwrap();
        let frame = other.recv(late()).unwrap();
        assert_eq!((frame.verb, frame.flags, &frame.body[..]), (9, 0, &b"whole"[..]));
    }
}

#[test]
fn a_peer_that_leaves_is_noticed_and_one_that_is_silent_is_waited_for() {
    for (one, other) in ends() {
        let soon = Instant::now() + Duration::from_millis(30);
        assert_eq!(other.recv(Some(soon)).unwrap_err().kind(), ErrorKind::TimedOut);
        one.send(1, 0, b"last words", &[]).unwrap();
        one.shutdown();
        assert_eq!(other.recv(late()).unwrap().body, b"last words");
        assert_eq!(other.recv(late()).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert!(other.peer_is_gone().unwrap());
    }
}
