//! The inline data plane: pages as bytes of a gRPC stream. Owns: copying between messages and slots, for callers that
//! cannot map memory. Must not know: how messages travel.

use super::Engine;
use super::clients::InlineCaller;
use super::hello::InlineCall;
use super::offload::{BeginOffload, CommitOffload, OffloadBegun, OffloadCommitted};
use super::reload::{BeginReload, EndReload, ReloadRun, ReloadedPosition};
use super::stats::TierName;
use crate::limits::INLINE_CHUNK_BYTES;
use bytes::Bytes;
use std::sync::Arc;
use turnkv_pool::{LeaseId, MissCause};
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::{Checksum, Page, PageMut};

/// An inline offload between its first and its last message. Dropped before its commit, it gives everything back:
/// nobody but this struct writes to the granted slots.
pub(crate) struct InlineOffload {
    engine: Arc<Engine>,
    call: InlineCall,
    /// What is still to be committed, or given back.
    lease: Option<LeaseId>,
    pages: Vec<FillingSlot>,
}

/// One granted slot being filled, front to back.
struct FillingSlot {
    position: u32,
    /// Nobody else in this process writes the slot.
    page: PageMut,
    filled: u64,
    checksum: Checksum,
}

impl InlineOffload {
    /// Begins: the answer says which positions to send.
    pub(crate) async fn begin(
        engine: &Arc<Engine>,
        caller: InlineCaller,
        ask: &BeginOffload,
    ) -> Result<(InlineOffload, OffloadBegun), Error> {
        let call = engine.begin_call(caller)?;
        let mut begun = engine.begin_offload(call.client, ask).await?;
        let mut offload =
            InlineOffload { engine: Arc::clone(engine), call, lease: begun.lease, pages: Vec::new() };
        for (position, place) in begun.outcomes.granted().zip(&begun.slots) {
            let claimed = engine.slot(*place)?.claim();
            let page = claimed.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
            offload.pages.push(FillingSlot { position, page, filled: 0, checksum: Checksum::new() });
        }
        begun.slots.clear(); // of no use to a caller that cannot map them
        Ok((offload, begun))
    }

    /// Takes the next bytes of a position; positions may be interleaved, the bytes of one come in order.
    pub(crate) fn fill(&mut self, index: u32, offset: u64, payload: &[u8]) -> Result<(), Error> {
        let page = self.pages.iter_mut().find(|page| page.position == index);
        let page = page.ok_or_else(|| {
            Error::invalid(format!("page {index} was not granted: send only GRANTED pages"))
        })?;
        let bytes = page.page.slot().len();
        let end = offset.checked_add(payload.len() as u64).filter(|end| *end <= bytes as u64);
        if offset != page.filled || end.is_none() {
            let text = format!(
                "page {index}: {} bytes at offset {offset}, but {} of {bytes} bytes were received",
                payload.len(),
                page.filled,
            );
            return Err(Error::invalid(text));
        }
        page.page.fill_part(offset as usize, payload, &mut page.checksum);
        page.filled += payload.len() as u64;
        Ok(())
    }

    /// The granted slots, to be filled by whoever takes them; they are committed by [`InlineOffload::commit_taken`], and sealed, or
    /// dropped, before that.
    pub(crate) fn take_slots(&mut self) -> Vec<(u32, PageMut)> {
        self.pages.drain(..).map(|slot| (slot.position, slot.page)).collect()
    }

    /// Commits those of the slots that were taken that are whole, each with the checksum of its bytes; the others are free again.
    pub(crate) async fn commit_taken(mut self, filled: Vec<(u32, u64)>) -> Result<OffloadCommitted, Error> {
        let Some(lease) = self.lease.take() else { return Ok(OffloadCommitted::default()) };
        let engine = Arc::clone(&self.engine);
        let commit = CommitOffload { lease, pages: filled, durable: false };
        engine.commit_offload(self.call.client, &commit).await
    }

    /// Commits what arrived whole and with the checksums that the sender took (one a granted page, in order).
    pub(crate) async fn commit(
        mut self,
        checksums: &[u64],
        durable: bool,
    ) -> Result<OffloadCommitted, Error> {
        if checksums.len() != self.pages.len() {
            let text = format!("{} checksums for {} granted pages", checksums.len(), self.pages.len());
            return Err(Error::invalid(text));
        }
        let mut pages = Vec::with_capacity(self.pages.len());
        for (filled, sent) in self.pages.drain(..).zip(checksums) {
            let FillingSlot { position, page, filled, checksum } = filled;
            if filled < page.seal().slot().len() as u64 {
                return Err(Error::invalid(format!("page {position} ended after {filled} bytes")));
            }
            if checksum.finish() != *sent {
                let text = format!("page {position} changed on its way: its checksum does not match");
                return Err(Error::new(ErrorKind::Unavailable, text));
            }
            pages.push((position, *sent));
        }
        let Some(lease) = self.lease.take() else { return Ok(OffloadCommitted::default()) };
        let engine = Arc::clone(&self.engine);
        engine.commit_offload(self.call.client, &CommitOffload { lease, pages, durable }).await
    }
}

impl Drop for InlineOffload {
    fn drop(&mut self) {
        self.pages.clear(); // nobody writes a slot any more that the pool gets back
        if let Some(lease) = self.lease
            && let Err(error) = self.engine.abort_offload(self.call.client, lease)
        {
            tracing::debug!(%error, "an inline offload's lease had ended already");
        }
    }
}

/// An inline reload: its messages one after another, each made when it is wanted.
pub(crate) struct InlineReload {
    engine: Arc<Engine>,
    call: InlineCall,
    run: ReloadRun,
    page: Option<SendingSlot>,
    corrupt: Vec<u32>,
}

/// A piece of an inline reload, in the order of the positions.
pub(crate) enum ReloadPiece {
    /// Bytes of a position, front to back.
    Bytes {
        /// Which position.
        index: u32,
        /// Where they are in its shard.
        offset: u64,
        /// The bytes.
        payload: Bytes,
        /// CRC-64/NVME of the whole shard, with its first bytes; else 0.
        checksum: u64,
        /// Where the page was found.
        tier: Option<TierName>,
    },
    /// Nothing follows; what came of this position is void.
    Miss {
        /// Which position.
        index: u32,
        /// Why.
        cause: MissCause,
    },
}

/// One leased slot being sent, front to back.
struct SendingSlot {
    index: u32,
    checksum: u64,
    tier: Option<TierName>,
    page: Page,
    sent: usize,
    /// Of what was sent.
    found: Checksum,
}

impl InlineReload {
    /// Begins to serve the leading pages of a request.
    pub(crate) async fn begin(
        engine: &Arc<Engine>,
        caller: InlineCaller,
        ask: &BeginReload,
    ) -> Result<InlineReload, Error> {
        let call = engine.begin_call(caller)?;
        let run = engine.begin_reload(call.client, ask).await?;
        Ok(InlineReload { engine: Arc::clone(engine), call, run, page: None, corrupt: Vec::new() })
    }

    /// Positions of the request that this run serves.
    pub(crate) fn covered(&self) -> u32 {
        self.run.covered
    }

    /// Whole pages among them.
    pub(crate) fn pages_covered(&self) -> usize {
        self.run.shards.whole_pages(self.run.covered as usize)
    }

    /// The next piece; `None` at the end of the run. Nothing follows a miss, which may come after some of its page's
    /// bytes: those are void.
    pub(crate) async fn next(&mut self) -> Option<ReloadPiece> {
        loop {
            if let Some(page) = self.page.take() {
                return Some(self.chunk(page));
            }
            let Some(page) = self.run.next_ready() else {
                if self.run.is_done() {
                    return None;
                }
                self.run.wait().await;
                continue;
            };
            let ReloadedPosition { index, checksum, tier, found } = page;
            let page = match found.map(|place| self.engine.slot(place)) {
                Err(cause) => return Some(ReloadPiece::Miss { index, cause }),
                Ok(Err(_)) => return Some(ReloadPiece::Miss { index, cause: MissCause::Absent }),
                Ok(Ok(slot)) => slot.page(),
            };
            self.page = Some(SendingSlot { index, checksum, tier, page, sent: 0, found: Checksum::new() });
        }
    }

    /// The page's next chunk: small enough to go through the caches once. The bytes are verified as they are copied, and
    /// the last chunk of a page that does not verify is a miss instead; the page is dropped at the end of the run. A reader
    /// that stalls past the lease gets a miss too: what was copied after that may be another page's.
    fn chunk(&mut self, mut page: SendingSlot) -> ReloadPiece {
        let index = page.index;
        let bytes = page.page.slot().len();
        let (from, to) = (page.sent, bytes.min(page.sent + INLINE_CHUNK_BYTES));
        let payload = self.engine.pieces.copy_page(&page.page, from..to, &mut page.found);
        if self.engine.clock.now() >= self.run.lease_ends {
            return ReloadPiece::Miss { index, cause: MissCause::Busy };
        }
        let last = to == bytes;
        if last && page.found.finish() != page.checksum {
            self.corrupt.push(index);
            return ReloadPiece::Miss { index, cause: MissCause::Checksum };
        }
        let checksum = if from == 0 { page.checksum } else { 0 };
        let (offset, tier) = (from as u64, page.tier);
        page.sent = to;
        self.page = (!last).then_some(page);
        ReloadPiece::Bytes { index, offset, payload, checksum, tier }
    }
}

impl Drop for InlineReload {
    fn drop(&mut self) {
        let Some(lease) = self.run.lease else { return };
        let end = EndReload { lease, corrupt: std::mem::take(&mut self.corrupt) };
        if let Err(error) = self.engine.end_reload(self.call.client, &end) {
            tracing::debug!(%error, "an inline reload's lease had ended already");
        }
    }
}

#[cfg(test)]
mod tests;
