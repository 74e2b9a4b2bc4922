//! The socket against a real kernel: descriptors, partial transfers, deadlines, peers that leave or
//! misbehave.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use super::LocalSocket;
use super::send::send_some;
use crate::frame::{FLAG_FAILURE, FLAG_MORE, FrameHeader};
use crate::limits::{FDS_PENDING_MAX, FDS_PER_FRAME_MAX, FRAME_BYTES_MAX};
use crate::region::{HugePages, Region, RegionOptions};

mod rings;

const SOON: Duration = Duration::from_millis(30);
const LATE: Duration = Duration::from_secs(20);

fn late() -> Option<Instant> {
    Some(Instant::now() + LATE)
}

/// A socket and the bare stream at its other end.
fn with_stream() -> (LocalSocket, UnixStream) {
    let (one, other) = UnixStream::pair().unwrap();
    (LocalSocket::new(one).unwrap(), other)
}

fn is_open(mut reader: &std::io::PipeReader) -> bool {
    rustix::io::ioctl_fionbio(reader, true).unwrap();
    match reader.read(&mut [0]) {
        Ok(count) => count > 0,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}

#[test]
fn frames_arrive_as_sent() {
    let (one, other) = LocalSocket::pair().unwrap();
    one.send(7, FLAG_MORE, b"hello", &[]).unwrap();
    one.send(8, FLAG_FAILURE, b"", &[]).unwrap();
    let frame = other.recv(None).unwrap();
    assert_eq!((frame.verb, frame.flags, frame.body.as_slice()), (7, FLAG_MORE, &b"hello"[..]));
    let frame = other.try_recv().unwrap();
    assert_eq!((frame.verb, frame.flags, frame.body.as_slice()), (8, FLAG_FAILURE, &b""[..]));
    assert_eq!(other.try_recv().unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(other.try_recv_spin(Duration::from_micros(50)).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn what_is_unread_and_who_is_gone_is_told() {
    let (one, other) = LocalSocket::pair().unwrap();
    assert_eq!(one.unread_bytes().unwrap(), 0);
    one.send(7, 0, b"hello", &[]).unwrap();
    assert!(one.unread_bytes().unwrap() > 0);
    other.recv(late()).unwrap();
    assert_eq!(one.unread_bytes().unwrap(), 0);
    one.send(7, 0, b"hello", &[]).unwrap();
    rustix::net::shutdown(&other, rustix::net::Shutdown::Write).unwrap();
    assert!(one.peer_hung_up().unwrap() && !one.peer_is_gone().unwrap(), "it can still read");
    one.shutdown();
    assert!(one.unread_bytes().unwrap() > 0 && one.peer_is_gone().unwrap());
    drop(other);
    assert_eq!(one.unread_bytes().unwrap(), 0, "nobody can read it any more");
}

#[test]
fn a_region_travels_and_both_sides_see_its_bytes() {
    let (one, other) = LocalSocket::pair().unwrap();
    let bytes = 1 << 20;
    let options = RegionOptions {
        bytes,
        huge_pages: HugePages::Off,
        touch: true,
        lock: false,
        name: "travels".to_owned(),
    };
    let (region, _) = Region::create(&options).unwrap();
    one.send(2, 0, b"slab", &[region.fd()]).unwrap();
    let frame = other.recv(late()).unwrap();
    let fd = frame.fd.unwrap();
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let mapped = Region::from_fd(fd, bytes).unwrap();
    let page: Vec<u8> = (0..bytes).map(|i| (i >> 3) as u8).collect();
    let sum = mapped.slot(0, bytes).unwrap().claim().unwrap().fill(&page).1;
    let mut back = vec![0; bytes];
    assert_eq!(region.slot(0, bytes).unwrap().page().drain(&mut back), sum);
    assert_eq!(back, page);
}

#[test]
fn each_frame_gets_its_own_descriptor() {
    let (one, other) = LocalSocket::pair().unwrap();
    let pipes: Vec<_> = (0..4).map(|_| std::io::pipe().unwrap()).collect();
    for (i, (_, writer)) in pipes.iter().enumerate() {
        one.send(0, 0, b"none", &[]).unwrap();
        one.send(1 + i as u8, 0, b"one", &[writer.as_fd()]).unwrap();
    }
    for (i, (mut reader, writer)) in pipes.into_iter().enumerate() {
        assert!(other.recv(late()).unwrap().fd.is_none());
        let frame = other.recv(late()).unwrap();
        assert_eq!(frame.verb, 1 + i as u8);
        drop(writer);
        std::fs::File::from(frame.fd.unwrap()).write_all(b"x").unwrap();
        let mut got = Vec::new();
        reader.read_to_end(&mut got).unwrap();
        assert_eq!(got, b"x");
    }
}

#[test]
fn descriptors_that_nobody_takes_are_closed() {
    let (one, other) = LocalSocket::pair().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let (second_reader, second_writer) = std::io::pipe().unwrap();
    one.send(1, 0, b"two descriptors", &[writer.as_fd(), second_writer.as_fd()]).unwrap();
    drop((writer, second_writer));
    let frame = other.recv(late()).unwrap();
    assert!(is_open(&reader) && !is_open(&second_reader), "only the first comes with the frame");
    drop(frame);
    assert!(!is_open(&reader));
    let fds = [other.as_fd(); FDS_PER_FRAME_MAX + 1];
    assert_eq!(one.send(1, 0, b"", &fds).unwrap_err().kind(), ErrorKind::InvalidInput);
    one.send(3, 0, b"still in use", &[]).unwrap();
    assert_eq!(other.recv(late()).unwrap().verb, 3);
}

#[test]
fn a_peer_that_sends_too_many_descriptors_is_refused() {
    let (socket, stream) = with_stream();
    let (reader, writer) = std::io::pipe().unwrap();
    let header = FrameHeader::new(1, 0, 1000).unwrap().encode();
    let bytes = header.into_iter().chain([0; FDS_PENDING_MAX]).collect::<Vec<_>>();
    for byte in bytes {
        send_some(&stream.as_fd().try_clone_to_owned().unwrap(), &[IoSlice::new(&[byte])], &[writer.as_fd()])
            .unwrap();
    }
    drop(writer);
    assert_eq!(socket.recv(late()).unwrap_err().kind(), ErrorKind::InvalidData);
    drop(socket);
    drop(stream);
    assert!(!is_open(&reader), "all of them are closed");
}

#[test]
fn a_frame_may_arrive_byte_by_byte() {
    let (socket, mut stream) = with_stream();
    let mut bytes = FrameHeader::new(5, 0, 20).unwrap().encode().to_vec();
    bytes.extend(0..20);
    for (i, byte) in bytes.iter().enumerate() {
        assert_eq!(socket.try_recv().unwrap_err().kind(), ErrorKind::WouldBlock, "after {i} bytes");
        stream.write_all(&[*byte]).unwrap();
    }
    let frame = socket.recv(late()).unwrap();
    assert_eq!((frame.verb, frame.body), (5, (0..20).collect::<Vec<u8>>()));
}

#[test]
fn the_largest_frame_passes_and_larger_ones_do_not() {
    let (one, other) = LocalSocket::pair().unwrap();
    let body: Vec<u8> = (0..FRAME_BYTES_MAX).map(|i| (i >> 5) as u8).collect();
    thread::scope(|scope| {
        let (reader, writer) = std::io::pipe().unwrap();
        let (one, body) = (&one, &body);
        scope.spawn(move || {
            one.send(1, 0, body, &[writer.as_fd()]).unwrap();
            one.send(2, 0, b"next", &[]).unwrap();
        });
        // Let the sender run into the full buffer first.
        thread::sleep(SOON);
        let frame = other.recv(late()).unwrap();
        assert!(frame.body == *body);
        assert!(is_open(&reader) && frame.fd.is_some());
        let next = other.recv(late()).unwrap();
        assert_eq!((next.verb, next.fd.is_none()), (2, true));
    });
    let refused = one.send(1, 0, &vec![0; FRAME_BYTES_MAX + 1], &[]).unwrap_err();
    assert!(refused.kind() == ErrorKind::InvalidInput && refused.to_string().contains("FRAME_BYTES_MAX"));
}

#[test]
fn a_peer_that_announces_too_much_is_refused() {
    let (socket, mut stream) = with_stream();
    stream.write_all(&[0xFF, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0]).unwrap();
    let refused = socket.recv(late()).unwrap_err();
    assert!(refused.kind() == ErrorKind::InvalidData && refused.to_string().contains("FRAME_BYTES_MAX"));
}

#[test]
fn a_receive_keeps_its_deadline_and_goes_on_later() {
    let (socket, mut stream) = with_stream();
    let header = FrameHeader::new(5, 0, 4).unwrap().encode();
    stream.write_all(&header[..6]).unwrap();
    let begun = Instant::now();
    assert_eq!(socket.recv(Some(begun + SOON)).unwrap_err().kind(), ErrorKind::TimedOut);
    assert!(begun.elapsed() >= SOON);
    stream.write_all(&header[6..]).unwrap();
    stream.write_all(b"body").unwrap();
    assert_eq!(socket.recv_spin(SOON, Duration::from_secs(5)).unwrap().body, b"body");
}

#[test]
fn a_frame_that_began_must_be_whole_in_time_and_one_that_did_not_may_wait() {
    let (socket, mut stream) = with_stream();
    let header = FrameHeader::new(5, 0, 4).unwrap().encode();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| socket.recv_spin(Duration::ZERO, SOON));
        std::thread::sleep(SOON * 3);
        assert!(!waiting.is_finished(), "nothing began");
        stream.write_all(&header[..6]).unwrap();
        assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn a_send_keeps_its_deadline_and_a_half_sent_frame_ends_the_connection() {
    let (one, other) = LocalSocket::pair().unwrap();
    let begun = Instant::now();
    let refused = one.send_by(1, 0, &vec![0; FRAME_BYTES_MAX], &[], begun + SOON).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::TimedOut);
    assert!(begun.elapsed() < LATE);
    assert_eq!(one.send(1, 0, b"", &[]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(other.recv(late()).unwrap_err().kind(), ErrorKind::UnexpectedEof);
}

#[test]
fn hang_ups_are_noticed_and_what_was_sent_before_still_arrives() {
    let (one, other) = LocalSocket::pair().unwrap();
    assert!(!one.peer_hung_up().unwrap());
    other.send(1, 0, b"last words", &[]).unwrap();
    drop(other);
    assert!(one.peer_hung_up().unwrap());
    assert_eq!(one.recv(late()).unwrap().body, b"last words");
    assert_eq!(one.recv(None).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    assert_eq!(one.send(1, 0, b"?", &[]).unwrap_err().kind(), ErrorKind::UnexpectedEof, "and no SIGPIPE");

    let (socket, mut stream) = with_stream();
    stream.write_all(&[4, 0, 0]).unwrap();
    drop(stream);
    let broken = socket.recv(None).unwrap_err();
    assert!(broken.kind() == ErrorKind::UnexpectedEof && broken.to_string().contains("within a frame"));
}

#[test]
fn shutdown_wakes_a_waiting_thread() {
    let (one, _other) = LocalSocket::pair().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| one.recv(None));
        thread::sleep(SOON);
        one.shutdown();
        assert_eq!(waiting.join().unwrap().unwrap_err().kind(), ErrorKind::UnexpectedEof);
    });
}
