//! The inline data plane: pages as bytes of a gRPC stream. Owns: copying between messages and slots, for callers that
//! cannot map memory. Must not know: how messages travel.

use super::Engine;
use super::clients::{Call, Caller};
use crate::limits::INLINE_CHUNK_BYTES;
use std::collections::VecDeque;
use std::sync::Arc;
use turnkv_proto::{Error, ErrorKind, wire};
use turnkv_transfer::{Checksum, Slot};
use wire::ReloadedPage;

/// An inline offload between its first and its last message. Dropped before its commit, it gives everything back:
/// nobody but this struct writes to the granted slots.
pub(crate) struct InlineOffload {
    engine: Arc<Engine>,
    call: Call,
    lease: u64,
    pages: Vec<Filling>,
    open: bool,
}

/// One granted slot being filled, front to back.
struct Filling {
    position: u32,
    slot: Slot,
    filled: u64,
    checksum: Checksum,
}

impl InlineOffload {
    /// Begins: the reply says which positions to send.
    pub(crate) async fn begin(
        engine: &Arc<Engine>,
        caller: Caller,
        ask: &wire::BeginOffloadRequest,
    ) -> Result<(InlineOffload, wire::BeginOffloadReply), Error> {
        let call = engine.begin_call(caller)?;
        let mut reply = engine.begin_offload_as(call.client, ask).await?;
        let mut offload = InlineOffload {
            engine: Arc::clone(engine),
            call,
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

    /// Takes the next bytes of a position; positions may be interleaved, the bytes of one come in order.
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
        page.slot.fill_part(offset as usize, payload, &mut page.checksum);
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
        engine.commit_offload_as(self.call.client, &ask).await
    }
}

impl Drop for InlineOffload {
    fn drop(&mut self) {
        if self.open
            && let Err(error) = self.engine.abort_offload_as(self.call.client, self.lease)
        {
            tracing::debug!(%error, "an inline offload's lease had ended already");
        }
    }
}

/// An inline reload: its messages one after another, each made when it is wanted.
pub(crate) struct InlineReload {
    engine: Arc<Engine>,
    call: Call,
    lease: u64,
    bytes: u64,
    run: super::reload::ReloadRun,
    landed: VecDeque<ReloadedPage>,
    page: Option<Sending>,
    corrupt: Vec<u32>,
}

/// One leased slot being sent, front to back.
struct Sending {
    index: u32,
    checksum: u64,
    tier: i32,
    slot: Slot,
    sent: usize,
    /// Of what was sent.
    found: Checksum,
}

impl InlineReload {
    /// Begins to serve the leading pages of a request.
    pub(crate) async fn begin(
        engine: &Arc<Engine>,
        caller: Caller,
        ask: wire::BeginReloadRequest,
    ) -> Result<InlineReload, Error> {
        let call = engine.begin_call(caller)?;
        let bytes = engine.shard_bytes(engine.find_namespace(&ask.namespace)?);
        let run = engine.begin_reload_as(call.client, &ask).await?;
        Ok(InlineReload {
            engine: Arc::clone(engine),
            call,
            lease: run.lease,
            bytes,
            run,
            landed: VecDeque::new(),
            page: None,
            corrupt: Vec::new(),
        })
    }

    /// Positions of the request that this run serves.
    pub(crate) fn covered(&self) -> u32 {
        self.run.covered
    }

    /// Whole pages among them.
    pub(crate) fn pages_covered(&self) -> usize {
        self.run.shards.whole_pages(self.run.covered as usize)
    }

    /// The next message; `None` at the end of the run. Nothing follows a miss, which may come after some of its page's
    /// bytes: those are void.
    pub(crate) async fn next(&mut self) -> Option<wire::ReloadReply> {
        loop {
            if let Some(page) = self.page.take() {
                return Some(self.chunk(page));
            }
            if self.landed.is_empty() {
                self.landed = self.run.take_ready().into();
            }
            let Some(page) = self.landed.pop_front() else {
                if self.run.is_done() {
                    return None;
                }
                self.run.wait().await;
                continue;
            };
            let slot = page.slot.as_ref().map(|place| self.engine.slot_at(place, self.bytes));
            let slot = match slot {
                None => return Some(miss(page.index, page.miss)),
                Some(Err(_)) => return Some(miss(page.index, wire::MissCause::Absent.into())),
                Some(Ok(slot)) => slot,
            };
            let ReloadedPage { index, checksum, tier, .. } = page;
            self.page = Some(Sending { index, checksum, tier, slot, sent: 0, found: Checksum::new() });
        }
    }

    /// The page's next chunk: small enough to go through the caches once. The bytes are verified as they are copied, and
    /// the last chunk of a page that does not verify is a miss instead; the page is dropped at the end of the run. A reader
    /// that stalls past the lease gets a miss too: what was copied after that may be another page's.
    fn chunk(&mut self, mut page: Sending) -> wire::ReloadReply {
        let (from, to) = (page.sent, page.slot.len().min(page.sent + INLINE_CHUNK_BYTES));
        let payload = self.engine.pieces.copy_slot(&page.slot, from..to, &mut page.found);
        if self.engine.clock.now() >= self.run.lease_ends {
            return miss(page.index, wire::MissCause::Busy.into());
        }
        let last = to == page.slot.len();
        if last && page.found.finish() != page.checksum {
            self.corrupt.push(page.index);
            return miss(page.index, wire::MissCause::Checksum.into());
        }
        let message = wire::ReloadReply {
            index: page.index,
            offset: from as u64,
            payload,
            checksum: if from == 0 { page.checksum } else { 0 },
            tier: page.tier,
            miss: 0,
        };
        page.sent = to;
        self.page = (!last).then_some(page);
        message
    }
}

fn miss(index: u32, cause: i32) -> wire::ReloadReply {
    wire::ReloadReply { index, miss: cause, ..Default::default() }
}

impl Drop for InlineReload {
    fn drop(&mut self) {
        if self.lease == 0 {
            return;
        }
        let corrupt = std::mem::take(&mut self.corrupt);
        let end = wire::EndReloadRequest { lease: self.lease, client: self.call.client.0, corrupt };
        if let Err(error) = self.engine.end_reload_as(self.call.client, &end) {
            tracing::debug!(%error, "an inline reload's lease had ended already");
        }
    }
}
