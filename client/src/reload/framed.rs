//! One window of a reload over a network: the server writes pages into lent memory and tells of each when it is there; from there it
//! is copied to its target and checked on the way. Owns: reading the stream of pages, piece by piece, asking once more for a page
//! that arrived damaged. Must not know: what comes before and after the window.
//!
//! ```text
//! ask 0 --answer 0, ask 1--> copy 0 away (while the server writes 1) --answer 1, ask 2 (over 0)--> copy 1 away ...
//! ```

use crate::error::{Error, Result};
use crate::framed::{FramedPlane, Staged};
use crate::limits::{FRAMED_PIECE_BYTES_MAX, YIELD_BYTES};
use crate::local::Lent;
use crate::namespace::Namespace;
use crate::offload::framed::span;
use crate::offload::pages_within;
use crate::pages::PageTarget;
use crate::reload::{Arrivals, MissCause, ReloadReport, ReloadWindow, tier};
use turnkv_proto::wire::{self, TierKind, Verb};

/// How far a window came.
enum Came {
    /// To its end, to a miss that is in the report, or to pages on NVMe: those behind them are better asked for all at once.
    Through,
    /// A page arrived otherwise than it is known to be: what is behind it was not looked at.
    Damaged,
}

/// A window piece by piece: what the server writes next lies beside what is still copied away, in memory that stays in a cache.
struct Pieces<'a> {
    window: &'a ReloadWindow,
    staged: &'a Staged,
    /// Pages that are asked for at a time.
    step: usize,
    page_bytes: usize,
    /// The server checks its own bytes.
    verify: bool,
}

/// What arrives of a window.
struct Taking<'t, 'p> {
    targets: &'t mut [PageTarget<'p>],
    arrivals: Arrivals,
    /// Positions of the window that were told.
    told: usize,
    came: Came,
    /// What comes behind a miss, or a damaged page, is of no use; answers are read to their end.
    ended: bool,
    /// Bytes copied since other tasks had a turn.
    copied: usize,
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
        // What the server has on NVMe it reads faster the more of it is asked for.
        let step = match report.from_nvme {
            0 => pages_within(FRAMED_PIECE_BYTES_MAX, self.shard_bytes(), window.moved).min(window.pages),
            _ => window.pages,
        };
        // Two pieces: one that is written, one that is copied away.
        let bytes = window.moved.positions(window.pages.min(2 * step)) * self.page_bytes();
        let staged = plane.stage(&mut lent, bytes, window.deadline).await?;
        let came = self.reload_twice(&mut lent, &staged, window, step, targets, report).await;
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
        step: usize,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
    ) -> Result<()> {
        let before = report.pages;
        let page_bytes = self.page_bytes();
        let pieces = Pieces { window, staged, step, page_bytes, verify: false };
        if let Came::Through = self.reload_once(lent, &pieces, targets, report).await? {
            return Ok(());
        }
        // The wire may have damaged it, or the pool's memory: the server looks at its own bytes this time.
        let again = report.pages - before;
        let rest = window.starting_at(again);
        let targets = &mut targets[window.moved.positions(again)..];
        let pieces = Pieces { window: &rest, verify: true, ..pieces };
        if let Came::Damaged = self.reload_once(lent, &pieces, targets, report).await? {
            tracing::warn!(namespace = %self.id(), "a page was damaged on its way twice: it is a miss");
            report.miss = Some(MissCause::Checksum);
        }
        Ok(())
    }

    async fn reload_once(
        &self,
        lent: &mut Lent,
        pieces: &Pieces<'_>,
        targets: &mut [PageTarget<'_>],
        report: &mut ReloadReport,
    ) -> Result<Came> {
        let window = pieces.window;
        let arrivals = Arrivals::new(window.moved);
        let mut taking = Taking { targets, arrivals, told: 0, came: Came::Through, ended: false, copied: 0 };
        let mut asked = pieces.ask(lent, 0)?;
        let (mut missed, mut slow) = (false, false);
        loop {
            let (reply, more) = lent.reply::<wire::BeginReloadReply>(window.deadline).await?;
            let end = taking.told + reply.pages.len();
            let due = |(page, position)| page == pieces.place(position).1;
            let told = reply.pages.iter().map(|page| page.index as usize);
            if end > asked || !told.zip(taking.told..).all(due) {
                lent.close();
                return Err(Error::protocol(format!("not the positions from {} on to {asked}", taking.told)));
            }
            missed |= reply.pages.iter().any(|page| page.miss != 0);
            slow |= reply.pages.iter().any(|page| tier(page.tier) == TierKind::Nvme);
            // The other half of the memory is copied away: the server fills it while this one is.
            let goes_on =
                !more && !missed && !slow && !taking.ended && end == asked && asked < window.positions();
            if goes_on {
                asked = pieces.ask(lent, asked)?;
            }
            for page in reply.pages {
                self.take_page(pieces, &mut taking, &page, report).await?;
            }
            if !more && !goes_on {
                return Ok(taking.came);
            }
        }
    }

    /// Copies the next position to its target and checks it on the way.
    async fn take_page(
        &self,
        pieces: &Pieces<'_>,
        taking: &mut Taking<'_, '_>,
        page: &wire::ReloadedPage,
        report: &mut ReloadReport,
    ) -> Result<()> {
        let position = taking.told;
        let (half, index) = pieces.place(position);
        taking.told += 1;
        if taking.ended {
            return Ok(());
        }
        if let Some(cause) = MissCause::read(page.miss)? {
            (report.miss, taking.ended) = (Some(cause), true);
            return Ok(());
        }
        let slot = pieces.staged.slot(pieces.offset(half, index), pieces.page_bytes)?;
        let found = taking.targets[position].drain(&slot.page());
        if self.link.config.verify && found != page.checksum {
            tracing::debug!(namespace = %self.id(), position, "a page was damaged on its way");
            (taking.came, taking.ended) = (Came::Damaged, true);
            return Ok(());
        }
        taking.arrivals.count(tier(page.tier), report);
        taking.copied += pieces.page_bytes;
        if taking.copied >= YIELD_BYTES {
            taking.copied = 0;
            tokio::task::yield_now().await;
            pieces.window.deadline.check()?;
        }
        Ok(())
    }
}

impl Pieces<'_> {
    /// Asks for the piece that begins at a position. Returns the position behind it.
    fn ask(&self, lent: &mut Lent, from: usize) -> Result<usize> {
        let moved = self.window.moved;
        let first = from / moved.count();
        let part = self.window.part(first..self.window.pages.min(first + self.step));
        let (half, _) = self.place(from);
        let page = |index: usize| wire::RemotePage {
            position: index as u32,
            checksum: 0,
            spans: vec![span(self.offset(half, index), self.page_bytes)],
        };
        let request = wire::RemoteReloadRequest {
            begin: Some(wire::BeginReloadRequest { client: lent.client(), ..part.begin.clone() }),
            regions: vec![self.staged.region()],
            pages: (0..part.positions()).map(page).collect(),
            verify: self.verify,
        };
        lent.request(Verb::RemoteReload, &request, self.window.deadline)?;
        Ok(from + part.positions())
    }

    /// In which half of the memory a position is, and the how manieth of its piece.
    fn place(&self, position: usize) -> (usize, usize) {
        let step = self.window.moved.positions(self.step);
        (position / step % 2, position % step)
    }

    /// Where a position's bytes are.
    fn offset(&self, half: usize, index: usize) -> usize {
        (half * self.window.moved.positions(self.step) + index) * self.page_bytes
    }
}
