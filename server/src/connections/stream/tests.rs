//! The bytes of one connection: its end when the table says so, what it may send in one piece, and its place, which comes back.

use super::*;
use crate::access::Caller;
use crate::config::parse;
use crate::connections::caps::Caps;
use crate::connections::table::Connections;
use crate::connections::{Cause, Peer};
use crate::limits::{FIRST_REQUEST_MS_MAX, FRAME_MS_MAX, FRAME_UNCOUNTED_BYTES_MAX};
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn connections() -> Arc<Connections> {
    let settings = parse(Path::new("test"), "tcp = \"127.0.0.1:1\"\nmetrics = \"127.0.0.1:2\"\n").unwrap();
    Connections::new(Caps::of_settings(&settings, 40).unwrap())
}

/// A connection at a door, its other end, and what tells it to end.
fn stream(
    connections: &Arc<Connections>,
    door: Door,
    buffer: usize,
) -> (DoorStream<DuplexStream>, DuplexStream, Arc<Ended>) {
    let (ours, theirs) = tokio::io::duplex(buffer);
    let ended = Arc::new(Ended::default());
    let end = Arc::clone(&ended);
    let place = connections.admit(door, Peer::User(1), move |_: Cause| end.end()).unwrap();
    (DoorStream::new(ours, Seat::new(7, place, Arc::clone(&ended), Caller::nobody())), theirs, ended)
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = (payload.len() as u32).to_be_bytes();
    [&length[1..], &[kind, 0, 0, 0, 0, 0], payload].concat()
}

#[tokio::test]
async fn one_that_is_told_to_end_reads_the_end_and_writes_nothing_more() {
    let connections = connections();
    let (mut stream, mut peer, ended) = stream(&connections, Door::Http, 64);
    peer.write_all(b"abc").await.unwrap();
    let mut read = [0; 2];
    stream.read_exact(&mut read).await.unwrap();
    ended.end();
    assert_eq!(stream.read(&mut read).await.unwrap(), 0, "as if the peer had left");
    assert_eq!(stream.write(b"x").await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    drop(stream);
    assert_eq!(peer.read(&mut read).await.unwrap(), 0, "nothing was sent, and it is closed");
}

#[tokio::test]
async fn one_that_waits_is_woken_when_it_is_told_to_end() {
    let connections = connections();
    let (mut stream, _peer, ended) = stream(&connections, Door::Unix, 64);
    let waits = tokio::spawn(async move { stream.read(&mut [0; 8]).await });
    tokio::task::yield_now().await;
    ended.end();
    let read = tokio::time::timeout(std::time::Duration::from_secs(10), waits).await;
    assert_eq!(read.expect("it is woken").unwrap().unwrap(), 0);
}

#[tokio::test]
async fn a_goaway_is_seen_however_the_pieces_leave() {
    let goaway = frame(7, &[&[0; 4][..], &11u32.to_be_bytes(), b"slow down"].concat());
    let bytes = [frame(4, &[]), frame(0, &[9; 40]), goaway].concat();
    for room in [1, 3, 7, 16, 64, 1_000] {
        let connections = connections();
        let (mut stream, mut peer, _ended) = stream(&connections, Door::Tcp, room);
        let sent = bytes.clone();
        let reads = tokio::spawn(async move {
            let mut all = Vec::new();
            peer.read_to_end(&mut all).await.map(|_| all)
        });
        let mut left: &[u8] = &sent;
        while !left.is_empty() {
            // Two pieces of which the second is often cut short.
            let (one, other) = left.split_at(left.len().div_ceil(2));
            let pieces = [io::IoSlice::new(one), io::IoSlice::new(other)];
            let count = stream.write_vectored(&pieces).await.unwrap();
            left = &left[count..];
        }
        assert!(stream.http2.as_ref().is_some_and(|http2| http2.outgoing.is_told()), "in pieces of {room}");
        drop(stream);
        assert_eq!(reads.await.unwrap().unwrap(), bytes, "and what is sent is what was given");
    }
}

#[tokio::test]
async fn what_arrives_is_timed_from_a_frames_begin_to_its_end() {
    let connections = connections();
    let (mut stream, mut peer, _ended) = stream(&connections, Door::Unix, 1 << 16);
    let mut buffer = vec![0; 1 << 16];
    peer.write_all(PREFACE).await.unwrap();
    let read = stream.read(&mut buffer).await.unwrap();
    assert_eq!(&buffer[..read], PREFACE);
    let watch = Arc::clone(stream.seat.place.watch());
    assert_eq!(watch.stalled_since(), None);
    let settings = frame(4, &[0; 12]);
    peer.write_all(&settings[..10]).await.unwrap();
    stream.read_exact(&mut buffer[..10]).await.unwrap();
    let since = watch.stalled_since().expect("a frame has begun");
    let late = |after: u64| Connections::late(&watch, since + after);
    assert_eq!((late(FRAME_MS_MAX - 1), late(FRAME_MS_MAX)), (None, Some(Cause::Stalled)));
    peer.write_all(&settings[10..]).await.unwrap();
    stream.read_exact(&mut buffer[..settings.len() - 10]).await.unwrap();
    assert_eq!((watch.stalled_since(), late(FIRST_REQUEST_MS_MAX)), (None, Some(Cause::Silent)));
}

/// Of a frame that needs room of its own no more is read before it has that than any connection may leave half sent.
#[tokio::test]
async fn a_large_frame_waits_for_room_and_small_ones_do_not() {
    let connections = connections();
    let (mut stream, mut peer, _ended) = stream(&connections, Door::Tcp, 4 << 20);
    let large = frame(0, &vec![1; 1 << 20]);
    peer.write_all(&[PREFACE, &large].concat()).await.unwrap();
    let mut buffer = vec![0; 2 << 20];
    let first = stream.read(&mut buffer).await.unwrap();
    assert!(first <= FRAME_UNCOUNTED_BYTES_MAX, "{first} bytes came before there was room");
    let mut all = first;
    while all < PREFACE.len() + large.len() {
        all += stream.read(&mut buffer).await.unwrap();
    }
    assert_eq!(all, PREFACE.len() + large.len());
}

#[tokio::test]
async fn a_place_comes_back_when_its_connection_is_dropped() {
    let connections = connections();
    let cap = connections.caps().of_peer(Door::Tcp);
    let held: Vec<_> = (0..cap).map(|_| stream(&connections, Door::Tcp, 64)).collect();
    let more = || connections.admit(Door::Tcp, Peer::User(1), |_| {});
    assert!(more().is_err());
    assert_eq!(held[0].0.asking().peer(), (Peer::User(1), 7));
    drop(held);
    assert!(more().is_ok());
}
