//! Requests on their way in: what of them counts, for how long, and what ends one that takes too much or too long.

use super::*;
use crate::config::parse;
use crate::connections::caps::Caps;
use crate::connections::{ConnectionPlace, Connections, Door, Peer};
use crate::limits::UNFINISHED_CONNECTION_BYTES_MAX;
use futures_util::stream::iter;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::task::Waker;

#[test]
fn messages_end_where_they_end_however_they_arrive() {
    let mut bytes = Vec::new();
    for length in [0u32, 1, 7, 300] {
        bytes.push(0);
        bytes.extend(length.to_be_bytes());
        bytes.resize(bytes.len() + length as usize, 9);
    }
    for piece in [1, 2, 5, 6, 64, 1_000] {
        let mut messages = Messages::default();
        let ended = bytes.chunks(piece).filter(|piece| messages.pass(piece)).count();
        assert!(messages.is_between() && messages.any);
        assert_eq!(ended, if piece == 1_000 { 1 } else { ended });
        assert!(!messages.pass(&[0, 0, 0, 0, 9, 1]) && !messages.is_between());
        assert_eq!(messages.bytes, 6);
    }
}

fn connection() -> ConnectionPlace {
    let settings = parse(Path::new("test"), "").unwrap();
    let connections = Connections::new(Caps::of_settings(&settings, 40).unwrap());
    connections.admit(Door::Unix, Peer::User(1), |_| {}).unwrap()
}

fn message(bytes: usize) -> Vec<u8> {
    [&[0][..], &(bytes as u32).to_be_bytes(), &vec![9; bytes]].concat()
}

/// A request that arrives in these pieces.
fn arriving(place: &ConnectionPlace, is_stream: bool, pieces: Vec<Vec<u8>>) -> Arriving {
    let pieces = pieces.into_iter().map(|piece| Ok::<Bytes, std::io::Error>(piece.into()));
    let share = RequestShare::new(&Budget::new(), place.watch());
    Arriving::new(Body::from_stream(iter(pieces)), is_stream, Arc::new(share))
}

type Polled = Poll<Option<Result<http_body::Frame<Bytes>, Status>>>;

fn poll(arriving: &mut Arriving) -> Polled {
    Pin::new(arriving).poll_frame(&mut Context::from_waker(Waker::noop()))
}

fn refusal(polled: Polled) -> Error {
    let Poll::Ready(Some(Err(status))) = polled else { panic!("it is not refused") };
    Error::from_status(&status).expect("ours")
}

fn counted(place: &ConnectionPlace) -> u64 {
    place.watch().unfinished_bytes.load(Ordering::Relaxed)
}

#[test]
fn one_message_counts_twice_once_it_is_whole_until_its_answer_begins() {
    let place = connection();
    let (head, rest) = {
        let mut all = message(100);
        let rest = all.split_off(40);
        (all, rest)
    };
    let mut request = arriving(&place, false, vec![head, rest]);
    assert!(poll(&mut request).is_ready());
    assert_eq!(counted(&place), 40);
    assert!(poll(&mut request).is_ready());
    assert_eq!(counted(&place), 2 * 105, "what is made of it is as large");
    assert!(matches!(poll(&mut request), Poll::Ready(None)));
    assert_eq!(counted(&place), 2 * 105, "it waits for its answer");
    drop(request);
    assert_eq!(counted(&place), 0);
}

#[test]
fn messages_of_a_stream_count_until_each_is_whole() {
    let place = connection();
    let mut bytes = [message(100), message(50)].concat();
    let last = bytes.split_off(150);
    let mut request = arriving(&place, true, vec![bytes[..60].to_vec(), bytes[60..].to_vec(), last]);
    for after in [60, 0, 0] {
        assert!(poll(&mut request).is_ready());
        assert_eq!(counted(&place), after);
    }
}

#[test]
fn a_request_that_takes_too_much_is_refused_and_nothing_more_of_it_is_read() {
    let place = connection();
    let large = vec![0; UNFINISHED_CONNECTION_BYTES_MAX as usize + 1];
    let mut request = arriving(&place, false, vec![large, vec![0; 10]]);
    assert_eq!(refusal(poll(&mut request)).kind, ErrorKind::Limit);
    assert!(matches!(poll(&mut request), Poll::Ready(None)) && request.is_end_stream());
    assert_eq!(counted(&place), 0, "what was refused is not counted");
}

/// Between the messages of a stream nothing must come; before the first one, and within one, the rest must.
#[tokio::test]
async fn what_does_not_arrive_whole_in_time_is_cut_off() {
    let place = connection();
    let cases = [
        (false, vec![]),
        (false, message(9)[..7].to_vec()),
        (true, vec![]),
        (true, message(9)[..7].to_vec()),
    ];
    for (is_stream, first) in cases {
        let first = iter((!first.is_empty()).then(|| Ok::<Bytes, std::io::Error>(first.clone().into())));
        let body = Body::from_stream(futures_util::StreamExt::chain(first, futures_util::stream::pending()));
        let share = RequestShare::new(&Budget::new(), place.watch());
        let mut request = Arriving::new(body, is_stream, Arc::new(share));
        while poll(&mut request).is_ready() {}
        request.late = None;
        // By far too late: a timer that is over by a millisecond only waits for the runtime's next look at its clock.
        request.began -= Duration::from_millis(2 * MESSAGE_MS_MAX);
        assert_eq!(refusal(poll(&mut request)).kind, ErrorKind::Limit);
    }
    let whole = iter([Ok::<Bytes, std::io::Error>(message(9).into())]);
    let body = Body::from_stream(futures_util::StreamExt::chain(whole, futures_util::stream::pending()));
    let share = RequestShare::new(&Budget::new(), place.watch());
    let mut stream = Arriving::new(body, true, Arc::new(share));
    assert!(poll(&mut stream).is_ready());
    stream.began -= Duration::from_millis(2 * MESSAGE_MS_MAX);
    assert!(poll(&mut stream).is_pending(), "its caller may think as long as it likes");
}
