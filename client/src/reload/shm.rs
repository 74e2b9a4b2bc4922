//! One window of a reload through shared memory: begin, copy each page out of its slot as it arrives, end.
//! Owns: reading the stream of pages, the lease's time. Must not know: what comes before and after the
//! window.

use crate::error::{Error, Result};
use crate::limits::YIELD_BYTES;
use crate::local::{Lent, SlotOf};
use crate::namespace::Namespace;
use crate::pages::PageTarget;
use crate::reload::{Arrivals, MissCause, ReloadReport, ReloadWindow, tier};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::Slot;

/// The stream that answers one BeginReload: a slot for each position.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) lent: Lent,
    asked: usize,
    covered: usize,
    next: usize,
    waiting: VecDeque<wire::ReloadedPage>,
    more: bool,
    /// What is read at or after this moment may be another page's bytes: counted from before the request was
    /// sent.
    pub(crate) lease_end: Instant,
    begun: Instant,
}

/// The next of [`Pages`].
#[derive(Debug)]
pub(crate) enum Next {
    /// A shard of a page is in a slot.
    Page { position: u32, slot: Slot, place: wire::SlotRef, checksum: u64, tier: wire::TierKind },
    /// A page is not there, and none after it.
    Miss(MissCause),
    /// The window's pages are through.
    End,
}

impl Pages {
    pub(crate) async fn begin(mut lent: Lent, window: &ReloadWindow) -> Result<Pages> {
        let begun = Instant::now();
        let begin = wire::BeginReloadRequest { client: lent.client(), ..window.begin.clone() };
        lent.request(Verb::BeginReload, &begin, window.deadline)?;
        let asked = window.positions();
        let waiting = VecDeque::new();
        let mut pages =
            Pages { lent, asked, covered: 0, next: 0, waiting, more: true, lease_end: begun, begun };
        let first = pages.read(window).await?;
        pages.covered = first.covered as usize;
        pages.lease_end = pages.begun + Duration::from_millis(first.lease_ms.into());
        if pages.covered > asked {
            pages.lent.close();
            return Err(Error::protocol("it covers more pages than were asked for"));
        }
        Ok(pages)
    }

    pub(crate) async fn next(&mut self, namespace: &Namespace, window: &ReloadWindow) -> Result<Next> {
        while self.waiting.is_empty() && self.more {
            self.read(window).await?;
        }
        let Some(page) = self.waiting.pop_front() else { return Ok(Next::End) };
        let next = self.place(namespace, window, &page).await;
        if matches!(&next, Err(error) if error.kind == crate::ErrorKind::Internal) {
            self.lent.close();
        }
        next
    }

    /// Reads the next message of the stream.
    async fn read(&mut self, window: &ReloadWindow) -> Result<wire::BeginReloadReply> {
        let (mut reply, more) = self.lent.reply::<wire::BeginReloadReply>(window.deadline).await?;
        self.more = more;
        self.waiting.extend(std::mem::take(&mut reply.pages));
        Ok(reply)
    }

    async fn place(
        &mut self,
        namespace: &Namespace,
        window: &ReloadWindow,
        page: &wire::ReloadedPage,
    ) -> Result<Next> {
        if page.index as usize != self.next || self.next >= self.asked {
            return Err(Error::protocol(format!("page {} where page {} was due", page.index, self.next)));
        }
        if let Some(cause) = MissCause::read(page.miss)? {
            return Ok(Next::Miss(cause));
        }
        self.next += 1;
        let (server, id, pool) = (self.lent.server(), namespace.id(), Arc::clone(self.lent.pool()));
        let place = SlotOf { server: &server, namespace: &id.0, page_bytes: namespace.page_bytes() };
        let slot = pool.slot(place, page.slot.as_ref(), window.deadline).await?;
        let (place, tier) = (page.slot.unwrap_or_default(), tier(page.tier));
        Ok(Next::Page { position: page.index, slot, place, checksum: page.checksum, tier })
    }
}

impl Namespace {
    /// Dropping this future at any moment ends the lease: `Lent` sees to it.
    pub(crate) async fn reload_shm(
        &self,
        lent: Lent,
        window: &ReloadWindow,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
    ) -> Result<()> {
        let mut pages = Pages::begin(lent, window).await?;
        let (mut copied, mut arrivals) = (0, Arrivals::new(window.moved));
        loop {
            let (position, slot, checksum, tier) = match pages.next(self, window).await? {
                Next::Page { position, slot, checksum, tier, .. } => (position, slot, checksum, tier),
                Next::Miss(cause) => {
                    report.miss = Some(cause);
                    return Ok(());
                }
                Next::End => return Ok(()),
            };
            let found = targets[position as usize].drain(&slot.page());
            // The order matters: only a copy that ended within the lease is a copy of this page.
            if Instant::now() >= pages.lease_end {
                report.miss = Some(MissCause::LeaseExpired);
                return Ok(());
            }
            if self.link.config.verify && found != checksum {
                tracing::warn!(namespace = %self.id(), position, "a page in DRAM does not verify: it is a miss");
                pages.lent.report_corrupt(position);
                report.miss = Some(MissCause::Checksum);
                return Ok(());
            }
            arrivals.count(tier, report);
            copied += slot.len();
            if copied >= YIELD_BYTES {
                copied = 0;
                tokio::task::yield_now().await;
                window.deadline.check()?;
            }
        }
    }
}
