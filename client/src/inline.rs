//! Pages in gRPC streams, for servers that share no memory with this process. Owns: pieces and their order on the stream.
//! Must not know: windows before and after.

use crate::error::{Error, Result};
use crate::grpc;
use crate::limits::{INLINE_PIECE_BYTES, INLINE_PIECES_MAX};
use crate::namespace::Namespace;
use crate::offload::{Done, Granted, Window as OffloadWindow};
use crate::pages::{Incoming, PageSource, PageTarget, Staging, outgoing_piece};
use crate::reload::{MissCause, ReloadReport, Window as ReloadWindow, tier};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use turnkv_proto::wire;

type Pieces = mpsc::Sender<wire::OffloadRequest>;

impl Namespace {
    /// One window of an offload. Dropping this future ends the stream, which aborts the lease at the server.
    pub(crate) async fn offload_inline(&self, window: &OffloadWindow<'_>) -> Result<Done> {
        window.deadline.bound(self.offload_stream(window)).await?
    }

    async fn offload_stream(&self, window: &OffloadWindow<'_>) -> Result<Done> {
        let (mut pieces, mut replies) = self.open_stream(window).await?;
        let begun = message(&mut replies)
            .await?
            .begin
            .ok_or_else(|| Error::protocol("no answer to the first message"))?;
        let granted = Granted::read(&begun, window.pages.len())?;
        if granted.fill.is_empty() {
            let Granted { present, decline, .. } = granted;
            let (durable, retry_after_ms) = (begun.durable, begun.retry_after_ms);
            return Ok(Done { present, durable, decline, retry_after_ms, ..Done::default() });
        }
        let mut staging = Staging::default();
        let mut checksums = Vec::with_capacity(granted.fill.len());
        for position in &granted.fill {
            let page = &window.pages[*position as usize];
            checksums.push(send_page(&mut pieces, *position, page, &mut staging).await?);
        }
        let commit = wire::OffloadRequest {
            commit: true,
            durable: window.durable,
            checksums,
            ..wire::OffloadRequest::default()
        };
        send(&mut pieces, commit).await?;
        let done =
            message(&mut replies).await?.commit.ok_or_else(|| Error::protocol("no answer to the commit"))?;
        granted.committed(&done.dropped, done.durable, begun.retry_after_ms)
    }

    async fn open_stream(
        &self,
        window: &OffloadWindow<'_>,
    ) -> Result<(Pieces, Streaming<wire::OffloadReply>)> {
        let mut sender = None;
        let ask = |channel| {
            // An attempt that reached nobody took its stream with it: each gets its own.
            let (pieces, outgoing) = mpsc::channel(INLINE_PIECES_MAX);
            let begin =
                wire::OffloadRequest { begin: Some(window.begin.clone()), ..wire::OffloadRequest::default() };
            let queued = pieces.try_send(begin).is_ok();
            debug_assert!(queued, "the queue is new");
            sender = Some(pieces);
            async move { grpc::pool(channel).offload(ReceiverStream::new(outgoing)).await }
        };
        let replies = self.link.rpc(window.deadline, ask).await?;
        let pieces = sender.ok_or_else(|| Error::unavailable("the stream was not opened"))?;
        Ok((pieces, replies))
    }

    /// One window of a reload. Dropping this future cancels the stream.
    pub(crate) async fn reload_inline(
        &self,
        window: &ReloadWindow,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
    ) -> Result<()> {
        window.deadline.bound(self.reload_stream(window, targets, report)).await?
    }

    async fn reload_stream(
        &self,
        window: &ReloadWindow,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
    ) -> Result<()> {
        let begin = &window.begin;
        let request = wire::ReloadRequest {
            namespace: begin.namespace.clone(),
            hashes: begin.hashes.clone(),
            shard: begin.shard,
            wait_ms: begin.wait_ms,
            session: begin.session.clone(),
        };
        let ask = |channel| {
            let request = request.clone();
            async move { grpc::pool(channel).reload(request).await }
        };
        let mut stream = self.link.rpc(window.deadline, ask).await?;
        let mut staging = Staging::default();
        let mut page: Option<(Incoming, u64, wire::TierKind)> = None;
        let mut next = 0;
        while let Some(piece) = stream.message().await? {
            if piece.index as usize != next || next >= window.pages {
                return Err(Error::protocol(format!("page {} where page {next} was due", piece.index)));
            }
            if let Some(cause) = MissCause::read(piece.miss)? {
                report.miss = Some(cause);
                return Ok(());
            }
            let mut whole = page
                .take()
                .unwrap_or_else(|| (Incoming::new(self.page_bytes()), piece.checksum, tier(piece.tier)));
            if !whole.0.take(piece.offset, &piece.payload, &mut targets[next], &mut staging)? {
                page = Some(whole);
                continue;
            }
            let (incoming, checksum, found_in) = whole;
            let found = incoming.finish(&mut targets[next], &mut staging)?;
            if self.link.config.verify && found != checksum {
                tracing::warn!(namespace = %self.id(), position = next, "a page was damaged on its way: it is a miss");
                report.miss = Some(MissCause::Checksum);
                return Ok(());
            }
            report.count(found_in);
            next += 1;
        }
        if page.is_some() { Err(Error::protocol("the stream ended within a page")) } else { Ok(()) }
    }
}

/// Sends a page in pieces; its checksum.
async fn send_page(
    pieces: &mut Pieces,
    index: u32,
    page: &PageSource<'_>,
    staging: &mut Staging,
) -> Result<u64> {
    let (checksum, staged) = match page {
        PageSource::Bytes(bytes) => (turnkv_transfer::checksum(bytes), None),
        PageSource::Plan(plan) => {
            let slot = staging.slot(page.len())?;
            (slot.gather(plan), Some(slot))
        }
    };
    for from in (0..page.len()).step_by(INLINE_PIECE_BYTES) {
        let to = page.len().min(from + INLINE_PIECE_BYTES);
        let payload = outgoing_piece(page, staged, from, to);
        let piece =
            wire::OffloadRequest { index, offset: from as u64, payload, ..wire::OffloadRequest::default() };
        send(pieces, piece).await?;
    }
    Ok(checksum)
}

async fn send(pieces: &mut Pieces, piece: wire::OffloadRequest) -> Result<()> {
    pieces.send(piece).await.map_err(|_| Error::unavailable("the server ended the stream"))
}

async fn message(replies: &mut Streaming<wire::OffloadReply>) -> Result<wire::OffloadReply> {
    replies.message().await?.ok_or_else(|| Error::protocol("the stream ended early"))
}
