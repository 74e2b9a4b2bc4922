//! The inline data plane: pages as bytes of a gRPC stream. Owns: copying between messages and slots, for callers that
//! cannot map memory. Must not know: how messages travel.

use super::Engine;
use crate::limits::INLINE_CHUNK_BYTES;
use bytes::Bytes;
use std::sync::Arc;
use tokio::time::Instant;
use turnkv_pool::ClientId;
use turnkv_proto::{Error, ErrorKind, wire};
use turnkv_transfer::{Checksum, Slot};

/// An inline offload between its first and its last message. Dropped before its commit, it gives everything back:
/// nobody but this struct writes to the granted slots.
pub(crate) struct InlineOffload {
    engine: Arc<Engine>,
    client: ClientId,
    lease: u64,
    pages: Vec<Filling>,
    open: bool,
}

/// One granted page being filled, front to back.
struct Filling {
    position: u32,
    slot: Slot,
    filled: u64,
    checksum: Checksum,
}

impl InlineOffload {
    /// Begins: the reply says which pages to send.
    pub(crate) async fn begin(
        engine: &Arc<Engine>,
        ask: &wire::BeginOffloadRequest,
    ) -> Result<(InlineOffload, wire::BeginOffloadReply), Error> {
        let client = engine.clients.ephemeral();
        let mut reply = engine.begin_offload_as(client, ask).await?;
        let mut offload = InlineOffload {
            engine: Arc::clone(engine),
            client,
            lease: reply.lease,
            pages: Vec::new(),
            open: reply.lease != 0,
        };
        let granted = reply
            .outcomes
            .iter()
            .enumerate()
            .filter(|(_, outcome)| **outcome == wire::OffloadOutcome::Granted as i32);
        let ns = engine.find_namespace(&ask.namespace)?;
        let bytes = engine.shard_bytes(ns);
        for ((position, _), slot) in granted.zip(&reply.slots) {
            let slot = engine.slot_at(slot, bytes)?;
            offload.pages.push(Filling {
                position: position as u32,
                slot,
                filled: 0,
                checksum: Checksum::new(),
            });
        }
        reply.slots.clear(); // of no use to a caller that cannot map them
        Ok((offload, reply))
    }

    /// Takes the next bytes of a page; pages may be interleaved, the bytes of one page come in order.
    pub(crate) fn fill(&mut self, index: u32, offset: u64, payload: &[u8]) -> Result<(), Error> {
        let page = self.pages.iter_mut().find(|page| page.position == index);
        let page = page.ok_or_else(|| {
            Error::invalid(format!("page {index} was not granted: send only GRANTED pages"))
        })?;
        let end = offset.checked_add(payload.len() as u64).filter(|end| *end <= page.slot.len() as u64);
        if offset != page.filled || end.is_none() {
            let text = format!(
                "page {index}: {} bytes at offset {offset}, but {} of {} bytes were received",
                payload.len(),
                page.filled,
                page.slot.len()
            );
            return Err(Error::invalid(text));
        }
        page.slot.fill_at(offset as usize, payload);
        page.checksum.update(payload);
        page.filled += payload.len() as u64;
        Ok(())
    }

    /// Commits what arrived whole and with the checksums that the sender took (one a granted page, in order).
    pub(crate) async fn commit(
        mut self,
        checksums: &[u64],
        durable: bool,
    ) -> Result<wire::CommitOffloadReply, Error> {
        if checksums.len() != self.pages.len() {
            let text = format!("{} checksums for {} granted pages", checksums.len(), self.pages.len());
            return Err(Error::invalid(text));
        }
        let mut ask = wire::CommitOffloadRequest { lease: self.lease, durable, ..Default::default() };
        for (page, sent) in self.pages.iter().zip(checksums) {
            if page.filled < page.slot.len() as u64 {
                return Err(Error::invalid(format!(
                    "page {} ended after {} bytes",
                    page.position, page.filled
                )));
            }
            if page.checksum.finish() != *sent {
                let text = format!("page {} changed on its way: its checksum does not match", page.position);
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            ask.pages.push(page.position);
            ask.checksums.push(*sent);
        }
        self.open = false;
        if ask.lease == 0 {
            return Ok(wire::CommitOffloadReply::default());
        }
        let engine = Arc::clone(&self.engine);
        engine.commit_offload_as(self.client, &ask).await
    }
}

impl Drop for InlineOffload {
    fn drop(&mut self) {
        if self.open
            && let Err(error) = self.engine.abort_offload_as(self.client, self.lease)
        {
            tracing::debug!(%error, "an inline offload's lease had ended already");
        }
    }
}

/// An inline reload: its messages one after another.
pub(crate) struct InlineReload {
    engine: Arc<Engine>,
    client: ClientId,
    lease: u64,
    bytes: u64,
    run: super::reload::ReloadRun,
    corrupt: Vec<u32>,
}

impl InlineReload {
    /// Begins to serve the leading pages of a request.
    pub(crate) async fn begin(
        engine: &Arc<Engine>,
        ask: wire::BeginReloadRequest,
    ) -> Result<InlineReload, Error> {
        let client = engine.clients.ephemeral();
        let bytes = engine.shard_bytes(engine.find_namespace(&ask.namespace)?);
        let run = engine.begin_reload_as(client, &ask).await?;
        Ok(InlineReload {
            engine: Arc::clone(engine),
            client,
            lease: run.lease,
            bytes,
            run,
            corrupt: Vec::new(),
        })
    }

    /// Pages of the request that this run serves.
    pub(crate) fn covered(&self) -> u32 {
        self.run.covered
    }

    /// The pages that landed since the last call; empty at the end of the run.
    pub(crate) async fn next(&mut self) -> Vec<wire::ReloadedPage> {
        loop {
            let ready = self.run.take_ready();
            if !ready.is_empty() || self.run.is_done() {
                return ready;
            }
            self.run.wait().await;
        }
    }

    /// A page's bytes, verified: one that does not verify is a miss, and dropped at the end of the run. `Err` is the
    /// message that says so.
    pub(crate) fn open(&mut self, page: &wire::ReloadedPage) -> Result<OpenPage, wire::ReloadReply> {
        let miss = |cause: i32| wire::ReloadReply { index: page.index, miss: cause, ..Default::default() };
        let Some(place) = &page.slot else { return Err(miss(page.miss)) };
        let Ok(slot) = self.engine.slot_at(place, self.bytes) else {
            return Err(miss(wire::MissCause::Absent.into()));
        };
        if slot.checksum() != page.checksum {
            self.corrupt.push(page.index);
            return Err(miss(wire::MissCause::Checksum.into()));
        }
        let (index, checksum, tier, lease_ends) = (page.index, page.checksum, page.tier, self.run.lease_ends);
        Ok(OpenPage { index, checksum, tier, lease_ends, slot })
    }
}

/// A leased page on its way into messages.
pub(crate) struct OpenPage {
    index: u32,
    checksum: u64,
    tier: i32,
    lease_ends: Instant,
    slot: Slot,
}

impl OpenPage {
    /// Its messages, each made when it is wanted: a chunk is small enough to go through the caches once. A reader that
    /// stalls past the lease gets a miss: what is copied after that may be another page's.
    pub(crate) fn messages(&self) -> impl Iterator<Item = wire::ReloadReply> {
        let bytes = self.slot.bytes();
        let chunk = move |offset: usize| wire::ReloadReply {
            index: self.index,
            offset: offset as u64,
            payload: Bytes::copy_from_slice(&bytes[offset..bytes.len().min(offset + INLINE_CHUNK_BYTES)]),
            checksum: if offset == 0 { self.checksum } else { 0 },
            tier: self.tier,
            miss: 0,
        };
        let late =
            wire::ReloadReply { index: self.index, miss: wire::MissCause::Busy.into(), ..Default::default() };
        (0..bytes.len()).step_by(INLINE_CHUNK_BYTES).map(move |offset| {
            let message = chunk(offset);
            if Instant::now() < self.lease_ends { message } else { late.clone() }
        })
    }
}

impl Drop for InlineReload {
    fn drop(&mut self) {
        if self.lease == 0 {
            return;
        }
        let corrupt = std::mem::take(&mut self.corrupt);
        let end = wire::EndReloadRequest { lease: self.lease, client: self.client.0, corrupt };
        if let Err(error) = self.engine.end_reload_as(self.client, &end) {
            tracing::debug!(%error, "an inline reload's lease had ended already");
        }
    }
}
