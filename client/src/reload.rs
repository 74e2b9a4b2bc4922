//! Reload: pages come back from the pool. Owns: windows, what is reported. Must not know: how bytes travel
//! (see `shm` here and [`crate::inline`]).

use crate::backoff::Attempts;
use crate::config::Plane;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::link::Way;
use crate::namespace::Namespace;
use crate::offload::window_pages;
use crate::pages::PageTarget;
use std::future::Future;
use std::ops::Range;
use std::time::Duration;
use turnkv_proto::wire::{self, TierKind};
use turnkv_proto::{BlockHash, SessionId, Shards, pack_hashes};
use turnkv_transfer::PageMemory;

pub(crate) mod device;
pub(crate) mod framed;
pub(crate) mod shm;
#[cfg(test)]
mod tests;

/// How to reload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReloadOptions {
    /// The session that reloads. Of several members the one is asked at which its turn began; without it the first that is well, which
    /// need not have what [`Namespace::begin_turn`] found where `follow_homes` took it.
    pub session: Option<String>,
    /// The first shard of the pages that this call moves.
    pub shard: u16,
    /// How many shards from that one on it moves; 0 and 1: that one alone. With k of them there are k targets
    /// for each hash: page after page, of each page one shard after another. What is reported are whole pages
    /// all the same.
    pub shards: u16,
    /// By when to answer; none: the client's `call_ms`.
    pub deadline: Option<Duration>,
    /// Only what the pool itself has: what is on its way there from other pools, or the archive, is not waited for.
    pub here_only: bool,
}

/// What came back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReloadReport {
    /// Leading pages of which all shards asked for are in their targets, whole and verified. Targets after
    /// them hold anything.
    pub pages: usize,
    /// Of these, found in DRAM.
    pub from_dram: usize,
    /// Of these, found on NVMe, at least in part.
    pub from_nvme: usize,
    /// Why the page after them is not there; none: all came back.
    pub miss: Option<MissCause>,
    /// How the pages travelled; none: nothing was asked for.
    pub plane: Option<Plane>,
}

/// Why a page is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MissCause {
    /// Never offloaded, or evicted.
    Absent,
    /// Its bytes did not verify.
    Checksum,
    /// Its device failed.
    Io,
    /// No free slot to read it into in time.
    Busy,
    /// Another shard of it is missing.
    Incomplete,
    /// The copy took longer than the lease: what it copied was discarded.
    LeaseExpired,
    /// The deadline came first.
    Deadline,
    /// The pool went away, or failed, after earlier pages came back.
    Unavailable,
}

/// One window of pages to read.
#[derive(Debug)]
pub(crate) struct ReloadWindow {
    pub(crate) begin: wire::BeginReloadRequest,
    pub(crate) pages: usize,
    pub(crate) moved: Shards,
    pub(crate) deadline: Deadline,
}

impl ReloadWindow {
    /// Shards of pages that are asked for.
    pub(crate) fn positions(&self) -> usize {
        self.moved.positions(self.pages)
    }

    /// The same without its first pages.
    pub(crate) fn starting_at(&self, page: usize) -> ReloadWindow {
        let hashes = self.begin.hashes.slice(page * size_of::<BlockHash>()..);
        let begin = wire::BeginReloadRequest { hashes, ..self.begin.clone() };
        ReloadWindow { begin, pages: self.pages - page, moved: self.moved, deadline: self.deadline }
    }
}

/// Where the pages of a reload go.
pub(crate) trait Targets: Send {
    /// Asks for these positions, whole pages, as one window, and takes in those that come; counts whole pages
    /// in the report.
    fn window(
        &mut self,
        namespace: &Namespace,
        window: &ReloadWindow,
        positions: Range<usize>,
        report: &mut ReloadReport,
    ) -> impl Future<Output = Result<()>> + Send;
}

impl Targets for [PageTarget<'_>] {
    async fn window(
        &mut self,
        namespace: &Namespace,
        window: &ReloadWindow,
        positions: Range<usize>,
        report: &mut ReloadReport,
    ) -> Result<()> {
        let targets = &mut self[positions];
        match namespace.link.way(window.deadline).await? {
            Way::Shm(lent) => {
                report.plane = Some(Plane::Shm);
                namespace.reload_shm(lent, window, targets, report).await
            }
            Way::Framed(plane, lent) => {
                report.plane = Some(Plane::Framed);
                namespace.reload_framed(&plane, lent, window, targets, report).await
            }
            Way::Inline => {
                report.plane = Some(Plane::Inline);
                namespace.reload_inline(window, targets, report).await
            }
        }
    }
}

impl Namespace {
    /// Reloads pages, in prefix order, into their targets.
    pub async fn reload(
        &self,
        options: &ReloadOptions,
        hashes: &[BlockHash],
        targets: &mut [PageTarget<'_>],
    ) -> Result<ReloadReport> {
        let moved = self.moved(options.shard, options.shards)?;
        self.check_pages(moved, hashes, targets.iter().map(PageTarget::len))?;
        if PageMemory::any_overlap(targets.iter().filter_map(PageTarget::memory)) {
            return Err(Error::invalid("two pages of one reload overlap in memory"));
        }
        self.reload_into(options, hashes, targets, self.link.deadline(options.deadline)).await
    }

    /// The call around the windows, wherever the pages go.
    async fn reload_into(
        &self,
        options: &ReloadOptions,
        hashes: &[BlockHash],
        targets: &mut (impl Targets + ?Sized),
        deadline: Deadline,
    ) -> Result<ReloadReport> {
        options.check()?;
        let mut tries = self.tries(options.session.as_deref());
        loop {
            match tries.at().reload_there(options, hashes, targets, deadline).await {
                Err(error) if tries.go_on(&error, deadline) => {}
                report => return report,
            }
        }
    }

    async fn reload_there(
        &self,
        options: &ReloadOptions,
        hashes: &[BlockHash],
        targets: &mut (impl Targets + ?Sized),
        deadline: Deadline,
    ) -> Result<ReloadReport> {
        let call = self.link.admit()?;
        let mut report = ReloadReport::default();
        let result = self.reload_windows(options, hashes, targets, deadline, &mut report).await;
        let result = call.end_after(report.pages > 0, result);
        report.conclude(hashes.len(), result)
    }

    async fn reload_windows(
        &self,
        options: &ReloadOptions,
        hashes: &[BlockHash],
        targets: &mut (impl Targets + ?Sized),
        deadline: Deadline,
        report: &mut ReloadReport,
    ) -> Result<()> {
        let moved = self.moved(options.shard, options.shards)?;
        let window_pages = window_pages(self.shard_bytes(), moved);
        let mut attempts = Attempts::default();
        while report.pages < hashes.len() && report.miss.is_none() {
            let at = report.pages;
            let end = hashes.len().min(at + window_pages);
            let window = self.reload_window(options, moved, &hashes[at..end], deadline);
            let positions = moved.positions(at)..moved.positions(end);
            match targets.window(self, &window, positions, report).await {
                // An answer that covers nothing and names no cause would be asked for again for ever.
                Ok(()) if report.pages == at && report.miss.is_none() => report.miss = Some(MissCause::Busy),
                Ok(()) => attempts.progressed(),
                Err(error) if self.again(&error, &mut attempts, deadline).await? => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(crate) fn reload_window(
        &self,
        options: &ReloadOptions,
        moved: Shards,
        hashes: &[BlockHash],
        deadline: Deadline,
    ) -> ReloadWindow {
        let begin = wire::BeginReloadRequest {
            namespace: self.wire_id(),
            hashes: pack_hashes(hashes).into(),
            shard: moved.first().into(),
            shards: moved.count() as u32,
            client: 0, // the connection's
            wait_ms: deadline.server_wait_ms(),
            session: options.session.clone().unwrap_or_default(),
            hold: false,
            here_only: options.here_only,
        };
        ReloadWindow { begin, pages: hashes.len(), moved, deadline }
    }
}

impl ReloadOptions {
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(session) = &self.session {
            SessionId::parse(session)?;
        }
        Ok(())
    }
}

impl ReloadReport {
    /// Counts a page that is in its target.
    pub(crate) fn count(&mut self, tier: TierKind) {
        self.pages += 1;
        match tier {
            TierKind::Nvme => self.from_nvme += 1,
            TierKind::Dram | TierKind::Unspecified => self.from_dram += 1,
        }
    }

    /// Adds what came of the pages that follow.
    fn add(&mut self, next: &ReloadReport) {
        self.pages += next.pages;
        self.from_dram += next.from_dram;
        self.from_nvme += next.from_nvme;
        self.miss = next.miss;
    }

    /// What came back before an error came back: the error becomes the reason of the rest.
    pub(crate) fn conclude(mut self, total: usize, result: Result<()>) -> Result<ReloadReport> {
        assert!(self.pages <= total, "no page is counted twice");
        match result {
            Ok(()) => Ok(self),
            Err(error) if self.pages == 0 => Err(error),
            Err(error) => {
                tracing::debug!(%error, pages = self.pages, total, "a reload ended early");
                self.miss = Some(match error.kind {
                    ErrorKind::Deadline => MissCause::Deadline,
                    ErrorKind::LeaseExpired => MissCause::LeaseExpired,
                    ErrorKind::Busy { .. } => MissCause::Busy,
                    _ => MissCause::Unavailable,
                });
                Ok(self)
            }
        }
    }
}

/// Shards that come one after another: a page is there when the last one of it is.
#[derive(Debug)]
pub(crate) struct Arrivals {
    moved: Shards,
    positions: usize,
    /// A shard of the page under way came from NVMe.
    nvme: bool,
}

impl Arrivals {
    pub(crate) fn new(moved: Shards) -> Arrivals {
        Arrivals { moved, positions: 0, nvme: false }
    }

    /// Counts the next shard, which is in its target.
    pub(crate) fn count(&mut self, found_in: TierKind, report: &mut ReloadReport) {
        self.nvme |= found_in == TierKind::Nvme;
        self.positions += 1;
        if self.positions.is_multiple_of(self.moved.count()) {
            report.count(if std::mem::take(&mut self.nvme) { TierKind::Nvme } else { found_in });
        }
    }
}

impl MissCause {
    /// Reads the wire's number; 0 is no miss.
    pub(crate) fn read(number: i32) -> Result<Option<MissCause>> {
        match wire::MissCause::try_from(number) {
            Ok(wire::MissCause::Unspecified) => Ok(None),
            Ok(wire::MissCause::Absent) => Ok(Some(MissCause::Absent)),
            Ok(wire::MissCause::Checksum) => Ok(Some(MissCause::Checksum)),
            Ok(wire::MissCause::Io) => Ok(Some(MissCause::Io)),
            Ok(wire::MissCause::Busy) => Ok(Some(MissCause::Busy)),
            Ok(wire::MissCause::Incomplete) => Ok(Some(MissCause::Incomplete)),
            Err(_) => Err(Error::protocol(format!("miss cause {number}"))),
        }
    }
}

/// Where a page was found; numbers that this version does not know count as DRAM.
pub(crate) fn tier(number: i32) -> TierKind {
    TierKind::try_from(number).unwrap_or(TierKind::Unspecified)
}
