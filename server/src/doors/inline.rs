//! The inline verbs' streams. Owns: their paths, and the order of their messages. Must not know: slots.
//!
//! The generated service would copy every page once more into its codec's buffers, so these two methods are served from
//! their HTTP bodies: see [`turnkv_proto::stream`].

use super::calls::CallSeconds;
use super::codec;
use super::unreadable::in_own_words;
use crate::access::Guest;
use crate::connections::Peer;
use crate::connections::asking::Asking;
use crate::engine::Engine;
use crate::engine::clients::InlineCaller;
use crate::engine::inline::{InlineOffload, InlineReload};
use crate::engine::reload::BeginReload;
use crate::limits::INLINE_ANSWERS_MAX;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::post;
use futures_util::Stream;
use futures_util::stream::unfold;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use turnkv_proto::stream::{self, Incoming, OFFLOAD_PATH, RELOAD_PATH};
use turnkv_proto::{Error, ErrorKind, wire};

/// The two methods, beside the rest of their service.
pub(super) fn routes(engine: &Arc<Engine>, calls: &Arc<CallSeconds>) -> axum::Router {
    let (offloads, reloads, calls) = (Arc::clone(engine), Arc::clone(engine), Arc::clone(calls));
    axum::Router::new()
        .route(
            OFFLOAD_PATH,
            post(|request: Request| async move {
                match Who::of(&request) {
                    Ok(who) => respond(offload(offloads, calls, who, incoming(request))),
                    Err(error) => Status::from(error).into_http(),
                }
            }),
        )
        .route(
            RELOAD_PATH,
            post(|request: Request| async move {
                let who = Who::of(&request);
                let begun = async { reload(reloads, who?, incoming(request)).await };
                match begun.await {
                    Ok(messages) => respond(messages),
                    Err(status) => status.into_http(),
                }
            }),
        )
}

/// Who is at the other end of a request's connection: whose share it takes from, and what it may.
struct Who {
    caller: InlineCaller,
    guest: Guest,
}

/// Whoever asks on a connection, as far as its share is concerned.
pub(super) fn caller_of(asking: &Asking) -> InlineCaller {
    match asking.peer() {
        (Peer::User(user), process) => InlineCaller::User(user, process),
        (Peer::Host(host), _) => InlineCaller::Host(host),
    }
}

impl Who {
    fn of(request: &Request) -> Result<Who, Error> {
        let caller = request.extensions().get().map_or(InlineCaller::Unknown, caller_of);
        let guest = request.extensions().get::<Guest>().cloned();
        let guest = guest.ok_or_else(|| Error::new(ErrorKind::Internal, "a request that nobody admitted"))?;
        Ok(Who { caller, guest })
    }
}

fn incoming<M: stream::Piece>(request: Request) -> Incoming<M> {
    Incoming::request(tonic::body::Body::new(request.into_body()))
}

fn respond<M: stream::Piece>(messages: impl Stream<Item = Result<M, Status>> + Send + 'static) -> Response {
    let mut response = Response::new(Body::new(stream::Outgoing::response(Box::pin(messages))));
    let grpc = axum::http::HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(axum::http::header::CONTENT_TYPE, grpc);
    response
}

/// Serves an Offload stream: header, answer, payload, commit, answer.
fn offload(
    engine: Arc<Engine>,
    calls: Arc<CallSeconds>,
    who: Who,
    mut messages: Incoming<wire::OffloadRequest>,
) -> ReceiverStream<Result<wire::OffloadReply, Status>> {
    let (tell, told) = mpsc::channel(INLINE_ANSWERS_MAX);
    // A task of its own: it must see its deadline also when the caller takes no answers.
    tokio::spawn(async move {
        let began = Instant::now();
        let done = offload_stream(&engine, &who, &mut messages, &tell).await;
        if let Some(seconds) = calls.grpc(OFFLOAD_PATH) {
            seconds.record(began.elapsed());
        }
        if let Err(status) = done
            && tell.send(Err(in_own_words(&status).unwrap_or(status))).await.is_err()
        {
            tracing::debug!("an inline offload's caller left");
        }
    });
    ReceiverStream::new(told)
}

async fn offload_stream(
    engine: &Arc<Engine>,
    who: &Who,
    messages: &mut Incoming<wire::OffloadRequest>,
    tell: &mpsc::Sender<Result<wire::OffloadReply, Status>>,
) -> Result<(), Status> {
    let first = messages.message().await?.unwrap_or_default();
    let header = first
        .message
        .begin
        .ok_or_else(|| Error::invalid("the first message of Offload must hold `begin`"))?;
    let ask = codec::offload::begin(&header, &who.guest)?;
    let (mut offload, begin) = tokio::select! {
        biased;
        begun = InlineOffload::begin(engine, who.caller, &ask) => begun?,
        () = tell.closed() => return Ok(()), // the caller left: it wants no slots any more
    };
    let deadline = Instant::now() + Duration::from_millis(engine.settings.limits.lease_ms);
    let begin = Some(codec::offload::begun(begin));
    let reply = wire::OffloadReply { begin, commit: None };
    if tell.send(Ok(reply)).await.is_err() {
        return Ok(()); // the caller left: the offload's drop gives the slots back
    }
    // A sender that stalls holds slots: it has as long as its lease, then the offload's drop gives them back.
    while let Some(received) = timeout_at(deadline, messages.message()).await.map_err(|_| late())?? {
        let message = received.message;
        let mut offset = message.offset;
        for part in received.payload {
            offload.fill(message.index, offset, &part)?;
            offset += part.len() as u64;
        }
        if message.commit {
            let commit = offload.commit(&message.checksums, message.durable).await?;
            let commit = Some(codec::offload::committed(commit));
            let reply = wire::OffloadReply { begin: None, commit };
            if tell.send(Ok(reply)).await.is_err() {
                tracing::debug!("an inline offload's caller left before its answer");
            }
            return Ok(());
        }
    }
    Ok(()) // no commit: nothing is kept
}

fn late() -> Error {
    Error::new(
        ErrorKind::LeaseUnknown,
        "the stream took longer than its lease: begin again, in smaller calls",
    )
}

/// Serves a Reload stream: every page in chunks, in the order asked, up to the first miss. A chunk is copied when the
/// connection wants it: no task or queue lies between, and it is sent while it is still in the cache.
async fn reload(
    engine: Arc<Engine>,
    who: Who,
    mut asks: Incoming<wire::ReloadRequest>,
) -> Result<impl Stream<Item = Result<wire::ReloadReply, Status>>, Status> {
    let ask = asks.message().await?;
    let ask = ask.ok_or_else(|| Error::invalid("Reload wants one message that says what"))?.message;
    if asks.message().await?.is_some() {
        return Err(Error::invalid("Reload takes one message, and no more after it").into());
    }
    let (begin, caller) = (codec::reload::inline(ask, &who.guest)?, who.caller);
    let run = InlineReload::begin(&engine, caller, &begin).await?;
    let runs = Runs { engine, caller, begin, run: Some(run), served: 0 };
    Ok(unfold(runs, |mut runs| async { runs.next().await.map(|message| (message, runs)) }))
}

/// One run after another: each serves as many whole pages as could be leased at once.
struct Runs {
    engine: Arc<Engine>,
    caller: InlineCaller,
    /// What is not served by the runs that are finished.
    begin: BeginReload,
    /// `None`: nothing follows.
    run: Option<InlineReload>,
    /// Positions of the runs that are finished.
    served: u32,
}

impl Runs {
    async fn next(&mut self) -> Option<Result<wire::ReloadReply, Status>> {
        loop {
            let run = self.run.as_mut()?;
            if let Some(piece) = run.next().await {
                let mut message = codec::reload::piece(piece);
                message.index += self.served;
                if message.miss != 0 {
                    self.run = None;
                }
                return Some(Ok(message));
            }
            let pages = run.pages_covered();
            self.served += run.covered();
            // The lease of the finished run ends before the next one begins: a reload may be larger than DRAM.
            self.run = None;
            self.begin.hashes.drain(..pages.min(self.begin.hashes.len()));
            if self.begin.hashes.is_empty() || pages == 0 {
                return None;
            }
            match InlineReload::begin(&self.engine, self.caller, &self.begin).await {
                Ok(run) => self.run = Some(run),
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}
