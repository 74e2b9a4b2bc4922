//! Reload to another host: the server writes pages into the client's memory as they land in their slots, or has the answer carry those
//! of a small call: another thread and half a trip more than an answer takes are a transfer's price. Owns: the verb's order.
//! Must not know: rails, messages.

use super::offload::RemotePage;
use crate::engine::Engine;
use crate::engine::hold::Release;
use crate::engine::reload::{BeginReload, ReloadRun, ReloadedPosition};
use crate::engine::remotes::clients::RemoteClient;
use crate::engine::remotes::transfers::{Progress, Transfers, check_spans};
use crate::limits::{LOCAL_LOOK, RETRY_AFTER_MS};
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_pool::{LeaseId, MissCause};
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::fabric::Direction;

/// Pages that are wanted, and where their bytes go.
pub(crate) struct RemoteReload {
    /// What is wanted.
    pub(crate) begin: BeginReload,
    /// Of every position, in order.
    pub(crate) pages: Vec<RemotePage>,
    /// The bytes in the slots are checked before they leave.
    pub(crate) verify: bool,
    /// The answers may carry the bytes.
    pub(crate) may_carry: bool,
}

/// A position as its caller is told of it.
#[derive(Debug)]
pub(crate) struct ToldPage {
    /// What became of it.
    pub(crate) position: ReloadedPosition,
    /// Its bytes, where they were not written to the caller's memory.
    pub(crate) carried: Bytes,
}

/// A caller to whom pages are told.
pub(crate) trait ReloadAudience {
    /// These positions are in its memory, or here, or missing, in order. `more`: others follow. False: it has left.
    fn tell(&mut self, pages: Vec<ToldPage>, more: bool) -> bool;

    /// It has left.
    fn has_left(&self) -> bool;
}

/// What was asked for and not told yet, in order.
struct Due {
    page: ToldPage,
    is_there: bool,
}

/// One reload under way.
struct Writing<'a> {
    ask: &'a RemoteReload,
    transfers: Transfers<'a>,
    carries: bool,
    due: VecDeque<Due>,
    corrupt: Vec<u32>,
}

impl Engine {
    /// Writes the pages of a run into the caller's memory, and tells of each when it is there.
    pub(crate) async fn write_remote(
        self: &Arc<Self>,
        client: &RemoteClient,
        ask: &RemoteReload,
        run: &mut ReloadRun,
        told: &mut dyn ReloadAudience,
    ) -> Result<(), Error> {
        let lease = run.lease.take();
        let transfers = Transfers::new(&self.remote, client, Direction::Write, ask.pages.len());
        let carries = ask.may_carry && client.has_no_nic();
        let mut writing = Writing { ask, transfers, carries, due: VecDeque::new(), corrupt: Vec::new() };
        let written = match lease.map(|lease| self.hold_remote(client, lease)).transpose() {
            Ok(_) => self.write_pages(client, lease, run, &mut writing, told).await,
            Err(error) => Err(error),
        };
        self.end_transfers(client, writing.transfers, &|| told.has_left()).await;
        if let Some(lease) = lease {
            let release = Release { lease, positions: Vec::new(), corrupt: writing.corrupt };
            if let Err(error) = self.release(client.id, &release) {
                tracing::debug!(%error, "the lease of a reload to another host had ended already");
            }
        }
        written
    }

    /// Time alone does not end the lease from now on.
    fn hold_remote(&self, client: &RemoteClient, lease: LeaseId) -> Result<(), Error> {
        let (renewed, _) = self.renew(client.id, &[lease]);
        if !renewed.gone.is_empty() {
            return Err(Error::new(ErrorKind::LeaseUnknown, "the reload's lease ended: begin again"));
        }
        if !renewed.refused.is_empty() {
            return Err(Error::busy(
                RETRY_AFTER_MS,
                "as many slots are on their way to other hosts as may be",
            ));
        }
        Ok(())
    }

    async fn write_pages(
        &self,
        client: &RemoteClient,
        lease: Option<LeaseId>,
        run: &mut ReloadRun,
        writing: &mut Writing<'_>,
        told: &mut dyn ReloadAudience,
    ) -> Result<(), Error> {
        let again = Duration::from_millis(self.settings.limits.lease_ms / 4);
        let mut renewed = Instant::now();
        loop {
            self.take_ready(run, writing)?;
            let ready = writing.take_there();
            let ended = ready.last().is_some_and(|page| page.position.found.is_err());
            let all = run.is_done() && writing.due.is_empty();
            let more = !(ended || all);
            if (!ready.is_empty() || !more) && !told.tell(ready, more) {
                return Err(Error::new(ErrorKind::LeaseUnknown, "the caller has left"));
            }
            if !more {
                return Ok(());
            }
            if let Some(lease) = lease
                && renewed.elapsed() >= again
            {
                renewed = Instant::now();
                self.hold_remote(client, lease)?;
            }
            let idle = writing.transfers.is_idle();
            let progress = tokio::select! {
                biased;
                progress = writing.transfers.next(), if !idle => progress,
                landed = tokio::time::timeout(LOCAL_LOOK, run.wait()), if !run.is_done() => {
                    if landed.is_err() { Progress::Quiet } else { continue }
                }
                else => Progress::Idle,
            };
            match progress {
                Progress::Whole(position) => writing.is_there(position),
                Progress::Failed(position, cause) => {
                    let text = format!("position {position} could not be written to its caller: {cause}");
                    return Err(Error::busy(RETRY_AFTER_MS, text));
                }
                Progress::Quiet if told.has_left() => {
                    return Err(Error::new(ErrorKind::LeaseUnknown, "the caller has left"));
                }
                Progress::Quiet | Progress::Idle => {}
            }
        }
    }

    /// Begins to write what has landed in its slot.
    fn take_ready(&self, run: &mut ReloadRun, writing: &mut Writing<'_>) -> Result<(), Error> {
        while let Some(mut page) = run.next_ready() {
            let (index, mut carried) = (page.index, Bytes::new());
            if let Ok(place) = page.found {
                let slot = self.slot(place)?;
                let target = writing.ask.pages.get(index as usize);
                let target = target.ok_or_else(|| Error::invalid("a position without memory for it"))?;
                if writing.ask.verify && slot.page().checksum() != page.checksum {
                    writing.corrupt.push(index);
                    page =
                        ReloadedPosition { checksum: 0, tier: None, found: Err(MissCause::Checksum), ..page };
                } else if writing.carries {
                    check_spans(index, &slot, &target.spans)?;
                    carried = slot.page().to_vec().into();
                    self.remote.carried(Direction::Write, carried.len());
                } else {
                    writing.transfers.add(index, &slot, &target.spans)?;
                }
            }
            let is_there = page.found.is_err() || !carried.is_empty();
            writing.due.push_back(Due { page: ToldPage { position: page, carried }, is_there });
        }
        Ok(())
    }
}

impl Writing<'_> {
    /// A position is in the caller's memory.
    fn is_there(&mut self, position: u32) {
        if let Some(due) = self.due.iter_mut().find(|due| due.page.position.index == position) {
            due.is_there = true;
        }
    }

    /// The leading positions that can be told; a miss is the last one.
    fn take_there(&mut self) -> Vec<ToldPage> {
        let mut there = Vec::new();
        while self.due.front().is_some_and(|due| due.is_there) {
            let Some(due) = self.due.pop_front() else { break };
            let missing = due.page.position.found.is_err();
            there.push(due.page);
            if missing {
                self.due.clear();
            }
        }
        there
    }
}
