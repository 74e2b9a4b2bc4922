//! Offload from another host: the server reads what it grants, and keeps what arrived as it left. Pages that came with the request are
//! not read: another thread and a trip more are a transfer's price. Owns: the verb's order. Must not know: rails, messages.

use crate::engine::Engine;
use crate::engine::offload::{BeginOffload, CommitOffload, OffloadBegun, OffloadCommitted};
use crate::engine::remotes::clients::RemoteClient;
use crate::engine::remotes::lent::LentSpan;
use crate::engine::remotes::transfers::{Progress, Transfers, check_spans};
use bytes::Bytes;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_pool::LeaseId;
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::fabric::Direction;
use turnkv_transfer::{Claimed, PageMut, Slot};

/// Pages that are offered, and where their bytes are.
pub(crate) struct RemoteOffload {
    /// What is offered.
    pub(crate) begin: BeginOffload,
    /// By ascending position; a granted one that is not among them is not kept.
    pub(crate) pages: Vec<RemotePage>,
}

/// Where one position's bytes are in the client's memory.
pub(crate) struct RemotePage {
    /// Which one.
    pub(crate) position: u32,
    /// CRC-64/NVME of its bytes, where the client has taken it.
    pub(crate) checksum: u64,
    /// Its bytes in slot order.
    pub(crate) spans: Vec<LentSpan>,
    /// All of them, where they came with the request; else nothing.
    pub(crate) carried: Bytes,
}

/// A granted slot that is being filled.
struct Filling<'a> {
    page: &'a RemotePage,
    slot: Slot,
    /// Nobody else in this process writes the slot while transfers may.
    claim: Option<PageMut>,
    state: FillState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FillState {
    Due,
    /// It did not arrive as it left, and is read once more.
    Again,
    Good,
    Bad,
}

impl Engine {
    /// Reads what was granted, and commits the leading pages that arrived as they left. `gone`: the caller has left.
    pub(crate) async fn fill_remote(
        self: &Arc<Self>,
        client: &RemoteClient,
        ask: &RemoteOffload,
        begun: &mut OffloadBegun,
        gone: &dyn Fn() -> bool,
    ) -> Result<Option<OffloadCommitted>, Error> {
        let slots = std::mem::take(&mut begun.slots); // of no use to a caller that cannot map them
        let Some(lease) = begun.lease.take() else { return Ok(None) };
        let mut transfers = Transfers::new(&self.remote, client, Direction::Read, ask.pages.len());
        let (mut fillings, mut granted) = (Vec::with_capacity(slots.len()), Vec::with_capacity(slots.len()));
        let mut read = Ok(());
        for (position, place) in begun.outcomes.granted().zip(&slots) {
            granted.push(position);
            let Ok(at) = ask.pages.binary_search_by_key(&position, |page| page.position) else { continue };
            let page = &ask.pages[at];
            let filling = self.slot(*place).and_then(|slot| match page.carried.is_empty() {
                true => begin_filling(page, slot, &mut transfers),
                false => self.take_carried(page, slot, &mut transfers),
            });
            match filling {
                Ok(filling) => fillings.push(filling),
                Err(error) => read = Err(error),
            }
        }
        if read.is_ok() {
            read = self.read_pages(client, lease, &mut transfers, &mut fillings, gone).await;
        }
        self.end_transfers(client, transfers, gone).await;
        // Nobody writes a slot any more that the pool gets back, or shows.
        fillings.iter_mut().for_each(|filling| filling.claim = None);
        if let Err(error) = read {
            if let Err(error) = self.abort_offload(client.id, lease) {
                tracing::debug!(%error, "the lease of an offload from another host had ended already");
            }
            return Err(error);
        }
        self.commit_remote(client, lease, ask, &fillings, &granted).await.map(Some)
    }

    /// Takes a page that came with the request; one that is not as it left is read, as if nothing had come.
    fn take_carried<'a>(
        &self,
        page: &'a RemotePage,
        slot: Slot,
        transfers: &mut Transfers<'_>,
    ) -> Result<Filling<'a>, Error> {
        check_spans(page.position, &slot, &page.spans)?;
        let is_whole = page.carried.len() == slot.len();
        if is_whole && slot.claim().map_err(claimed)?.fill(&page.carried).1 == page.checksum {
            self.remote.carried(Direction::Read, page.carried.len());
            return Ok(Filling { page, slot, claim: None, state: FillState::Good });
        }
        self.remote.note_damaged();
        begin_filling(page, slot, transfers)
    }

    /// Reads until every page is good or bad, or the caller has left.
    async fn read_pages(
        &self,
        client: &RemoteClient,
        lease: LeaseId,
        transfers: &mut Transfers<'_>,
        fillings: &mut [Filling<'_>],
        gone: &dyn Fn() -> bool,
    ) -> Result<(), Error> {
        let again = Duration::from_millis(self.settings.limits.lease_ms / 4);
        let mut renewed = Instant::now();
        loop {
            let progress = transfers.next().await;
            if renewed.elapsed() >= again {
                renewed = Instant::now();
                let now = self.now();
                if !self.decide().pool.keep_filling(client.id, lease, now) {
                    return Err(Error::new(
                        ErrorKind::LeaseUnknown,
                        "the offload's lease ended: begin again",
                    ));
                }
            }
            let (position, arrived) = match progress {
                Progress::Whole(position) => (position, true),
                Progress::Failed(position, cause) => {
                    tracing::debug!(position, %cause, "a page could not be read from another host");
                    (position, false)
                }
                Progress::Quiet if gone() => {
                    return Err(Error::new(ErrorKind::LeaseUnknown, "the caller has left"));
                }
                Progress::Quiet => continue,
                Progress::Idle => return Ok(()),
            };
            let at = fillings.binary_search_by_key(&position, |filling| filling.page.position);
            let Some(filling) = at.ok().and_then(|at| fillings.get_mut(at)) else { continue };
            if !arrived {
                filling.state = FillState::Bad;
                continue;
            }
            let found = filling.claim.take().map(|claim| claim.seal().checksum());
            if found == Some(filling.page.checksum) {
                filling.state = FillState::Good;
                continue;
            }
            self.remote.note_damaged();
            filling.state = if filling.state == FillState::Due { FillState::Again } else { FillState::Bad };
            if filling.state == FillState::Again {
                filling.claim = Some(filling.slot.claim().map_err(claimed)?);
                transfers.repeat(position);
            }
        }
    }

    /// Commits the pages before the first one that is not good; the others count as dropped.
    async fn commit_remote(
        self: &Arc<Self>,
        client: &RemoteClient,
        lease: LeaseId,
        ask: &RemoteOffload,
        fillings: &[Filling<'_>],
        granted: &[u32],
    ) -> Result<OffloadCommitted, Error> {
        let good = fillings.iter().filter(|filling| filling.state == FillState::Good);
        let good: Vec<(u32, u64)> =
            good.map(|filling| (filling.page.position, filling.page.checksum)).collect();
        let is_good = |position: &u32| good.binary_search_by_key(position, |(position, _)| *position).is_ok();
        let first_bad = granted.iter().find(|position| !is_good(position)).copied();
        let kept = good.iter().filter(|(position, _)| first_bad.is_none_or(|first| *position < first));
        let pages: Vec<(u32, u64)> = kept.copied().collect();
        let lost =
            granted.iter().copied().filter(|position| first_bad.is_some_and(|first| *position >= first));
        let mut lost: Vec<u32> = lost.collect();
        let commit = CommitOffload { lease, pages, durable: ask.begin.durable };
        let mut committed = self.commit_offload(client.id, &commit).await?;
        committed.dropped.append(&mut lost);
        committed.dropped.sort_unstable();
        committed.dropped.dedup();
        Ok(committed)
    }
}

/// A granted slot that is to be read into.
fn begin_filling<'a>(
    page: &'a RemotePage,
    slot: Slot,
    transfers: &mut Transfers<'_>,
) -> Result<Filling<'a>, Error> {
    let claim = Some(slot.claim().map_err(claimed)?);
    transfers.add(page.position, &slot, &page.spans)?;
    Ok(Filling { page, slot, claim, state: FillState::Due })
}

/// Somebody writes a slot who lost his lease on it.
fn claimed(error: Claimed) -> Error {
    Error::new(ErrorKind::Internal, error.to_string())
}
