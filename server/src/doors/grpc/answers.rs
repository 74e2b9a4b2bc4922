//! What every gRPC answer passes on its way out: it is counted until its peer has taken it. Owns: the budgets of a connection
//! and of all, and the body that keeps them. Must not know: what an answer says.
//!
//! The server makes the next piece of every answer at once, whether its peer opens a window for it or not, and keeps it. So each
//! piece counts from when it is made until the last of its bytes is in the socket. While a connection has no room for the
//! largest answer, its requests are refused; an answer that finds no room says so instead; a stream that has begun waits until
//! its own connection has room. A peer that leaves one for too long is cut off (see [`crate::connections`]), so what it held
//! comes back.

use super::budget::Total;
use super::inline_streams::InlineStream;
use crate::connections::asking::{Asking, Request as Counted};
use crate::connections::watch::Watch;
use crate::limits::{
    UNREAD_BYTES_MAX, UNREAD_CONNECTION_BYTES_MAX, UNREAD_LITTLE_BYTES, UNREAD_STREAMS_BYTES_MAX,
};
use axum::body::{Body, Bytes, HttpBody};
use http_body::Frame;
use metrics::{Counter, counter, describe_counter, describe_gauge, gauge};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::metadata::MetadataMap;
use turnkv_proto::limits::GRPC_ANSWER_BYTES_MAX;
use turnkv_proto::{Error, ErrorKind};

/// The budget of all connections.
pub(crate) struct Answers {
    total: Total,
    refused: Counter,
}

impl Answers {
    /// Nothing waits.
    pub(crate) fn new() -> Arc<Answers> {
        describe_gauge!(
            "turnkv_answers_unread_bytes",
            "Bytes of gRPC answers that their callers have not taken yet"
        );
        describe_gauge!("turnkv_answers_limit_bytes", "What all connections together may have of these");
        describe_counter!(
            "turnkv_answers_refused_total",
            "Calls refused, and answers cut off, because their callers left too many unread"
        );
        gauge!("turnkv_answers_limit_bytes").set(UNREAD_BYTES_MAX as f64);
        Arc::new(Answers {
            total: Total::new(UNREAD_BYTES_MAX, UNREAD_LITTLE_BYTES, gauge!("turnkv_answers_unread_bytes")),
            refused: counter!("turnkv_answers_refused_total"),
        })
    }

    /// See [`Total::burst_has_passed`].
    pub(crate) fn burst_has_passed(&self) -> bool {
        self.total.burst_has_passed()
    }

    /// A call begins: its connection must have room for the largest answer.
    pub(super) fn admit(&self, watch: &Watch) -> Result<(), Error> {
        if watch.unread.bytes() + GRPC_ANSWER_BYTES_MAX as u64 <= UNREAD_CONNECTION_BYTES_MAX {
            return Ok(());
        }
        Err(self.refuse("on one connection", UNREAD_CONNECTION_BYTES_MAX))
    }

    /// Counts a piece of an answer; its bytes carry the count with them. The first piece of an answer must find room on its
    /// connection, a later one has waited for it.
    fn count(self: &Arc<Self>, asking: &Asking, data: Bytes, first: bool) -> Result<Bytes, Error> {
        let (watch, bytes) = (asking.watch(), data.len() as u64);
        let then_bytes = watch.unread.bytes() + bytes;
        if first && then_bytes > UNREAD_CONNECTION_BYTES_MAX {
            return Err(self.refuse("on one connection", UNREAD_CONNECTION_BYTES_MAX));
        }
        self.total
            .take(bytes, then_bytes, &watch.of_peer.unread_bytes)
            .map_err(|full| self.refuse(full.whose, full.bytes_max))?;
        let number = watch.unread.add(bytes, asking.now());
        let (answers, watch) = (Arc::clone(self), Arc::clone(watch));
        Ok(Bytes::from_owner(Piece { data, number, answers, watch }))
    }

    fn refuse(&self, place: &str, most: u64) -> Error {
        self.refused.increment(1);
        let text = format!(
            "{} MiB of answers {place} wait to be read: read them, or ask for less at a time",
            most >> 20
        );
        Error::new(ErrorKind::Limit, text)
    }
}

/// Bytes of an answer, counted until the last reference to them is gone.
struct Piece {
    data: Bytes,
    number: u64,
    answers: Arc<Answers>,
    watch: Arc<Watch>,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        let bytes = self.data.len() as u64;
        self.watch.unread.remove(self.number, bytes);
        self.answers.total.give_back(bytes, &self.watch.of_peer.unread_bytes);
    }
}

/// An answer's body on its way out: the request is in service as long as it is.
pub(super) struct Leaving {
    body: Body,
    answers: Arc<Answers>,
    asking: Asking,
    /// A piece of it was made.
    begun: bool,
    /// It found no room, and has said so.
    refused: bool,
    _counted: Counted,
    _inline: Option<InlineStream>,
}

impl Leaving {
    pub(super) fn new(
        body: Body,
        answers: &Arc<Answers>,
        asking: Asking,
        counted: Counted,
        inline: Option<InlineStream>,
    ) -> Leaving {
        let answers = Arc::clone(answers);
        Leaving { body, answers, asking, begun: false, refused: false, _counted: counted, _inline: inline }
    }

    /// Ends the answer with why there is no more of it.
    fn refuse(&mut self, error: Error) -> Result<Frame<Bytes>, axum::Error> {
        self.refused = true;
        self.body = Body::empty(); // what it was made of is of no use any more
        let mut trailers = MetadataMap::new().into_headers();
        Status::from(error).add_header(&mut trailers).map_err(axum::Error::new)?;
        Ok(Frame::trailers(trailers))
    }
}

impl HttpBody for Leaving {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let leaving = self.get_mut();
        if leaving.refused {
            return Poll::Ready(None);
        }
        if leaving.begun {
            ready!(leaving.asking.watch().unread.poll_room(UNREAD_STREAMS_BYTES_MAX, context));
        }
        let frame = match ready!(Pin::new(&mut leaving.body).poll_frame(context)) {
            Some(Ok(frame)) => frame,
            end => return Poll::Ready(end),
        };
        Poll::Ready(Some(match frame.into_data() {
            Ok(data) if data.is_empty() => Ok(Frame::data(data)),
            Ok(data) => match leaving.answers.count(&leaving.asking, data, !leaving.begun) {
                Ok(data) => {
                    leaving.begun = true;
                    Ok(Frame::data(data))
                }
                Err(error) => leaving.refuse(error),
            },
            Err(frame) => Ok(frame),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.refused || self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
