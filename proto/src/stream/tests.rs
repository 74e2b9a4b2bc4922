//! Both directions against tonic's own understanding of the wire: any split of the bytes, any message, any nonsense.

use super::{Incoming, Outgoing, Piece, Received, split};
use crate::limits::INLINE_MESSAGE_BYTES_MAX;
use crate::wire;
use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use prost::Message;
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

/// A body of these frames.
struct Given(VecDeque<Frame<Bytes>>);

impl Body for Given {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.pop_front().map(Ok))
    }
}

/// What never waits.
fn now<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("nothing here waits"),
    }
}

fn cut(bytes: &[u8], every: usize) -> VecDeque<Frame<Bytes>> {
    bytes.chunks(every).map(|part| Frame::data(Bytes::copy_from_slice(part))).collect()
}

/// A message as every generated peer encodes it.
fn encoded(message: &impl Message) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend((message.encoded_len() as u32).to_be_bytes());
    bytes.extend(message.encode_to_vec());
    bytes
}

fn request<M: Piece>(frames: VecDeque<Frame<Bytes>>) -> Incoming<M> {
    Incoming::request(tonic::body::Body::new(Given(frames)))
}

fn replies() -> Vec<wire::ReloadReply> {
    let reply = |index, payload: Vec<u8>| wire::ReloadReply {
        index,
        offset: 77,
        payload: payload.into(),
        checksum: 5,
        tier: 1,
        miss: 2,
    };
    let sizes = [0, 1, 100, 127, 128, 4_095, 4_096, 70_000];
    sizes.iter().zip(0..).map(|(size, index)| reply(index, vec![index as u8; *size])).collect()
}

#[test]
fn messages_of_other_peers_are_read_however_they_are_cut() {
    let sent = replies();
    let bytes: Vec<u8> = sent.iter().flat_map(encoded).collect();
    for every in [1, 2, 5, 7, 4_096, 5_000, 16_384, bytes.len()] {
        let mut incoming = request::<wire::ReloadReply>(cut(&bytes, every));
        for message in &sent {
            let received = now(incoming.message()).unwrap().unwrap();
            let payload = received.payload.concat().into();
            assert_eq!(wire::ReloadReply { payload, ..received.message }, *message, "cut every {every}");
        }
        assert_eq!(now(incoming.message()).unwrap(), None);
    }
}

#[test]
fn other_peers_read_what_is_sent_and_payload_is_not_copied() {
    let mut heads = BytesMut::new();
    for message in replies() {
        let (head, payload) = split(message.clone(), &mut heads);
        assert_eq!(payload.as_ptr(), message.payload.as_ptr());
        let whole = [&head[..], &payload[..]].concat();
        assert_eq!(whole[..5], encoded(&message)[..5]);
        assert_eq!(wire::ReloadReply::decode(&whole[5..]).unwrap(), message);
    }
    let commit = wire::OffloadRequest { commit: true, checksums: vec![1, 2], ..Default::default() };
    assert_eq!(split(commit.clone(), &mut heads).0, encoded(&commit));
    let reply = wire::OffloadReply { commit: Some(wire::CommitOffloadReply::default()), begin: None };
    assert_eq!(split(reply.clone(), &mut heads).0, encoded(&reply));
}

#[test]
fn received_payload_is_not_copied() {
    let message = replies().pop().unwrap();
    let (head, payload) = split(message, &mut BytesMut::new());
    let parts = [payload.slice(..40_000), payload.slice(40_000..)];
    let frames = [head, parts[0].clone(), parts[1].clone()].map(Frame::data);
    let read = now(request::<wire::ReloadReply>(frames.into()).message()).unwrap().unwrap();
    assert!(read.payload.iter().map(|part| part.as_ptr()).eq(parts.iter().map(|part| part.as_ptr())));
}

#[test]
fn nonsense_is_refused_with_what_to_do() {
    let refused = |bytes: &[u8]| {
        let mut incoming = request::<wire::OffloadRequest>(cut(bytes, 3));
        now(async {
            while incoming.message().await?.is_some() {}
            Ok::<(), Status>(())
        })
        .unwrap_err()
    };
    assert_eq!(refused(&[1, 0, 0, 0, 0]).code(), Code::Unimplemented);
    let large = (INLINE_MESSAGE_BYTES_MAX as u32 + 1).to_be_bytes();
    assert_eq!(refused(&[&[0], &large[..]].concat()).code(), Code::OutOfRange);
    assert_eq!(refused(&[0, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]).code(), Code::InvalidArgument);
    assert_eq!(refused(&[0, 0, 0, 0, 3, 0x22, 9, 1]).code(), Code::InvalidArgument, "a payload beyond all");
    assert_eq!(refused(&[0, 0, 0, 0, 9, 1]).code(), Code::InvalidArgument, "ends within a message");
    assert_eq!(refused(&[0, 0, 0]).code(), Code::InvalidArgument, "ends within a prefix");
}

fn response_of(frames: Vec<Frame<Bytes>>) -> Result<Option<Received<wire::ReloadReply>>, Status> {
    let body = tonic::body::Body::new(Given(frames.into()));
    now(Incoming::response(MetadataMap::new(), body)?.message())
}

#[test]
fn a_response_ends_with_its_status() {
    let well: [Result<wire::ReloadReply, Status>; 0] = [];
    let ill = [Err(Status::not_found("no such page"))];
    let trailers = |messages: Vec<Result<wire::ReloadReply, Status>>| {
        let mut body = Outgoing::response(futures_util::stream::iter(messages));
        let frame = now(std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)));
        assert!(now(std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context))).is_none());
        frame.unwrap().unwrap()
    };
    assert_eq!(response_of(vec![trailers(well.into())]).unwrap(), None);
    let status = response_of(vec![trailers(ill.into())]).unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "no such page"));
    assert_eq!(response_of(vec![]).unwrap_err().code(), Code::Unavailable, "cut off");
    let mut bad = MetadataMap::new().into_headers();
    bad.insert("grpc-status", "5".parse().unwrap());
    bad.insert("grpc-status-details-bin", "~~~".parse().unwrap());
    assert_eq!(response_of(vec![Frame::trailers(bad)]).unwrap_err().code(), Code::NotFound);
}

/// What a stream of messages comes to: those that were whole, with their payloads, and how it ended.
type Outcome<M> = (Vec<(M, Vec<u8>)>, Result<(), Code>);

fn read_all<M: Piece + Clone>(frames: VecDeque<Frame<Bytes>>) -> Outcome<M> {
    let mut incoming = request::<M>(frames);
    let mut read = Vec::new();
    let end = now(async {
        while let Some(received) = incoming.message().await? {
            read.push((received.message, received.payload.concat()));
        }
        Ok::<(), Status>(())
    });
    (read, end.map_err(|status| status.code()))
}

/// The same as prost understands it, from all bytes at once.
fn plainly<M: Piece + Clone>(mut bytes: &[u8]) -> (Vec<(M, Vec<u8>)>, bool) {
    let mut read = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<5>() {
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let Some((body, rest)) = rest.split_at_checked(len).filter(|_| head[0] == 0) else {
            return (read, false);
        };
        let Ok(mut message) = M::decode(body) else { return (read, false) };
        let payload = message.take_payload().to_vec();
        read.push((message, payload));
        bytes = rest;
    }
    (read, bytes.is_empty())
}

/// Damaged streams are read as far as another peer's decoder reads them, however they are cut, and end with an error that the
/// caller can act on.
fn fuzz<M: Piece + Clone + PartialEq>(runs: u64, messages: &[M]) {
    let whole: Vec<Vec<u8>> = messages.iter().map(encoded).collect();
    turnkv_mutate::each_seed(runs, |random| {
        let mut bytes = Vec::new();
        for message in &whole {
            let body = match random.below(3) {
                0 => message[5..].to_vec(),
                1 => turnkv_mutate::mutate_message(random, &message[5..]),
                _ => turnkv_mutate::mutate_bytes(random, &message[5..]),
            };
            bytes.push(0);
            bytes.extend((body.len() as u32).to_be_bytes());
            bytes.extend(body);
        }
        if random.one_in(2) {
            bytes = turnkv_mutate::mutate_bytes(random, &bytes);
        }
        let (wanted, ends_well) = plainly::<M>(&bytes);
        for every in [1 + random.below(20), 1 + random.below(5_000), bytes.len().max(1)] {
            let (read, end) = read_all::<M>(cut(&bytes, every));
            assert!(read == wanted, "cut every {every}: {} messages, not {}", read.len(), wanted.len());
            assert_eq!(end.is_ok(), ends_well, "cut every {every}: {end:?}");
            let clear = [Code::InvalidArgument, Code::OutOfRange, Code::Unimplemented];
            assert!(end.is_ok() || end.is_err_and(|code| clear.contains(&code)), "{end:?}");
        }
    });
}

#[test]
fn damaged_streams_are_read_as_other_peers_read_them() {
    let replies: Vec<wire::ReloadReply> =
        replies().into_iter().filter(|reply| reply.payload.len() < 5_000).collect();
    fuzz(300, &replies);
    let begin = wire::BeginOffloadRequest {
        namespace: vec![1; 32].into(),
        hashes: vec![2; 320].into(),
        session: "chat".to_owned(),
        ..Default::default()
    };
    let piece = |index, payload: Vec<u8>| wire::OffloadRequest {
        index,
        offset: 5,
        payload: payload.into(),
        ..Default::default()
    };
    let requests = [
        wire::OffloadRequest { begin: Some(begin), ..Default::default() },
        piece(0, vec![3; 100]),
        piece(1, vec![4; 4_500]),
        wire::OffloadRequest { commit: true, checksums: vec![1, u64::MAX, 7], ..Default::default() },
    ];
    fuzz(300, &requests);
}
