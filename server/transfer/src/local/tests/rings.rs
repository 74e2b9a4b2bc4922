//! The socket beside rings: one order over both ways, sleepers woken, peers that leave or misbehave.

use super::*;
use crate::limits::{RING_BODY_BYTES_MAX, RING_WORDS};

/// Two sockets that agreed on rings.
fn pair_with_rings() -> (LocalSocket, LocalSocket) {
    let (server, client) = LocalSocket::pair().unwrap();
    server.send_with_rings(1, 0, b"hello", Instant::now() + LATE).unwrap();
    let frame = client.recv(late()).unwrap();
    assert_eq!((frame.verb, frame.body.as_slice()), (1, &b"hello"[..]));
    client.take_rings(&frame.fd.unwrap()).unwrap();
    (server, client)
}

/// Of small bodies, large ones and ones that only the socket takes.
fn body_of(number: usize) -> Vec<u8> {
    let bytes = match number % 7 {
        0 => 0,
        3 => RING_BODY_BYTES_MAX,
        4 => RING_BODY_BYTES_MAX + 1,
        5 if number % 35 == 5 => 300_000,
        _ => (number * 37) % 600,
    };
    (0..bytes).map(|at| (number * 3 + at) as u8).collect()
}

#[test]
fn small_frames_never_touch_the_socket() {
    let (server, client) = pair_with_rings();
    for number in 0..100 {
        client.send(2, 0, &body_of(7 * number + 1), &[]).unwrap();
        assert_eq!(client.unread_bytes().unwrap(), 0, "nobody dozes, so nobody is rung");
        assert_eq!(server.try_recv_spin(LATE).unwrap().body, body_of(7 * number + 1));
    }
}

#[test]
fn frames_keep_their_order_over_both_ways_and_with_sleepers() {
    const FRAMES: usize = 3_000;
    let (server, client) = pair_with_rings();
    let echo = || {
        for _ in 0..FRAMES {
            let frame = server.recv_spin(Duration::from_micros(20), LATE).unwrap();
            if frame.verb == 3 {
                thread::sleep(Duration::from_micros(200)); // the other side falls asleep
            }
            server.send(frame.verb, 0, &frame.body, &[]).unwrap();
        }
    };
    let ask = || {
        let mut asked = 0;
        for number in 0..FRAMES {
            while asked < FRAMES && asked < number + 1 + number % 3 {
                let verb = if asked.is_multiple_of(50) { 3 } else { 2 };
                client.send(verb, 0, &body_of(asked), &[]).unwrap();
                asked += 1;
            }
            if number.is_multiple_of(31) {
                thread::sleep(Duration::from_micros(200)); // and this one
            }
            assert_eq!(client.recv(late()).unwrap().body, body_of(number), "frame {number}");
        }
    };
    thread::scope(|scope| {
        scope.spawn(echo);
        scope.spawn(ask);
    });
}

#[test]
fn descriptors_come_with_their_frame() {
    let (server, client) = pair_with_rings();
    let (read, write) = std::io::pipe().unwrap();
    server.send(2, 0, b"before", &[]).unwrap();
    server.send(3, 0, b"with", &[write.as_fd()]).unwrap();
    server.send(4, 0, b"behind", &[]).unwrap();
    drop(write);
    assert!(client.recv(late()).unwrap().fd.is_none());
    let with = client.recv(late()).unwrap();
    assert_eq!(with.body, b"with");
    assert!(is_open(&read) && with.fd.is_some());
    drop(with);
    assert!(!is_open(&read), "it was closed with its frame");
    assert_eq!(client.try_recv().unwrap().body, b"behind");
}

#[test]
fn a_reactor_is_woken_by_the_socket() {
    let (server, client) = pair_with_rings();
    for round in 0..50 {
        assert_eq!(client.try_recv().unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(
            !client.wait(rustix::event::PollFlags::IN, Some(Instant::now())).unwrap(),
            "nothing lies there"
        );
        server.send(2, 0, &[round], &[]).unwrap();
        assert!(client.wait(rustix::event::PollFlags::IN, late()).unwrap());
        assert_eq!(client.try_recv().unwrap().body, [round]);
        assert_eq!(server.unread_bytes().unwrap(), 0, "the bell was taken");
    }
}

#[test]
fn a_reader_that_does_not_read_is_waited_for_and_no_longer() {
    let (server, client) = pair_with_rings();
    let body = vec![1; RING_BODY_BYTES_MAX];
    let mut sent = 0;
    let error = loop {
        match server.send_by(2, 0, &body, &[], Instant::now() + SOON) {
            Ok(()) => sent += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), sent), (ErrorKind::TimedOut, RING_WORDS * 8 / (RING_BODY_BYTES_MAX + 8)));
    for _ in 0..sent {
        assert_eq!(client.recv(late()).unwrap().body, body);
    }
    server.send_by(3, 0, &body, &[], Instant::now() + SOON).unwrap();
    assert_eq!(client.recv(late()).unwrap().verb, 3, "nothing was lost, nothing came twice");
}

#[test]
fn an_end_is_seen_by_whoever_waits_spins_or_sends() {
    let (server, client) = pair_with_rings();
    client.send(2, 0, b"last", &[]).unwrap();
    drop(client);
    assert_eq!(server.recv(late()).unwrap().body, b"last", "what was sent before arrives");
    assert_eq!(server.recv(late()).unwrap_err().kind(), ErrorKind::UnexpectedEof);

    let (server, client) = pair_with_rings();
    thread::scope(|scope| {
        let waits = scope.spawn(|| client.recv(None).unwrap_err().kind());
        thread::sleep(SOON);
        drop(server);
        assert_eq!(waits.join().unwrap(), ErrorKind::UnexpectedEof);
    });

    let (server, client) = pair_with_rings();
    server.send(2, 0, b"why", &[]).unwrap();
    server.shutdown();
    assert_eq!(client.send(2, 0, b"", &[]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(client.recv(late()).unwrap().body, b"why", "the last word is still heard");
    assert_eq!(client.recv(late()).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn the_side_that_ended_it_hears_no_more_from_one_that_goes_on() {
    let (server, client) = pair_with_rings();
    client.send(2, 0, b"one", &[]).unwrap();
    client.send(2, 0, b"two", &[]).unwrap();
    assert_eq!(server.try_recv_spin(LATE).unwrap().body, b"one");
    server.shutdown();
    assert_eq!(server.recv_spin(LATE, LATE).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn what_the_ring_did_not_announce_ends_the_connection() {
    let (server, client) = pair_with_rings();
    let frame = [&FrameHeader::new(2, 0, 3).unwrap().encode()[..], b"abc"].concat();
    rustix::io::write(&client, &frame).unwrap();
    assert_eq!(server.recv(late()).unwrap_err().kind(), ErrorKind::InvalidData);
}

#[test]
fn bells_for_nothing_are_harmless() {
    let (server, client) = pair_with_rings();
    let bells = [FrameHeader::BELL.encode(); 3_000].concat();
    thread::scope(|scope| {
        scope.spawn(|| {
            for piece in bells.chunks(1_001) {
                client.send_bytes(piece);
            }
            client.send(2, 0, b"at last", &[]).unwrap();
        });
        assert_eq!(server.recv(late()).unwrap().body, b"at last");
    });
}

impl LocalSocket {
    fn send_bytes(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let sent = rustix::io::write(&self.fd, bytes).unwrap();
            bytes = &bytes[sent..];
        }
    }
}

#[test]
fn a_frame_that_was_announced_has_a_time_to_come() {
    let (server, client) = pair_with_rings();
    let rings = client.rings.get().unwrap();
    assert!(rings.write(&mut 0, FrameHeader::ON_SOCKET, &[]).unwrap());
    let began = Instant::now();
    assert_eq!(server.recv_spin(SOON, SOON).unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(began.elapsed() < LATE);
    drop(client);
}

#[test]
fn a_send_that_the_system_refused_leaves_both_in_step() {
    let (server, client) = pair_with_rings();
    // The socket is full, so the announced frame times out before its first byte.
    rustix::net::sockopt::set_socket_send_buffer_size(&server.fd, 4 << 10).unwrap();
    let filler = [FrameHeader::BELL.encode(); 512].concat();
    while let Ok(sent) = rustix::net::send(&server.fd, &filler, rustix::net::SendFlags::DONTWAIT) {
        assert!(sent > 0);
    }
    let body = vec![5; RING_BODY_BYTES_MAX + 1];
    let refused = server.send_by(2, 0, &body, &[], Instant::now() + SOON);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::TimedOut);
    thread::scope(|scope| {
        scope.spawn(|| {
            server.send(3, 0, b"instead", &[]).unwrap();
            server.send(4, 0, b"next", &[]).unwrap();
        });
        assert_eq!(client.recv(late()).unwrap().body, b"instead");
        assert_eq!(client.recv(late()).unwrap().body, b"next");
    });
}
