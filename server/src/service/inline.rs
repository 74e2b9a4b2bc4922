//! The inline verbs' streams. Owns: the order of their messages. Must not know: slots.

use crate::engine::Engine;
use crate::engine::inline::{InlineOffload, InlineReload};
use crate::limits::STREAM_QUEUE_MAX;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};
use turnkv_proto::{Error, ErrorKind, wire};

/// Serves an Offload stream: header, answer, payload, commit, answer.
pub(super) fn offload(
    engine: Arc<Engine>,
    mut messages: Streaming<wire::OffloadRequest>,
) -> ReceiverStream<Result<wire::OffloadReply, Status>> {
    let (tell, told) = mpsc::channel(STREAM_QUEUE_MAX);
    tokio::spawn(async move {
        if let Err(status) = offload_stream(&engine, &mut messages, &tell).await
            && tell.send(Err(status)).await.is_err()
        {
            tracing::debug!("an inline offload's caller left");
        }
    });
    ReceiverStream::new(told)
}

async fn offload_stream(
    engine: &Arc<Engine>,
    messages: &mut Streaming<wire::OffloadRequest>,
    tell: &mpsc::Sender<Result<wire::OffloadReply, Status>>,
) -> Result<(), Status> {
    let first = messages.message().await?.unwrap_or_default();
    let header =
        first.begin.ok_or_else(|| Error::invalid("the first message of Offload must hold `begin`"))?;
    let (mut offload, begin) = InlineOffload::begin(engine, &header).await?;
    let deadline = Instant::now() + Duration::from_millis(engine.settings.limits.lease_ms);
    let reply = wire::OffloadReply { begin: Some(begin), commit: None };
    if tell.send(Ok(reply)).await.is_err() {
        return Ok(()); // the caller left: the offload's drop gives the slots back
    }
    // A sender that stalls holds slots: it has as long as its lease, then the offload's drop gives them back.
    while let Some(message) = timeout_at(deadline, messages.message()).await.map_err(|_| late())?? {
        if !message.payload.is_empty() {
            offload.fill(message.index, message.offset, &message.payload)?;
        }
        if message.commit {
            let commit = offload.commit(&message.checksums, message.durable).await?;
            let reply = wire::OffloadReply { begin: None, commit: Some(commit) };
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

/// Serves a Reload stream: every page in chunks, in the order asked, up to the first miss.
pub(super) async fn reload(
    engine: Arc<Engine>,
    ask: wire::ReloadRequest,
) -> Result<ReceiverStream<Result<wire::ReloadReply, Status>>, Status> {
    let begin = wire::BeginReloadRequest {
        namespace: ask.namespace,
        hashes: ask.hashes,
        shard: ask.shard,
        client: 0,
        wait_ms: ask.wait_ms,
        session: ask.session,
    };
    let mut run = InlineReload::begin(&engine, begin.clone()).await?;
    let (tell, told) = mpsc::channel(STREAM_QUEUE_MAX);
    tokio::spawn(async move {
        let all = begin.hashes.len() / 32;
        let mut served = 0usize;
        loop {
            let covered = run.covered() as usize;
            match send_run(&mut run, served as u32, &tell).await {
                Sent::All => served += covered,
                Sent::Miss | Sent::CallerLeft => return,
            }
            if served >= all || covered == 0 {
                return;
            }
            // The lease of the finished run ends before the next one begins: a reload may be larger than DRAM.
            drop(run);
            let rest =
                wire::BeginReloadRequest { hashes: begin.hashes.slice(served * 32..), ..begin.clone() };
            run = match InlineReload::begin(&engine, rest).await {
                Ok(run) => run,
                Err(error) => {
                    if tell.send(Err(error.into())).await.is_err() {
                        tracing::debug!("an inline reload's caller left");
                    }
                    return;
                }
            };
        }
    });
    Ok(ReceiverStream::new(told))
}

enum Sent {
    All,
    Miss,
    CallerLeft,
}

async fn send_run(
    run: &mut InlineReload,
    first: u32,
    tell: &mpsc::Sender<Result<wire::ReloadReply, Status>>,
) -> Sent {
    loop {
        let pages = run.next().await;
        if pages.is_empty() {
            return Sent::All;
        }
        for page in &pages {
            let page = match run.open(page) {
                Ok(page) => page,
                Err(mut miss) => {
                    miss.index += first;
                    return if tell.send(Ok(miss)).await.is_ok() { Sent::Miss } else { Sent::CallerLeft };
                }
            };
            for mut message in page.messages() {
                message.index += first;
                let miss = message.miss != 0;
                if tell.send(Ok(message)).await.is_err() {
                    return Sent::CallerLeft;
                }
                if miss {
                    return Sent::Miss;
                }
            }
        }
    }
}
