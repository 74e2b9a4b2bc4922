//! One window of a reload over a network: the server writes pages into lent memory and tells of each when it is there; from there it
//! is copied to its target and checked on the way. Slots of a pool in this process are written in place, and checked there. Owns:
//! reading the stream of pages, asking once more for a page that arrived damaged. Must not know: what comes before and after the
//! window.

use crate::error::{Error, Result};
use crate::framed::{FramedPlane, LentSlots, Staged};
use crate::limits::YIELD_BYTES;
use crate::local::Lent;
use crate::namespace::Namespace;
use crate::offload::framed::span;
use crate::pages::PageTarget;
use crate::reload::{Arrivals, MissCause, ReloadReport, ReloadWindow, tier};
use turnkv_proto::limits::REMOTE_REGIONS_MAX;
use turnkv_proto::wire::{self, Verb};

/// Where the pages of a window arrive.
enum Landing {
    /// In memory of the plane, from where they are copied.
    Staged(Staged),
    /// In their targets.
    Slots(LentSlots),
}

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
        let mut landing = self.landing(plane, &mut lent, window, targets).await?;
        let came = self.reload_twice(&mut lent, &mut landing, window, targets, report).await;
        if came.is_err() {
            plane.doubt();
        }
        // Lent memory whose call was answered to its end can be lent again as it is.
        if let Landing::Staged(staged) = landing
            && !lent.is_waiting()
        {
            staged.answered();
        }
        came
    }

    /// Slots are written in place, if they are few enough to be named one by one.
    async fn landing(
        &self,
        plane: &FramedPlane,
        lent: &mut Lent,
        window: &ReloadWindow,
        targets: &[PageTarget<'_>],
    ) -> Result<Landing> {
        let slot = |target: &PageTarget<'_>| match target {
            PageTarget::Slot(target) => Some(target.page.slot().clone()),
            PageTarget::Bytes(_) | PageTarget::Plan(_) => None,
        };
        if targets.len() <= REMOTE_REGIONS_MAX
            && let Some(slots) = targets.iter().map(slot).collect()
            && let Some(slots) = plane.slots(lent, slots, window.deadline).await?
        {
            return Ok(Landing::Slots(slots));
        }
        let bytes = window.positions() * self.page_bytes();
        Ok(Landing::Staged(plane.stage(lent, bytes, window.deadline).await?))
    }

    /// Asks once more for what comes from a damaged page on.
    async fn reload_twice(
        &self,
        lent: &mut Lent,
        landing: &mut Landing,
        window: &ReloadWindow,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
    ) -> Result<()> {
        let before = report.pages;
        landing.starts_at(0)?;
        if let Came::Through = self.reload_once(lent, landing, window, targets, report, false).await? {
            return Ok(());
        }
        // The wire may have damaged it, or the pool's memory: the server looks at its own bytes this time.
        let again = report.pages - before;
        let rest = window.starting_at(again);
        let first = window.moved.positions(again);
        landing.starts_at(first)?;
        let targets = &mut targets[first..];
        if let Came::Damaged = self.reload_once(lent, landing, &rest, targets, report, true).await? {
            tracing::warn!(namespace = %self.id(), "a page was damaged on its way twice: it is a miss");
            report.miss = Some(MissCause::Checksum);
        }
        Ok(())
    }

    async fn reload_once(
        &self,
        lent: &mut Lent,
        landing: &mut Landing,
        window: &ReloadWindow,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
        verify: bool,
    ) -> Result<Came> {
        let page_bytes = self.page_bytes();
        let page = |position: usize| wire::RemotePage {
            position: position as u32,
            checksum: 0,
            spans: vec![landing.span(position, page_bytes)],
        };
        let request = wire::RemoteReloadRequest {
            begin: Some(wire::BeginReloadRequest { client: lent.client(), ..window.begin.clone() }),
            regions: landing.regions(),
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
                let found = landing.take(position, page_bytes, &mut targets[position])?;
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

impl Landing {
    /// Positions count from this one of the window.
    fn starts_at(&mut self, first: usize) -> Result<()> {
        match self {
            Landing::Staged(_) => Ok(()),
            Landing::Slots(slots) => slots.lend_from(first),
        }
    }

    /// What names it to the server.
    fn regions(&self) -> Vec<wire::RemoteRegion> {
        match self {
            Landing::Staged(staged) => vec![staged.region()],
            Landing::Slots(slots) => slots.regions(),
        }
    }

    /// Where a position is written.
    fn span(&self, position: usize, page_bytes: usize) -> wire::RemoteSpan {
        match self {
            Landing::Staged(_) => span(position * page_bytes, page_bytes),
            Landing::Slots(_) => {
                wire::RemoteSpan { region: position as u32, offset: 0, bytes: page_bytes as u32 }
            }
        }
    }

    /// A page has come: into its target, and its checksum.
    fn take(&mut self, position: usize, page_bytes: usize, target: &mut PageTarget<'_>) -> Result<u64> {
        match (self, target) {
            (Landing::Slots(slots), PageTarget::Slot(target)) => {
                target.checksum = slots.come(position);
                Ok(target.checksum)
            }
            (Landing::Slots(_), _) => Err(Error::invalid("a page came into another target")),
            (Landing::Staged(staged), target) => {
                Ok(target.drain(&staged.slot(position * page_bytes, page_bytes)?.page()))
            }
        }
    }
}
