//! Offload: pages go to the pool. Owns: windows, retries, what is reported. Must not know: how bytes travel
//! (see `shm` here and [`crate::inline`]).

use crate::backoff::Attempts;
use crate::config::Plane;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::limits::{WINDOW_BYTES_MAX, WINDOW_PAGES_MAX};
use crate::link::Way;
use crate::namespace::Namespace;
use crate::pages::PageSource;
use std::future::Future;
use std::ops::Range;
use std::time::Duration;
use turnkv_proto::wire::{self, OffloadOutcome};
use turnkv_proto::{BlockHash, SessionId, Shards, pack_hashes};

pub(crate) mod device;
pub(crate) mod framed;
mod shm;
#[cfg(test)]
mod tests;

/// How to offload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OffloadOptions {
    /// The session these pages belong to. Of several members they go to the one at which its turn began; without it to the first that
    /// is well.
    pub session: Option<String>,
    /// Hash of the page before the first one; none at the root.
    pub parent: Option<BlockHash>,
    /// The first shard of the pages that this call moves.
    pub shard: u16,
    /// How many shards from that one on it moves; 0 and 1: that one alone. With k of them `pages` has k
    /// entries for each hash: page after page, of each page one shard after another. What is reported are
    /// whole pages all the same.
    pub shards: u16,
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
    /// Pages of which this call stored a shard, and whose other shards that it moves were there already.
    pub stored: usize,
    /// Pages of which all shards that this call moves were there already.
    pub present: usize,
    /// Pages not kept.
    pub declined: usize,
    /// Why the first of them was not; all after it depend on it.
    pub first_decline: Option<Decline>,
    /// The pages stored or present are on NVMe and flushed (false if there are none, or durability was not
    /// asked for).
    pub durable: bool,
    /// Why they are not, where durability was asked for and the server said.
    pub not_durable: Option<NotDurable>,
    /// How the pages travelled; none: nothing was offered.
    pub plane: Option<Plane>,
}

/// Why pages that were kept are not durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotDurable {
    /// The server keeps nothing on NVMe: do not ask.
    NoTier,
    /// The writes go on, but took too long to wait for: offload the same pages again to ask.
    Timeout,
    /// The bytes of a page did not match its checksum when they were written: it is dropped. Somebody writes
    /// to its slot.
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
    /// The page before it is not in the pool, or this one did not arrive whole.
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
pub(crate) struct OffloadWindow {
    pub(crate) begin: wire::BeginOffloadRequest,
    pub(crate) pages: usize,
    pub(crate) moved: Shards,
    pub(crate) durable: bool,
    pub(crate) deadline: Deadline,
}

impl OffloadWindow {
    /// Some of its pages as a window of their own.
    fn part(&self, pages: Range<usize>) -> OffloadWindow {
        const HASH: usize = size_of::<BlockHash>();
        let hash = |page: usize| page * HASH..(page + 1) * HASH;
        let mut begin = self.begin.clone();
        if pages.start > 0 {
            begin.parent = self.begin.hashes.slice(hash(pages.start - 1));
        }
        if pages.end < self.pages {
            begin.tail_tokens = 0;
        }
        begin.hashes = self.begin.hashes.slice(pages.start * HASH..pages.end * HASH);
        OffloadWindow { begin, pages: pages.len(), ..*self }
    }
}

/// Where the pages of an offload come from.
pub(crate) trait Sources: Sync {
    /// Bytes of the pages of one window.
    const WINDOW_BYTES_MAX: u64 = WINDOW_BYTES_MAX;

    /// Offers these positions, whole pages, as one window, and fills the slots that are granted.
    fn window(
        &self,
        namespace: &Namespace,
        window: &OffloadWindow,
        positions: Range<usize>,
    ) -> impl Future<Output = Result<Done>> + Send;
}

impl Sources for [PageSource<'_>] {
    async fn window(
        &self,
        namespace: &Namespace,
        window: &OffloadWindow,
        positions: Range<usize>,
    ) -> Result<Done> {
        let pages = &self[positions];
        match namespace.link.way(window.deadline).await? {
            Way::Shm(lent) => Ok(namespace.offload_shm(lent, window, pages).await?.over(Plane::Shm)),
            Way::Framed(plane, lent) => {
                Ok(namespace.offload_framed(&plane, lent, window, pages).await?.over(Plane::Framed))
            }
            Way::Inline => Ok(namespace.offload_inline(window, pages).await?.over(Plane::Inline)),
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
    pub(crate) plane: Option<Plane>,
    /// Why the page after these was declined; none: the window is done.
    pub(crate) decline: Option<Decline>,
    pub(crate) retry_after_ms: u32,
}

impl Done {
    /// The same, with how its pages travelled.
    pub(crate) fn over(self, plane: Plane) -> Done {
        Done { plane: Some(plane), ..self }
    }

    /// With what became of the pages behind these.
    fn then(self, more: Done) -> Done {
        Done { stored: self.stored + more.stored, present: self.present + more.present, ..more }
    }
}

impl Namespace {
    /// Offloads pages, in prefix order. `Ok` tells what was kept; what was not can be offered again later.
    pub async fn offload(
        &self,
        options: &OffloadOptions,
        hashes: &[BlockHash],
        pages: &[PageSource<'_>],
    ) -> Result<OffloadReport> {
        let moved = self.moved(options.shard, options.shards)?;
        self.check_pages(moved, hashes, pages.iter().map(PageSource::len))?;
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
        let mut tries = self.tries(options.session.as_deref());
        loop {
            match tries.at().offload_there(options, hashes, pages, deadline).await {
                Err(error) if tries.go_on(&error, deadline) => {}
                report => return report,
            }
        }
    }

    async fn offload_there(
        &self,
        options: &OffloadOptions,
        hashes: &[BlockHash],
        pages: &(impl Sources + ?Sized),
        deadline: Deadline,
    ) -> Result<OffloadReport> {
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
        let moved = self.moved(options.shard, options.shards)?;
        let window_pages = pages_within(S::WINDOW_BYTES_MAX, self.shard_bytes(), moved);
        let patience = deadline.within(options.wait);
        let mut attempts = Attempts::default();
        loop {
            let at = report.stored + report.present;
            if at == hashes.len() {
                return Ok(());
            }
            let end = hashes.len().min(at + window_pages);
            let window = OffloadWindow {
                begin: self.begin(options, hashes, at..end, patience.server_wait_ms()),
                pages: end - at,
                moved,
                durable: options.durable,
                deadline,
            };
            let positions = moved.positions(at)..moved.positions(end);
            let done = match pages.window(self, &window, positions).await {
                Ok(done) => done,
                Err(error) if self.again(&error, &mut attempts, deadline).await? => continue,
                Err(error) => return Err(error),
            };
            report.plane = done.plane;
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
            shards: options.shards.into(),
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

/// Which positions of a window to fill: those of the leading run of pages that were not declined.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    /// Positions in the window, ascending; each has the slot of its number here in the reply.
    pub(crate) fill: Vec<u32>,
    /// Pages of which all positions were there.
    pub(crate) present: usize,
    pub(crate) decline: Option<Decline>,
    moved: Shards,
}

impl Granted {
    /// Reads a reply to a window. A page of which one position is declined is not used, nor is anything after
    /// it: whatever was granted of these the commit gives back.
    pub(crate) fn read(reply: &wire::BeginOffloadReply, pages: usize, moved: Shards) -> Result<Granted> {
        let positions = moved.positions(pages);
        if reply.outcomes.len() != positions {
            let text = format!("{} outcomes for {positions} shards of pages", reply.outcomes.len());
            return Err(Error::protocol(text));
        }
        let mut granted = Granted { fill: Vec::new(), present: 0, decline: None, moved };
        // By number: the generated iterator would skip outcomes it does not know, and shift those after them.
        for (page, outcomes) in reply.outcomes.chunks(moved.count()).enumerate() {
            let before = granted.fill.len();
            for (position, number) in (moved.positions(page)..).zip(outcomes) {
                match read_outcome(*number)? {
                    Answer::Present => {}
                    Answer::Granted => granted.fill.push(position as u32),
                    Answer::Declined(why) => {
                        granted.fill.truncate(before);
                        granted.decline = Some(why);
                        return Ok(granted);
                    }
                }
            }
            granted.present += usize::from(granted.fill.len() == before);
        }
        Ok(granted)
    }

    /// What the answer to a commit of all of `fill` leaves: pages of which every position is in the pool.
    pub(crate) fn committed(self, reply: &wire::CommitOffloadReply, retry_after_ms: u32) -> Result<Done> {
        let (durable, not_durable) = (reply.durable, NotDurable::read(reply.not_durable()));
        let Some(first) = reply.dropped.iter().min() else {
            let (stored, present, decline) = (self.pages_filled(usize::MAX), self.present, self.decline);
            return Ok(Done { stored, present, durable, not_durable, decline, retry_after_ms, plane: None });
        };
        if !self.fill.contains(first) {
            return Err(Error::protocol("it dropped a page that was not offered"));
        }
        // Everything before the first torn page is in the pool, present or stored.
        let torn = self.moved.page(*first as usize);
        let stored = self.pages_filled(torn);
        let decline = Some(Decline::NoParent);
        let present = torn - stored;
        Ok(Done { stored, present, durable, not_durable, decline, ..Done::default() })
    }

    /// Pages before this one of which a position is filled.
    fn pages_filled(&self, end: usize) -> usize {
        let pages = self.fill.iter().map(|position| self.moved.page(*position as usize));
        let mut last = None;
        pages.take_while(|page| *page < end).filter(|page| last.replace(*page) != Some(*page)).count()
    }
}

/// What a server said of one position of an offer.
enum Answer {
    Present,
    Granted,
    Declined(Decline),
}

fn read_outcome(number: i32) -> Result<Answer> {
    Ok(Answer::Declined(match OffloadOutcome::try_from(number).unwrap_or_default() {
        OffloadOutcome::Present => return Ok(Answer::Present),
        OffloadOutcome::Granted => return Ok(Answer::Granted),
        OffloadOutcome::NoSpace => Decline::NoSpace,
        OffloadOutcome::Outranked => Decline::Outranked,
        OffloadOutcome::InFlight => Decline::InFlight,
        OffloadOutcome::NoParent => Decline::NoParent,
        OffloadOutcome::Draining => Decline::Draining,
        OffloadOutcome::LeaseLimit => Decline::LeaseLimit,
        OffloadOutcome::Unspecified | OffloadOutcome::Stored => {
            return Err(Error::protocol("an outcome that is none of an offer"));
        }
    }))
}

/// Pages of a window of which these shards are moved, at least one.
pub(crate) fn window_pages(shard_bytes: u64, moved: Shards) -> usize {
    pages_within(WINDOW_BYTES_MAX, shard_bytes, moved)
}

fn pages_within(bytes_max: u64, shard_bytes: u64, moved: Shards) -> usize {
    let fit = usize::try_from(bytes_max / shard_bytes.max(1)).unwrap_or(usize::MAX);
    moved.whole_pages(fit.min(WINDOW_PAGES_MAX)).max(1)
}
