//! Answers on their way out: counted until their bytes are gone, refused or held back where too much waits.

use super::*;
use crate::access::Caller;
use crate::config::parse;
use crate::connections::caps::Caps;
use crate::connections::{ConnectionPlace, Connections, Door, Peer};
use futures_util::stream::iter;
use std::path::Path;
use std::task::Waker;

fn connection(connections: &Arc<Connections>, user: u32) -> ConnectionPlace {
    connections.admit(Door::Unix, Peer::User(user), |_| {}).unwrap()
}

fn connections() -> Arc<Connections> {
    let settings = parse(Path::new("test"), "").unwrap();
    Connections::new(Caps::of_settings(&settings, 40).unwrap())
}

/// An answer of these pieces.
fn leaving(answers: &Arc<Answers>, place: &ConnectionPlace, pieces: &[usize]) -> Leaving {
    let pieces: Vec<Result<Bytes, std::io::Error>> =
        pieces.iter().map(|bytes| Ok(Bytes::from(vec![7; *bytes]))).collect();
    let asking = place.asking(&Caller::nobody());
    let counted = asking.begin();
    Leaving::new(Body::from_stream(iter(pieces)), answers, asking, counted, None)
}

fn poll(leaving: &mut Leaving) -> Poll<Option<Frame<Bytes>>> {
    let frame = Pin::new(leaving).poll_frame(&mut Context::from_waker(Waker::noop()));
    frame.map(|frame| frame.map(|frame| frame.expect("no error of the body")))
}

fn data(frame: Poll<Option<Frame<Bytes>>>) -> Bytes {
    let Poll::Ready(Some(frame)) = frame else { panic!("it waits, or is over: {frame:?}") };
    frame.into_data().expect("data")
}

#[test]
fn a_piece_counts_until_the_last_of_its_bytes_is_gone() {
    let (connections, answers) = (connections(), Answers::new());
    let place = connection(&connections, 1);
    let mut answer = leaving(&answers, &place, &[1_000, 500]);
    let first = data(poll(&mut answer));
    let (head, rest) = (first.slice(..10), first.slice(10..));
    drop(first);
    let second = data(poll(&mut answer));
    assert_eq!(place.watch().unread.bytes(), 1_500);
    drop((head, second));
    assert_eq!(place.watch().unread.bytes(), 1_000, "as long as any of it is there");
    assert!(matches!(poll(&mut answer), Poll::Ready(None)));
    drop(answer);
    assert_eq!(place.watch().unread.bytes(), 1_000, "whatever became of the answer");
    drop(rest);
    assert_eq!(place.watch().unread.bytes(), 0);
    assert_eq!(place.watch().of_peer.unread_bytes.load(std::sync::atomic::Ordering::Relaxed), 0);
}

#[test]
fn an_answer_that_finds_no_room_says_so_and_nothing_more() {
    let (connections, answers) = (connections(), Answers::new());
    let place = connection(&connections, 1);
    let unread = &place.watch().unread;
    let number = unread.add(UNREAD_CONNECTION_BYTES_MAX - 10, 0);
    assert!(answers.admit(place.watch()).is_err(), "its next call is refused");
    let mut answer = leaving(&answers, &place, &[11, 5]);
    let Poll::Ready(Some(refused)) = poll(&mut answer) else { panic!("it says nothing") };
    let trailers = refused.into_trailers().expect("trailers");
    let status = Status::from_header_map(&trailers).expect("a status");
    assert_eq!(Error::from_status(&status).expect("ours").kind, ErrorKind::Limit);
    assert!(matches!(poll(&mut answer), Poll::Ready(None)) && answer.is_end_stream());
    assert_eq!(unread.bytes(), UNREAD_CONNECTION_BYTES_MAX - 10, "what was refused is not counted");
    unread.remove(number, UNREAD_CONNECTION_BYTES_MAX - 10);
    answers.admit(place.watch()).unwrap();
}

#[test]
fn a_stream_that_has_begun_waits_until_its_own_connection_has_room() {
    let (connections, answers) = (connections(), Answers::new());
    let (place, other) = (connection(&connections, 1), connection(&connections, 1));
    let mut answer = leaving(&answers, &place, &[8, 8]);
    let first = data(poll(&mut answer));
    let number = place.watch().unread.add(UNREAD_STREAMS_BYTES_MAX, 0);
    assert!(poll(&mut answer).is_pending());
    assert_eq!(data(poll(&mut leaving(&answers, &other, &[8]))).len(), 8, "another one goes on");
    place.watch().unread.remove(number, UNREAD_STREAMS_BYTES_MAX);
    assert_eq!(data(poll(&mut answer)).len(), 8);
    drop(first);
}
