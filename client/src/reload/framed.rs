//! One window of a reload over a network: the server writes pages into lent memory and tells of each when it is there; from there it
//! is copied to its target and checked on the way; or into the targets themselves, where they may be lent, and checked there. Owns: reading the stream of pages, asking once more for a page that arrived
//! damaged. Must not know: what comes before and after the window.

use crate::error::{Error, Result};
use crate::framed::{Copies, FramedPlane, LentFor};
use crate::limits::YIELD_BYTES;
use crate::local::Lent;
use crate::namespace::Namespace;
use crate::offload::framed::span;
use crate::pages::{Arriving, PageTarget, Staging};
use crate::reload::{Arrivals, MissCause, ReloadReport, ReloadWindow, tier};
use bytes::Bytes;
use std::collections::VecDeque;
use turnkv_proto::limits::CARRIED_BYTES_MAX;
use turnkv_proto::wire::{self, Verb};
use turnkv_transfer::fabric::Access;

/// How far a window came.
enum Came {
    /// To its end, or to a miss that is in the report.
    Through,
    /// A page arrived otherwise than it is known to be: what is behind it was not looked at.
    Damaged,
}

impl Namespace {
    /// Dropping this future at any moment takes the lent memory back; the server then ends its lease.
    pub(crate) async fn reload_framed(
        &self,
        plane: &FramedPlane,
        mut lent: Lent,
        window: &ReloadWindow,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
    ) -> Result<()> {
        let came = self.reload_twice(plane, &mut lent, window, targets, report).await;
        if came.is_err() {
            plane.doubt();
        }
        came
    }

    /// Asks once more for what comes from a damaged page on.
    async fn reload_twice(
        &self,
        plane: &FramedPlane,
        lent: &mut Lent,
        window: &ReloadWindow,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
    ) -> Result<()> {
        let before = report.pages;
        if let Came::Through = self.reload_once(plane, lent, window, targets, report, false).await? {
            return Ok(());
        }
        // The wire may have damaged it, or the pool's memory: the server looks at its own bytes this time.
        let again = report.pages - before;
        let rest = window.starting_at(again);
        let targets = &mut targets[window.moved.positions(again)..];
        if let Came::Damaged = self.reload_once(plane, lent, &rest, targets, report, true).await? {
            tracing::warn!(namespace = %self.id(), "a page was damaged on its way twice: it is a miss");
            report.miss = Some(MissCause::Checksum);
        }
        Ok(())
    }

    async fn reload_once(
        &self,
        plane: &FramedPlane,
        lent: &mut Lent,
        window: &ReloadWindow,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
        verify: bool,
    ) -> Result<Came> {
        let bytes = window.positions() * self.page_bytes();
        let small = bytes <= CARRIED_BYTES_MAX as usize;
        let own: Option<Vec<_>> = if small { None } else { targets.iter().map(PageTarget::own).collect() };
        let own = own.map(|own| (own, Access::Write));
        let lent_for = plane.lend(lent, own, Copies { device: None, bytes }, window.deadline).await?;
        let came = self.take_in(lent, &lent_for, window, targets, report, verify).await;
        // Lent memory whose call was answered to its end can be lent again as it is.
        if !lent.is_waiting() {
            lent_for.answered();
        }
        came
    }

    /// Asks for a window's pages and takes in those that come.
    async fn take_in(
        &self,
        lent: &mut Lent,
        lent_for: &LentFor,
        window: &ReloadWindow,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
        verify: bool,
    ) -> Result<Came> {
        let page_bytes = self.page_bytes();
        let carry = window.positions() * page_bytes <= CARRIED_BYTES_MAX as usize;
        let asked = Asked { region: lent_for.region(), page_bytes, verify, carry };
        let mut incoming = Incoming::ask(lent, window, asked)?;
        let (mut copied, mut arrivals, mut staging) = (0, Arrivals::new(window.moved), Staging::default());
        while let Some((position, page)) = incoming.next().await? {
            let page = match page {
                Ok(page) => page,
                Err(cause) => {
                    report.miss = Some(cause);
                    incoming.drain().await?;
                    return Ok(Came::Through);
                }
            };
            let target = &mut targets[position];
            let found = match lent_for {
                _ if !page.carried.is_empty() => {
                    take_carried(page.carried, page_bytes, target, &mut staging)?
                }
                LentFor::Copies(staged) => {
                    target.drain(&staged.slot(position * page_bytes, page_bytes)?.page())
                }
                LentFor::Own(own) => {
                    let sum = own.take_in(position);
                    target.note_checksum(sum);
                    sum
                }
            };
            if self.link.config.verify && found != page.checksum {
                tracing::debug!(namespace = %self.id(), position, "a page was damaged on its way");
                incoming.drain().await?;
                return Ok(Came::Damaged);
            }
            arrivals.count(tier(page.tier), report);
            copied += page_bytes;
            if copied >= YIELD_BYTES {
                copied = 0;
                tokio::task::yield_now().await;
                window.deadline.check()?;
            }
        }
        Ok(Came::Through)
    }
}

/// Copies a page that came with its answer; the checksum of what was copied.
pub(super) fn take_carried(
    carried: Bytes,
    page_bytes: usize,
    target: &mut PageTarget<'_>,
    staging: &mut Staging,
) -> Result<u64> {
    let mut arriving = Arriving::new(page_bytes);
    if !arriving.take(0, &[carried], target, staging)? {
        return Err(Error::protocol("an answer carries a part of a page"));
    }
    Ok(arriving.finish(target))
}

/// How pages are asked for.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Memory that is lent for them, in which they go one behind the other.
    pub(crate) region: wire::RemoteRegion,
    pub(crate) page_bytes: usize,
    /// The server looks at its own bytes.
    pub(crate) verify: bool,
    /// The answers may carry them.
    pub(crate) carry: bool,
}

/// The stream that answers one call: each page in lent memory, or in the answer, in order.
pub(crate) struct Incoming<'a> {
    lent: &'a mut Lent,
    window: &'a ReloadWindow,
    waiting: VecDeque<wire::ReloadedPage>,
    next: usize,
    more: bool,
}

impl<'a> Incoming<'a> {
    /// Asks for a window's pages.
    pub(crate) fn ask(lent: &'a mut Lent, window: &'a ReloadWindow, asked: Asked) -> Result<Incoming<'a>> {
        let page = |position: usize| wire::RemotePage {
            position: position as u32,
            spans: vec![span(position * asked.page_bytes, asked.page_bytes)],
            ..Default::default()
        };
        let request = wire::RemoteReloadRequest {
            begin: Some(wire::BeginReloadRequest { client: lent.client(), ..window.begin.clone() }),
            pages: (0..window.positions()).map(page).collect(),
            regions: vec![asked.region],
            verify: asked.verify,
            carry_bytes_max: if asked.carry { CARRIED_BYTES_MAX } else { 0 },
        };
        lent.request(Verb::RemoteReload, &request, window.deadline)?;
        Ok(Incoming { lent, window, waiting: VecDeque::new(), next: 0, more: true })
    }

    /// The next page and its position in the window, or why it is not there; none: that was all.
    pub(crate) async fn next(
        &mut self,
    ) -> Result<Option<(usize, std::result::Result<wire::ReloadedPage, MissCause>)>> {
        while self.waiting.is_empty() && self.more {
            let (reply, more) = self.lent.reply::<wire::BeginReloadReply>(self.window.deadline).await?;
            self.more = more;
            self.waiting.extend(reply.pages);
        }
        let Some(page) = self.waiting.pop_front() else { return Ok(None) };
        let position = self.next;
        if page.index as usize != position || position >= self.window.positions() {
            self.lent.close();
            let text = format!("page {} where page {position} was due", page.index);
            return Err(Error::protocol(text));
        }
        self.next += 1;
        let miss = MissCause::read(page.miss)?;
        Ok(Some((position, miss.map_or(Ok(page), Err))))
    }

    /// Reads the answer to its end. What comes behind a miss, or a damaged page, is of no use.
    pub(crate) async fn drain(&mut self) -> Result<()> {
        while self.next().await?.is_some() {}
        Ok(())
    }
}
