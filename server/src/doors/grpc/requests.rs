//! What every gRPC request passes: its caller may make it, it is counted, timed, and bounded while it arrives. Owns: these, as one
//! layer in front of all services. Must not know: what a request says, but where its messages begin and end.
//!
//! A request's bytes count against the budgets from their arrival until its answer begins (of a stream: until each message is
//! whole), and must all arrive within a bound. So a peer that leaves requests half sent has a bounded part of the memory, and
//! that for a bounded time.

use super::answers::{Answers, Leaving};
use super::budget::{Budget, RequestShare};
use super::inline_streams::InlineStreams;
use crate::access::{Guest, Guests, TenantOf};
use crate::connections::Door;
use crate::connections::asking::Asking;
use crate::doors::calls::CallSeconds;
use crate::doors::needs::rule_of_method;
use crate::doors::unreadable::in_own_words;
use crate::engine::Engine;
use crate::limits::MESSAGE_MS_MAX;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::Sleep;
use tonic::Status;
use turnkv_proto::stream::{OFFLOAD_PATH, PREFIX_BYTES};
use turnkv_proto::wire::Method;
use turnkv_proto::{Error, ErrorKind};

/// Paths of streams of several messages begin so; every other request is one message.
const STREAMS: [&str; 2] = [OFFLOAD_PATH, "/grpc.reflection."];

/// What requests share.
#[derive(Clone)]
pub(super) struct Requests {
    calls: Arc<CallSeconds>,
    budget: Arc<Budget>,
    answers: Arc<Answers>,
    inline: InlineStreams,
    unix: Guests,
    tcp: Guests,
}

impl Requests {
    pub(super) fn new(
        engine: &Arc<Engine>,
        calls: &Arc<CallSeconds>,
        budget: &Arc<Budget>,
        answers: &Arc<Answers>,
    ) -> Requests {
        let guests = |door: Door| Guests::new(door.name(), Arc::clone(engine) as Arc<dyn TenantOf>);
        Requests {
            unix: guests(Door::Unix),
            tcp: guests(Door::Tcp),
            calls: Arc::clone(calls),
            budget: Arc::clone(budget),
            answers: Arc::clone(answers),
            inline: InlineStreams::new(),
        }
    }

    /// Whether a caller may ask this at all. What is no verb of ours needs nothing: health and reflection are for whoever is
    /// connected, and a method that does not exist is not found.
    fn guest(&self, path: &str, asking: &Asking) -> Result<Option<Guest>, Error> {
        let Some(method) = Method::at(path) else { return Ok(None) };
        let guests = if asking.door() == Door::Tcp { &self.tcp } else { &self.unix };
        let (need, reach) = rule_of_method(method);
        let guest = guests.admit(asking.caller(), need, method.name())?;
        reach.check(asking.door(), method.name())?;
        Ok(Some(guest))
    }
}

/// The layer.
pub(super) async fn pass(State(requests): State<Requests>, request: Request, next: Next) -> Response {
    let Some(asking) = request.extensions().get::<Asking>().cloned() else {
        // Every connection of this door has one.
        return Status::from(Error::new(ErrorKind::Internal, "a request without a connection")).into_http();
    };
    let counted = asking.begin();
    let path = request.uri().path();
    let admitted = requests.guest(path, &asking).and_then(|guest| {
        requests.answers.admit(asking.watch())?;
        Ok((guest, requests.inline.open(path, &asking)?))
    });
    let (guest, inline) = match admitted {
        Ok(admitted) => admitted,
        Err(error) => return Status::from(error).into_http(),
    };
    // An inline Offload answers before it has done anything: it times itself.
    let seconds = requests.calls.grpc(path).filter(|_| path != OFFLOAD_PATH);
    let is_stream = STREAMS.iter().any(|stream| path.starts_with(stream));
    let share = Arc::new(RequestShare::new(&requests.budget, asking.watch()));
    let began = Instant::now();
    let mut request = request.map(|body| Body::new(Arriving::new(body, is_stream, Arc::clone(&share))));
    if let Some(guest) = guest {
        request.extensions_mut().insert(guest);
    }
    let response = as_callers_fault(next.run(request).await);
    if let Some(seconds) = seconds {
        seconds.record(began.elapsed());
    }
    drop(share);
    response.map(|body| Body::new(Leaving::new(body, &requests.answers, asking, counted, inline)))
}

/// Of what cannot be read the caller is told in this server's words, and that it is the caller's to mend.
fn as_callers_fault(response: Response) -> Response {
    let status = Status::from_header_map(response.headers());
    status.and_then(|status| in_own_words(&status)).map_or(response, Status::into_http)
}

/// A request's body on its way in.
struct Arriving {
    body: Body,
    is_stream: bool,
    share: Arc<RequestShare>,
    messages: Messages,
    began: tokio::time::Instant,
    /// Made when the body is first waited for.
    late: Option<Pin<Box<Sleep>>>,
    refused: bool,
}

impl Arriving {
    fn new(body: Body, is_stream: bool, share: Arc<RequestShare>) -> Arriving {
        let (messages, began) = (Messages::default(), tokio::time::Instant::now());
        Arriving { body, is_stream, share, messages, began, late: None, refused: false }
    }

    fn arrived(&mut self, data: &Bytes) -> Result<(), Error> {
        let was_between = self.messages.is_between();
        let ended = self.messages.pass(data);
        let bytes = self.messages.bytes;
        self.share.take(data.len() as u64, bytes)?;
        if ended && !self.is_stream {
            self.share.take(bytes, bytes)?; // what is made of it is as large, and there as long
        }
        if self.is_stream && (ended || was_between) {
            if ended {
                self.share.give_back();
            }
            (self.began, self.late) = (tokio::time::Instant::now(), None);
        }
        Ok(())
    }

    /// Whether more must come by a deadline: between the messages of a stream nothing must, before the first one it must.
    fn is_due(&self) -> bool {
        !(self.is_stream && self.messages.is_between() && self.messages.any)
    }

    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<Error> {
        if !self.is_due() {
            return Poll::Pending;
        }
        let end = self.began + Duration::from_millis(MESSAGE_MS_MAX);
        let late = self.late.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        late.as_mut().poll(context).map(|()| {
            self.share.late();
            let text =
                format!("the request did not arrive whole within {} s: it is cut off", MESSAGE_MS_MAX / 1000);
            Error::new(ErrorKind::Limit, text)
        })
    }
}

impl HttpBody for Arriving {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let arriving = self.get_mut();
        if arriving.refused {
            return Poll::Ready(None);
        }
        let refusal = match Pin::new(&mut arriving.body).poll_frame(context) {
            Poll::Pending => match arriving.poll_late(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(error) => error.into(),
            },
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => Status::from_error(error.into()),
            Poll::Ready(Some(Ok(frame))) => match frame.data_ref().map(|data| arriving.arrived(data)) {
                None | Some(Ok(())) => return Poll::Ready(Some(Ok(frame))),
                Some(Err(error)) => error.into(),
            },
        };
        arriving.refused = true;
        Poll::Ready(Some(Err(refusal)))
    }

    fn is_end_stream(&self) -> bool {
        self.refused || self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

/// Where gRPC's messages end in what arrives.
#[derive(Default)]
struct Messages {
    prefix: [u8; PREFIX_BYTES],
    prefix_len: usize,
    /// Of the message, not here yet.
    left: u64,
    /// Of the message, here.
    bytes: u64,
    /// One was whole.
    any: bool,
}

impl Messages {
    /// Bytes arrived; true if a message ended in them.
    fn pass(&mut self, mut data: &[u8]) -> bool {
        let mut ended = false;
        while !data.is_empty() {
            if self.prefix_len < PREFIX_BYTES {
                if self.prefix_len == 0 {
                    self.bytes = 0;
                }
                let taken = (PREFIX_BYTES - self.prefix_len).min(data.len());
                self.prefix[self.prefix_len..self.prefix_len + taken].copy_from_slice(&data[..taken]);
                self.prefix_len += taken;
                self.bytes += taken as u64;
                data = &data[taken..];
                if self.prefix_len == PREFIX_BYTES {
                    let [_, length @ ..] = self.prefix;
                    self.left = u64::from(u32::from_be_bytes(length));
                }
            } else {
                let taken = self.left.min(data.len() as u64);
                self.left -= taken;
                self.bytes += taken;
                data = &data[taken as usize..];
            }
            if self.prefix_len == PREFIX_BYTES && self.left == 0 {
                self.prefix_len = 0;
                (ended, self.any) = (true, true);
            }
        }
        ended
    }

    fn is_between(&self) -> bool {
        self.prefix_len == 0
    }
}

#[cfg(test)]
mod tests;
