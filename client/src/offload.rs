//! Offload: pages go to the pool. Owns: windows, retries, what is reported. Must not know: how bytes travel (see `shm` here
//! and [`crate::inline`]).

use crate::backoff::Attempts;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{WINDOW_BYTES_MAX, WINDOW_PAGES_MAX};
use crate::namespace::Namespace;
use crate::pages::PageSource;
use std::future::Future;
use std::ops::Range;
use std::time::Duration;
use turnkv_proto::wire::{self, OffloadOutcome};
use turnkv_proto::{BlockHash, SessionId, pack_hashes};

pub(crate) mod device;
mod shm;
#[cfg(test)]
mod tests;

/// How to offload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OffloadOptions {
    /// The session these pages belong to.
    pub session: Option<String>,
    /// Hash of the page before the first one; none at the root.
    pub parent: Option<BlockHash>,
    /// Which shard of the pages this is.
    pub shard: u16,
    /// Greater than 0: the last page is a partial tail of so many tokens.
    pub tail_tokens: u32,
    /// Answer only when the pages are on NVMe and flushed.
    pub durable: bool,
    /// By when to answer; none: the client's `call_ms`.
    pub deadline: Option<Duration>,
    /// How long to wait for free slots; zero: do not.
    pub wait: Duration,
}

/// What became of the pages: `stored + present + declined` is their number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OffloadReport {
    /// Pages stored by this call.
    pub stored: usize,
    /// Pages that were there already.
    pub present: usize,
    /// Pages not kept.
    pub declined: usize,
    /// Why the first of them was not; all after it depend on it.
    pub first_decline: Option<Decline>,
    /// The pages stored or present are on NVMe and flushed (false if there are none, or durability was not asked for).
    pub durable: bool,
    /// Why they are not, where durability was asked for and the server said.
    pub not_durable: Option<NotDurable>,
}

/// Why pages that were kept are not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotDurable {
    /// The server keeps nothing on NVMe: do not ask.
    NoTier,
    /// The writes go on, but took too long to wait for: offload the same pages again to ask.
    Timeout,
    /// The bytes of a page did not match its checksum when they were written: it is dropped. Somebody writes to its slot.
    Changed,
    /// A page left the pool, or NVMe, meanwhile: offload it again.
    Lost,
    /// The device failed: its operator must look.
    Device,
}

/// Why a page was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decline {
    /// No free slot.
    NoSpace,
    /// What would make way for it is likelier to be used again.
    Outranked,
    /// Another client is offloading it now.
    InFlight,
    /// The page before it is not in the pool.
    NoParent,
    /// The server is leaving.
    Draining,
    /// This client holds as many slots as it may.
    LeaseLimit,
    /// The copy took longer than the lease.
    LeaseExpired,
    /// The deadline came first.
    Deadline,
    /// The pool went away, or failed, after earlier pages were stored.
    Unavailable,
}

/// One window of pages to offer.
#[derive(Debug)]
pub(crate) struct Window {
    pub(crate) begin: wire::BeginOffloadRequest,
    pub(crate) pages: usize,
    pub(crate) durable: bool,
    pub(crate) deadline: Deadline,
}

/// Where the pages of an offload come from.
pub(crate) trait Sources: Sync {
    /// Bytes of the pages of one window.
    const WINDOW_BYTES_MAX: u64 = WINDOW_BYTES_MAX;

    /// Offers the pages at these positions as one window, and fills the slots that are granted.
    fn window(
        &self,
        namespace: &Namespace,
        window: &Window,
        pages: Range<usize>,
    ) -> impl Future<Output = Result<Done>> + Send;
}

impl Sources for [PageSource<'_>] {
    async fn window(&self, namespace: &Namespace, window: &Window, pages: Range<usize>) -> Result<Done> {
        let pages = &self[pages];
        match namespace.link.lend(window.deadline).await? {
            Some(lent) => namespace.offload_shm(lent, window, pages).await,
            None => namespace.offload_inline(window, pages).await,
        }
    }
}

/// What became of a window.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) stored: usize,
    pub(crate) present: usize,
    pub(crate) durable: bool,
    pub(crate) not_durable: Option<NotDurable>,
    /// Why the page after these was declined; none: the window is done.
    pub(crate) decline: Option<Decline>,
    pub(crate) retry_after_ms: u32,
}

impl Namespace {
    /// Offloads pages, in prefix order. `Ok` tells what was kept; what was not can be offered again later.
    pub async fn offload(
        &self,
        options: &OffloadOptions,
        hashes: &[BlockHash],
        pages: &[PageSource<'_>],
    ) -> Result<OffloadReport> {
        self.check_pages(options.shard, hashes, pages.iter().map(PageSource::len))?;
        self.offload_from(options, hashes, pages, self.link.deadline(options.deadline)).await
    }

    /// The call around the windows, wherever the pages come from.
    async fn offload_from(
        &self,
        options: &OffloadOptions,
        hashes: &[BlockHash],
        pages: &(impl Sources + ?Sized),
        deadline: Deadline,
    ) -> Result<OffloadReport> {
        options.check(self.page_tokens())?;
        let call = self.link.admit()?;
        let mut report = OffloadReport { durable: options.durable, ..OffloadReport::default() };
        let result = self.offload_windows(options, hashes, pages, deadline, &mut report).await;
        let result = call.end_after(report.stored + report.present > 0, result);
        report.conclude(hashes.len(), result)
    }

    async fn offload_windows<S: Sources + ?Sized>(
        &self,
        options: &OffloadOptions,
        hashes: &[BlockHash],
        pages: &S,
        deadline: Deadline,
        report: &mut OffloadReport,
    ) -> Result<()> {
        let window_pages = pages_within(S::WINDOW_BYTES_MAX, self.shard_bytes());
        let patience = deadline.within(options.wait);
        let mut attempts = Attempts::default();
        loop {
            let at = report.stored + report.present;
            if at == hashes.len() {
                return Ok(());
            }
            let end = hashes.len().min(at + window_pages);
            let window = Window {
                begin: self.begin(options, hashes, at..end, patience.server_wait_ms()),
                pages: end - at,
                durable: options.durable,
                deadline,
            };
            let done = match pages.window(self, &window, at..end).await {
                Ok(done) => done,
                Err(error) if self.again(&error, &mut attempts, deadline).await? => continue,
                Err(error) => return Err(error),
            };
            report.stored += done.stored;
            report.present += done.present;
            if done.stored + done.present > 0 {
                attempts.progressed();
                // A durable page's ancestors are durable too: the last window speaks for all before it.
                report.durable = options.durable && done.durable;
                report.not_durable = done.not_durable;
            }
            report.first_decline = done.decline;
            let Some(decline) = done.decline else { continue };
            let freed = decline == Decline::LeaseLimit && done.stored > 0;
            if freed {
                continue; // the commit freed the leases that were in the way
            }
            if !decline.is_passing() || !attempts.pause(done.retry_after_ms, patience).await {
                return Ok(());
            }
        }
    }

    fn begin(
        &self,
        options: &OffloadOptions,
        hashes: &[BlockHash],
        range: Range<usize>,
        wait_ms: u32,
    ) -> wire::BeginOffloadRequest {
        let parent = if range.start == 0 { options.parent.as_ref() } else { hashes.get(range.start - 1) };
        wire::BeginOffloadRequest {
            namespace: self.wire_id(),
            session: options.session.clone().unwrap_or_default(),
            parent: parent.map(|hash| hash.0.to_vec()).unwrap_or_default().into(),
            tail_tokens: if range.end == hashes.len() { options.tail_tokens } else { 0 },
            hashes: pack_hashes(&hashes[range]).into(),
            shard: options.shard.into(),
            client: 0, // the connection's
            wait_ms,
            durable: options.durable,
        }
    }
}

impl OffloadOptions {
    pub(crate) fn check(&self, page_tokens: u32) -> Result<()> {
        if self.tail_tokens >= page_tokens && self.tail_tokens > 0 {
            let text =
                format!("a tail of {} tokens is not partial: pages have {page_tokens}", self.tail_tokens);
            return Err(Error::invalid(text));
        }
        if let Some(session) = &self.session {
            SessionId::parse(session)?;
        }
        Ok(())
    }
}

impl OffloadReport {
    /// What was stored before an error is stored: the error becomes the reason of the rest.
    pub(crate) fn conclude(mut self, total: usize, result: Result<()>) -> Result<OffloadReport> {
        let kept = self.stored + self.present;
        assert!(kept <= total, "no page is counted twice");
        if let Err(error) = result {
            if kept == 0 {
                return Err(error);
            }
            tracing::debug!(%error, kept, total, "an offload ended early");
            self.first_decline = Some(match error.kind {
                ErrorKind::Deadline => Decline::Deadline,
                ErrorKind::LeaseExpired => Decline::LeaseExpired,
                ErrorKind::Draining => Decline::Draining,
                ErrorKind::Busy { .. } => Decline::LeaseLimit,
                _ => Decline::Unavailable,
            });
        }
        self.declined = total - kept;
        self.durable &= kept > 0;
        if self.declined == 0 {
            self.first_decline = None;
        }
        Ok(self)
    }
}

impl NotDurable {
    /// What a server said; none if it said nothing.
    pub(crate) fn read(said: wire::NotDurable) -> Option<NotDurable> {
        Some(match said {
            wire::NotDurable::Unspecified => return None,
            wire::NotDurable::NoTier => NotDurable::NoTier,
            wire::NotDurable::Timeout => NotDurable::Timeout,
            wire::NotDurable::Changed => NotDurable::Changed,
            wire::NotDurable::Lost => NotDurable::Lost,
            wire::NotDurable::Device => NotDurable::Device,
        })
    }
}

impl Decline {
    /// Whether the same page may be taken a little later.
    fn is_passing(self) -> bool {
        matches!(self, Decline::NoSpace | Decline::InFlight | Decline::LeaseLimit)
    }
}

/// Which pages of a window to fill: the leading run that was not declined.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    /// Positions in the window, ascending, with the number of the slot in the reply.
    pub(crate) fill: Vec<u32>,
    pub(crate) present: usize,
    pub(crate) decline: Option<Decline>,
}

impl Granted {
    /// Reads a reply to a window of `pages` pages.
    pub(crate) fn read(reply: &wire::BeginOffloadReply, pages: usize) -> Result<Granted> {
        if reply.outcomes.len() != pages {
            return Err(Error::protocol(format!("{} outcomes for {pages} pages", reply.outcomes.len())));
        }
        let mut granted = Granted { fill: Vec::new(), present: 0, decline: None };
        // By number: the generated iterator would skip outcomes it does not know, and shift those after them.
        for (position, number) in reply.outcomes.iter().enumerate() {
            let decline = match OffloadOutcome::try_from(*number).unwrap_or_default() {
                OffloadOutcome::Present => {
                    granted.present += 1;
                    continue;
                }
                OffloadOutcome::Granted => {
                    granted.fill.push(position as u32);
                    continue;
                }
                OffloadOutcome::NoSpace => Decline::NoSpace,
                OffloadOutcome::Outranked => Decline::Outranked,
                OffloadOutcome::InFlight => Decline::InFlight,
                OffloadOutcome::NoParent => Decline::NoParent,
                OffloadOutcome::Draining => Decline::Draining,
                OffloadOutcome::LeaseLimit => Decline::LeaseLimit,
                OffloadOutcome::Unspecified | OffloadOutcome::Stored => {
                    return Err(Error::protocol("an outcome that is none of an offer"));
                }
            };
            // Pages after a declined one are not reachable: whatever is said of them is not used.
            granted.decline = Some(decline);
            break;
        }
        Ok(granted)
    }

    /// What the answer to a commit of all of `fill` leaves.
    pub(crate) fn committed(self, reply: &wire::CommitOffloadReply, retry_after_ms: u32) -> Result<Done> {
        let (durable, not_durable) = (reply.durable, NotDurable::read(reply.not_durable()));
        let Some(first) = reply.dropped.iter().min() else {
            let (stored, present, decline) = (self.fill.len(), self.present, self.decline);
            return Ok(Done { stored, present, durable, not_durable, decline, retry_after_ms });
        };
        let stored = self.fill.iter().take_while(|position| *position < first).count();
        let Some(dropped_at) = self.fill.get(stored).filter(|position| *position == first) else {
            return Err(Error::protocol("it dropped a page that was not offered"));
        };
        // Everything before the first dropped page is in the pool, present or stored.
        let present = *dropped_at as usize - stored;
        let decline = Some(Decline::NoParent);
        Ok(Done { stored, present, durable, not_durable, decline, retry_after_ms: 0 })
    }
}

/// Pages of a window, at least one.
pub(crate) fn window_pages(shard_bytes: u64) -> usize {
    pages_within(WINDOW_BYTES_MAX, shard_bytes)
}

fn pages_within(bytes_max: u64, shard_bytes: u64) -> usize {
    let fit = usize::try_from(bytes_max / shard_bytes.max(1)).unwrap_or(usize::MAX);
    fit.clamp(1, WINDOW_PAGES_MAX)
}
