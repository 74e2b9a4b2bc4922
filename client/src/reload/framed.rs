//! One window of a reload over a network: the server writes pages into lent memory and tells of each when it is there; from there it
//! is copied to its target and checked on the way. Owns: reading the stream of pages, asking once more for a page that arrived
//! damaged. Must not know: what comes before and after the window.

use crate::error::{Error, Result};
use crate::framed::{FramedPlane, Staged};
use crate::limits::YIELD_BYTES;
use crate::local::Lent;
use crate::namespace::Namespace;
use crate::offload::framed::span;
use crate::pages::PageTarget;
use crate::reload::{Arrivals, MissCause, ReloadReport, ReloadWindow, tier};
use turnkv_proto::wire::{self, Verb};

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
        let staged = plane.stage(&mut lent, window.positions() * self.page_bytes(), window.deadline).await?;
        let came = self.reload_twice(&mut lent, &staged, window, targets, report).await;
        if came.is_err() {
            plane.doubt();
        }
        // Lent memory whose call was answered to its end can be lent again as it is.
        if !lent.is_waiting() {
            staged.answered();
        }
        came
    }

    /// Asks once more for what comes from a damaged page on.
    async fn reload_twice(
        &self,
        lent: &mut Lent,
        staged: &Staged,
        window: &ReloadWindow,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
    ) -> Result<()> {
        let before = report.pages;
        if let Came::Through = self.reload_once(lent, staged, window, targets, report, false).await? {
            return Ok(());
        }
        // The wire may have damaged it, or the pool's memory: the server looks at its own bytes this time.
        let again = report.pages - before;
        let rest = window.starting_at(again);
        let targets = &mut targets[window.moved.positions(again)..];
        if let Came::Damaged = self.reload_once(lent, staged, &rest, targets, report, true).await? {
            tracing::warn!(namespace = %self.id(), "a page was damaged on its way twice: it is a miss");
            report.miss = Some(MissCause::Checksum);
        }
        Ok(())
    }

    async fn reload_once(
        &self,
        lent: &mut Lent,
        staged: &Staged,
        window: &ReloadWindow,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
        verify: bool,
    ) -> Result<Came> {
        let page_bytes = self.page_bytes();
        let page = |position: usize| wire::RemotePage {
            position: position as u32,
            checksum: 0,
            spans: vec![span(position * page_bytes, page_bytes)],
        };
        let request = wire::RemoteReloadRequest {
            begin: Some(wire::BeginReloadRequest { client: lent.client(), ..window.begin.clone() }),
            regions: vec![staged.region()],
            pages: (0..window.positions()).map(page).collect(),
            verify,
        };
        lent.request(Verb::RemoteReload, &request, window.deadline)?;
        let (mut next, mut copied, mut arrivals) = (0, 0, Arrivals::new(window.moved));
        let (mut came, mut ended) = (Came::Through, false);
        loop {
            let (reply, more) = lent.reply::<wire::BeginReloadReply>(window.deadline).await?;
            for page in reply.pages {
                if page.index as usize != next || next >= window.positions() {
                    lent.close();
                    return Err(Error::protocol(format!("page {} where page {next} was due", page.index)));
                }
                next += 1;
                // What comes behind a miss, or a damaged page, is of no use; the answer is read to its end.
                if ended {
                    continue;
                }
                if let Some(cause) = MissCause::read(page.miss)? {
                    (report.miss, ended) = (Some(cause), true);
                    continue;
                }
                let position = next - 1;
                let slot = staged.slot(position * page_bytes, page_bytes)?;
                let found = targets[position].drain(&slot.page());
                if self.link.config.verify && found != page.checksum {
                    tracing::debug!(namespace = %self.id(), position, "a page was damaged on its way");
                    (came, ended) = (Came::Damaged, true);
                    continue;
                }
                arrivals.count(tier(page.tier), report);
                copied += page_bytes;
                if copied >= YIELD_BYTES {
                    copied = 0;
                    tokio::task::yield_now().await;
                    window.deadline.check()?;
                }
            }
            if !more {
                return Ok(came);
            }
        }
    }
}
