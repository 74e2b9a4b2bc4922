//! Pages in gRPC streams, for servers that share no memory with this process. Owns: pieces and their order on
//! the stream. Must not know: windows before and after.

use crate::error::{Error, Result};
use crate::grpc;
use crate::limits::{INLINE_PIECE_BYTES, INLINE_PIECES_MAX};
use crate::namespace::Namespace;
use crate::offload::{Done, Granted, NotDurable, OffloadWindow};
use crate::pages::{Arriving, PageSource, PageTarget, Staging};
use crate::reload::{Arrivals, MissCause, ReloadReport, ReloadWindow, tier};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::body::Body;
use turnkv_proto::stream::{Incoming, OFFLOAD_PATH, Outgoing, RELOAD_PATH, Received};
use turnkv_proto::wire;
use turnkv_transfer::{Checksum, Page, PageMemory, PieceBuffers};

type Pieces = mpsc::Sender<Result<wire::OffloadRequest, Status>>;

impl Namespace {
    /// One window of an offload. Dropping this future ends the stream, which aborts the lease at the server.
    pub(crate) async fn offload_inline(
        &self,
        window: &OffloadWindow,
        pages: &[PageSource<'_>],
    ) -> Result<Done> {
        window.deadline.bound(self.offload_stream(window, pages)).await?
    }

    async fn offload_stream(&self, window: &OffloadWindow, pages: &[PageSource<'_>]) -> Result<Done> {
        let (mut pieces, mut replies) = self.open_stream(window).await?;
        let begun = message(&mut replies)
            .await?
            .begin
            .ok_or_else(|| Error::protocol("no answer to the first message"))?;
        let granted = Granted::read(&begun, window.pages, window.moved)?;
        if granted.fill.is_empty() {
            let Granted { present, decline, .. } = granted;
            let (durable, retry_after_ms) = (begun.durable, begun.retry_after_ms);
            let not_durable = NotDurable::read(begun.not_durable());
            return Ok(Done { present, durable, not_durable, decline, retry_after_ms, ..Done::default() });
        }
        let mut staging = Staging::default();
        let mut checksums = Vec::with_capacity(granted.fill.len());
        for position in &granted.fill {
            let page = &pages[*position as usize];
            let buffers = &self.link.pieces;
            checksums.push(send_page(&mut pieces, *position, page, &mut staging, buffers).await?);
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
        granted.committed(&done, begun.retry_after_ms)
    }

    async fn open_stream(&self, window: &OffloadWindow) -> Result<(Pieces, Incoming<wire::OffloadReply>)> {
        let mut sender = None;
        let ask = |channel| {
            // An attempt that reached nobody took its stream with it: each gets its own.
            let (pieces, outgoing) = mpsc::channel(INLINE_PIECES_MAX);
            let begin =
                wire::OffloadRequest { begin: Some(window.begin.clone()), ..wire::OffloadRequest::default() };
            let queued = pieces.try_send(Ok(begin)).is_ok();
            debug_assert!(queued, "the queue is new");
            sender = Some(pieces);
            let body = Body::new(Outgoing::request(ReceiverStream::new(outgoing)));
            grpc::stream(channel, OFFLOAD_PATH, body)
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
            shards: begin.shards,
            wait_ms: begin.wait_ms,
            session: begin.session.clone(),
            here_only: begin.here_only,
        };
        let ask = |channel| {
            let whole = futures_util::stream::iter([Ok(request.clone())]);
            grpc::stream(channel, RELOAD_PATH, Body::new(Outgoing::request(whole)))
        };
        let mut stream: Incoming<wire::ReloadReply> = self.link.rpc(window.deadline, ask).await?;
        let mut staging = Staging::default();
        let mut page: Option<(Arriving, u64, wire::TierKind)> = None;
        let (mut next, mut arrivals) = (0, Arrivals::new(window.moved));
        while let Some(Received { message: piece, payload }) = stream.message().await? {
            if piece.index as usize != next || next >= window.positions() {
                return Err(Error::protocol(format!("page {} where page {next} was due", piece.index)));
            }
            if let Some(cause) = MissCause::read(piece.miss)? {
                report.miss = Some(cause);
                return Ok(());
            }
            let mut whole = page
                .take()
                .unwrap_or_else(|| (Arriving::new(self.page_bytes()), piece.checksum, tier(piece.tier)));
            if !whole.0.take(piece.offset, &payload, &mut targets[next], &mut staging)? {
                page = Some(whole);
                continue;
            }
            let (arrived, checksum, found_in) = whole;
            let found = arrived.finish(&mut targets[next]);
            if self.link.config.verify && found != checksum {
                tracing::warn!(namespace = %self.id(), position = next, "a page was damaged on its way: it is a miss");
                report.miss = Some(MissCause::Checksum);
                return Ok(());
            }
            arrivals.count(found_in, report);
            next += 1;
        }
        if page.is_some() { Err(Error::protocol("the stream ended within a page")) } else { Ok(()) }
    }
}

/// A page in one piece, in slot order.
enum Whole<'a> {
    Bytes(&'a [u8]),
    Memory(&'a PageMemory),
    Gathered(Page),
}

/// Sends a page in pieces; its checksum.
async fn send_page(
    pieces: &mut Pieces,
    index: u32,
    page: &PageSource<'_>,
    staging: &mut Staging,
    buffers: &PieceBuffers,
) -> Result<u64> {
    let bytes = match page {
        PageSource::Bytes(bytes) => Whole::Bytes(bytes),
        PageSource::Memory(memory) => Whole::Memory(memory),
        PageSource::Plan(plan) => Whole::Gathered(staging.page(page.len())?.gather(plan).0),
    };
    let mut checksum = Checksum::new();
    for start in (0..page.len()).step_by(INLINE_PIECE_BYTES) {
        let part = start..page.len().min(start + INLINE_PIECE_BYTES);
        let payload = match &bytes {
            Whole::Bytes(bytes) => buffers.copy(&bytes[part], &mut checksum),
            Whole::Memory(memory) => buffers.copy_memory(memory, part, &mut checksum),
            Whole::Gathered(page) => buffers.copy_page(page, part, &mut checksum),
        };
        let offset = start as u64;
        send(pieces, wire::OffloadRequest { index, offset, payload, ..wire::OffloadRequest::default() })
            .await?;
    }
    Ok(checksum.finish())
}

async fn send(pieces: &mut Pieces, piece: wire::OffloadRequest) -> Result<()> {
    pieces.send(Ok(piece)).await.map_err(|_| Error::unavailable("the server ended the stream"))
}

async fn message(replies: &mut Incoming<wire::OffloadReply>) -> Result<wire::OffloadReply> {
    let received = replies.message().await?;
    Ok(received.ok_or_else(|| Error::protocol("the stream ended early"))?.message)
}
