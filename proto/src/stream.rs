//! The inline streams' messages as HTTP/2 bodies and back, without copying payload. Owns: gRPC's framing of these
//! messages. Must not know: sockets, slots, what a message means.
//!
//! On the wire it is plain gRPC: any peer generated from the same .proto understands it. tonic's own codec copies payload
//! into an encode buffer and out of a decode buffer; here the payload is a DATA frame of its own, and a message is decoded
//! from the received frames in place:
//!
//! ```text
//! DATA: flag, length, fields but the payload, payload's tag and length | DATA: payload | DATA: the next message ...
//! ```

use crate::limits::INLINE_MESSAGE_BYTES_MAX;
use crate::rope::{Rope, Taken};
use crate::wire;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::Stream;
use http_body::{Body, Frame};
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, encoded_len_varint,
    key_len,
};
use prost::{DecodeError, Message};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

/// Bytes before every gRPC message: is it compressed, and its length.
pub const PREFIX_BYTES: usize = 5;
/// The path of the Offload stream.
pub const OFFLOAD_PATH: &str = "/turnkv.v1.Pool/Offload";
/// The path of the Reload stream.
pub const RELOAD_PATH: &str = "/turnkv.v1.Pool/Reload";
/// Bytes of message heads that are allocated at a time.
const HEADS_BYTES: usize = 4 << 10;
/// The header of a status' machine-readable part.
const DETAILS: &str = "grpc-status-details-bin";

/// A message of an inline stream.
pub trait Piece: Message + Default + Unpin {
    /// The number of the field that travels without a copy, if there is one.
    const PAYLOAD_FIELD: Option<u32>;

    /// Takes that field's bytes out.
    fn take_payload(&mut self) -> Bytes {
        Bytes::new()
    }
}

impl Piece for wire::OffloadRequest {
    const PAYLOAD_FIELD: Option<u32> = Some(4);

    fn take_payload(&mut self) -> Bytes {
        std::mem::take(&mut self.payload)
    }
}

impl Piece for wire::OffloadReply {
    const PAYLOAD_FIELD: Option<u32> = None;
}

impl Piece for wire::ReloadRequest {
    const PAYLOAD_FIELD: Option<u32> = None;
}

impl Piece for wire::ReloadReply {
    const PAYLOAD_FIELD: Option<u32> = Some(3);

    fn take_payload(&mut self) -> Bytes {
        std::mem::take(&mut self.payload)
    }
}

/// A message that arrived.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Received<M> {
    /// It, less its payload.
    pub message: M,
    /// The payload, in the parts it came in.
    pub payload: Vec<Bytes>,
}

/// Which end of a call a body comes from: only a server's ends with a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Client,
    Server,
}

/// Messages on their way out, as the body of a request or response.
#[derive(Debug)]
pub struct Outgoing<S> {
    messages: S,
    sender: Sender,
    heads: BytesMut,
    /// Of the message whose head was sent last.
    payload: Bytes,
    ended: bool,
}

impl<S> Outgoing<S> {
    /// The body of a request. An error breaks the stream off.
    pub fn request(messages: S) -> Outgoing<S> {
        Outgoing::new(Sender::Client, messages)
    }

    /// The body of a response. It ends with a status: that all is well, or the first error.
    pub fn response(messages: S) -> Outgoing<S> {
        Outgoing::new(Sender::Server, messages)
    }

    fn new(sender: Sender, messages: S) -> Outgoing<S> {
        Outgoing { messages, sender, heads: BytesMut::new(), payload: Bytes::new(), ended: false }
    }

    fn end(&mut self, status: Status) -> Option<Result<Frame<Bytes>, Status>> {
        self.ended = true;
        if self.sender == Sender::Client {
            return (status.code() != Code::Ok).then_some(Err(status));
        }
        let mut trailers = MetadataMap::new().into_headers();
        Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers)))
    }
}

impl<M: Piece, S: Stream<Item = Result<M, Status>> + Unpin> Body for Outgoing<S> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let body = self.get_mut();
        if !body.payload.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut body.payload)))));
        }
        if body.ended {
            return Poll::Ready(None);
        }
        Poll::Ready(match ready!(Pin::new(&mut body.messages).poll_next(context)) {
            Some(Ok(message)) => {
                let (head, payload) = split(message, &mut body.heads);
                body.payload = payload;
                Some(Ok(Frame::data(head)))
            }
            Some(Err(status)) => body.end(status),
            None => body.end(Status::new(Code::Ok, "")),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

/// A message as what goes before its payload, and the payload, which is encoded last.
fn split<M: Piece>(mut message: M, heads: &mut BytesMut) -> (Bytes, Bytes) {
    let payload = message.take_payload();
    let field = M::PAYLOAD_FIELD.filter(|_| !payload.is_empty());
    let mut bytes = message.encoded_len();
    if let Some(field) = field {
        bytes += key_len(field) + encoded_len_varint(payload.len() as u64) + payload.len();
    }
    assert!(bytes <= INLINE_MESSAGE_BYTES_MAX, "pieces are made so that their messages fit");
    let head_bytes = PREFIX_BYTES + bytes - payload.len();
    if heads.capacity() < head_bytes {
        heads.reserve(head_bytes.max(HEADS_BYTES));
    }
    heads.put_u8(0);
    heads.put_u32(bytes as u32);
    message.encode_raw(heads);
    if let Some(field) = field {
        encode_key(field, WireType::LengthDelimited, heads);
        encode_varint(payload.len() as u64, heads);
    }
    debug_assert_eq!(heads.len(), head_bytes);
    (heads.split().freeze(), payload)
}

/// Messages on their way in, from the body of a request or response.
#[derive(Debug)]
pub struct Incoming<M> {
    body: tonic::body::Body,
    sender: Sender,
    received: Rope,
    /// Bytes of the message whose prefix was read last.
    due_bytes: Option<usize>,
    /// What the trailers said.
    status: Option<Status>,
    ended: bool,
    message: PhantomData<fn() -> M>,
}

impl<M: Piece> Incoming<M> {
    /// The messages of a request.
    #[must_use]
    pub fn request(body: tonic::body::Body) -> Incoming<M> {
        Incoming::new(Sender::Client, body)
    }

    /// The messages of a response that began with these headers.
    ///
    /// # Errors
    /// The headers say already that there are none.
    pub fn response(headers: MetadataMap, body: tonic::body::Body) -> Result<Incoming<M>, Status> {
        match read_status(headers) {
            Some(status) if status.code() != Code::Ok => Err(status),
            status => Ok(Incoming { status, ..Incoming::new(Sender::Server, body) }),
        }
    }

    fn new(sender: Sender, body: tonic::body::Body) -> Incoming<M> {
        let (received, message) = (Rope::default(), PhantomData);
        Incoming { body, sender, received, due_bytes: None, status: None, ended: false, message }
    }

    /// The next message; `None`: the stream ended as it should.
    ///
    /// # Errors
    /// What the server said instead, or what broke the stream.
    pub async fn message(&mut self) -> Result<Option<Received<M>>, Status> {
        loop {
            if let Some(message) = self.decode()? {
                return Ok(Some(message));
            }
            if self.ended {
                return self.end().map(|()| None);
            }
            match std::future::poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await {
                Some(frame) => match frame?.into_data() {
                    Ok(data) => self.received.push(data),
                    Err(frame) => {
                        let trailers = frame.into_trailers().ok().map(MetadataMap::from_headers);
                        self.status = trailers.and_then(read_status);
                    }
                },
                None => self.ended = true,
            }
        }
    }

    fn decode(&mut self) -> Result<Option<Received<M>>, Status> {
        if self.due_bytes.is_none() {
            let Some([flag, length @ ..]) = self.received.take_array::<PREFIX_BYTES>() else {
                return Ok(None);
            };
            if flag != 0 {
                return Err(Status::unimplemented(
                    "a compressed message: inline streams carry none, send them as they are",
                ));
            }
            let bytes = u32::from_be_bytes(length) as usize;
            if bytes > INLINE_MESSAGE_BYTES_MAX {
                let text =
                    format!("a message of {bytes} bytes: send at most {INLINE_MESSAGE_BYTES_MAX} at a time");
                return Err(Status::out_of_range(text));
            }
            self.due_bytes = Some(bytes);
        }
        let Some(bytes) = self.due_bytes.and_then(|bytes| self.received.take(bytes)) else {
            return Ok(None);
        };
        self.due_bytes = None;
        read_message(bytes).map(Some)
    }

    fn end(&mut self) -> Result<(), Status> {
        match self.status.take() {
            Some(status) if status.code() != Code::Ok => Err(status),
            None if self.sender == Sender::Server => {
                Err(Status::unavailable("the stream was cut: it ended without a status"))
            }
            _ if self.due_bytes.is_some() || !self.received.is_empty() => {
                Err(Status::invalid_argument("the stream ended within a message"))
            }
            _ => Ok(()),
        }
    }
}

/// Decodes a message as prost does, but for its payload, which stays where it is.
fn read_message<M: Piece>(mut bytes: Taken<'_>) -> Result<Received<M>, Status> {
    let malformed = |error: DecodeError| Status::invalid_argument(format!("not a message: {error}"));
    let mut received = Received::<M>::default();
    while bytes.has_remaining() {
        let (field, kind) = decode_key(&mut bytes).map_err(malformed)?;
        if Some(field) != M::PAYLOAD_FIELD || kind != WireType::LengthDelimited {
            let merged = received.message.merge_field(field, kind, &mut bytes, DecodeContext::default());
            merged.map_err(malformed)?;
            continue;
        }
        let payload_bytes = decode_varint(&mut bytes).map_err(malformed)?;
        received.payload = bytes
            .split(usize::try_from(payload_bytes).unwrap_or(usize::MAX))
            .ok_or_else(|| Status::invalid_argument("not a message: its payload is longer than it"))?;
    }
    Ok(received)
}

/// The status in a response's headers or trailers, if there is one.
fn read_status(mut headers: MetadataMap) -> Option<Status> {
    // tonic panics on details that are no base64.
    if headers.get_bin(DETAILS).is_some_and(|details| details.to_bytes().is_err()) {
        headers.remove_bin(DETAILS);
    }
    Status::from_header_map(&headers.into_headers())
}

#[cfg(test)]
mod tests;
