//! Durable commits: answers that wait until pages are on NVMe and flushed. Owns: who waits for which page, and how long.
//! Must not know: how pages get there.

use super::{Core, Engine};
use crate::limits::DURABLE_PAGES_PER_SLICE;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use turnkv_pool::PageKey;
use turnkv_tier::Tier;

/// Whether pages are on stable storage, or why not.
pub(crate) type Durability = Result<(), NotDurable>;

/// Why pages are not on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotDurable {
    /// This server keeps nothing on NVMe.
    NoTier,
    /// The writes go on, but took too long to wait for.
    Timeout,
    /// The bytes of a page did not match its checksum when they were written: it is dropped.
    Changed,
    /// A page left the pool or NVMe meanwhile, or none was kept.
    Lost,
    /// The device failed.
    Device,
}

/// Commits that wait until their pages are on NVMe. Bounded by the calls in service, each of which waits a bounded time. In
/// order, so that who is told first does not depend on chance.
#[derive(Default)]
pub(super) struct DurableWaits {
    /// Who waits for each page; some of them may have left.
    pages: BTreeMap<PageKey, Vec<u64>>,
    waits: BTreeMap<u64, Wait>,
    next: u64,
}

struct Wait {
    /// Pages that are not on NVMe yet, of those found.
    remaining: usize,
    /// All its pages are found.
    whole: bool,
    tell: oneshot::Sender<Durability>,
}

impl DurableWaits {
    fn begin(&mut self) -> (u64, oneshot::Receiver<Durability>) {
        let (tell, told) = oneshot::channel();
        let id = self.next;
        self.next += 1;
        self.waits.insert(id, Wait { remaining: 0, whole: false, tell });
        (id, told)
    }

    /// Some more pages that a commit waits for, each told once; `whole`: these are all.
    fn add(&mut self, id: u64, pages: &[PageKey], whole: bool) {
        let Some(wait) = self.waits.get_mut(&id) else { return };
        wait.remaining += pages.len();
        wait.whole = whole;
        for page in pages {
            self.pages.entry(*page).or_default().push(id);
        }
        self.tell_if_done(id);
    }

    /// A page is on NVMe, or never will be.
    fn settle(&mut self, page: PageKey, outcome: Durability) {
        for id in self.pages.remove(&page).unwrap_or_default() {
            let Some(wait) = self.waits.get_mut(&id) else { continue };
            wait.remaining -= 1;
            match outcome {
                Ok(()) => self.tell_if_done(id),
                lost => self.tell(id, lost),
            }
        }
    }

    fn tell_if_done(&mut self, id: u64) {
        if self.waits.get(&id).is_some_and(|wait| wait.whole && wait.remaining == 0) {
            self.tell(id, Ok(()));
        }
    }

    fn tell(&mut self, id: u64, outcome: Durability) {
        if let Some(wait) = self.waits.remove(&id)
            && wait.tell.send(outcome).is_err()
        {
            tracing::trace!("a durable commit left before it was durable");
        }
    }

    /// Nobody waits under this number any more. Its pages forget it when they are settled, or looked at next.
    fn end(&mut self, id: u64) {
        self.waits.remove(&id);
    }

    /// Nobody waits for a page but those who are still there.
    fn prune(&mut self, page: PageKey) {
        let Some(waiting) = self.pages.get_mut(&page) else { return };
        waiting.retain(|id| self.waits.contains_key(id));
        if waiting.is_empty() {
            self.pages.remove(&page);
        }
    }

    /// Commits that wait.
    pub(super) fn len(&self) -> usize {
        self.waits.len()
    }

    /// So many of the pages that are waited for, after one of them.
    fn waited_for(&self, after: Option<PageKey>, count: usize) -> Vec<PageKey> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.pages.range((from, Bound::Unbounded)).take(count).map(|(page, _)| *page).collect()
    }
}

impl Core {
    /// Tells durable commits about a page whose state on NVMe may have changed; `lost`: why, if it is gone.
    pub(super) fn settle_durable(&mut self, page: PageKey, lost: NotDurable) {
        match self.pool.is_on_nvme(page) {
            Some(true) => self.durable.settle(page, Ok(())),
            Some(false) => {}
            None => self.durable.settle(page, Err(lost)),
        }
    }
}

/// A commit's place among those who wait; left when its caller leaves.
struct DurablePlace<'a> {
    engine: &'a Engine,
    id: u64,
}

impl Drop for DurablePlace<'_> {
    fn drop(&mut self) {
        self.engine.decide().durable.end(self.id);
    }
}

impl Engine {
    /// Waits until these pages and their ancestors are on NVMe and flushed, for a bounded time: a device that does not answer
    /// must not keep its callers.
    pub(super) async fn make_durable(self: &Arc<Self>, kept: &[PageKey]) -> Durability {
        let Some(nvme) = &self.nvme else { return Err(NotDurable::NoTier) };
        if nvme.poisoned().is_some() {
            return Err(NotDurable::Device);
        }
        let deadline = self.clock.now() + Duration::from_millis(self.settings.limits.durable_ms);
        self.written(kept, deadline).await?;
        let (tell, flushed) = oneshot::channel();
        let began = Instant::now();
        nvme.flush(Box::new(move |result| {
            if tell.send(result.is_ok()).is_err() {
                tracing::trace!("a durable commit left before its flush");
            }
        }));
        let flushed = self.clock.until(deadline, flushed).await.ok_or(NotDurable::Timeout)?;
        self.metrics.tier_seconds.flush.record(began.elapsed());
        if flushed.unwrap_or(false) { Ok(()) } else { Err(NotDurable::Device) }
    }

    /// Waits until these pages and their ancestors are on NVMe.
    async fn written(self: &Arc<Self>, kept: &[PageKey], deadline: Duration) -> Durability {
        let (mut durable, id, told) = {
            let mut core = self.decide();
            let (id, told) = core.durable.begin();
            (core.pool.begin_durable(kept), id, told)
        };
        let _place = DurablePlace { engine: self, id };
        drop(self.decide_in_slices(|core| {
            let (missing, all) = core.pool.hurry_some(&mut durable);
            core.durable.add(id, &missing, all);
            all
        }));
        let outcome = self.clock.until(deadline, told).await.ok_or(NotDurable::Timeout)?;
        outcome.unwrap_or(Err(NotDurable::Lost))
    }

    /// Settles durable waits on pages that were dropped meanwhile. Called by the tick.
    pub(super) fn sweep_durable(&self) {
        let lost = self.nvme.as_ref().is_none_or(|nvme| nvme.poisoned().is_some());
        let mut from = None;
        drop(self.decide_in_slices(|core| {
            let pages = core.durable.waited_for(from, DURABLE_PAGES_PER_SLICE);
            for page in &pages {
                core.durable.prune(*page);
                if lost {
                    core.durable.settle(*page, Err(NotDurable::Device));
                } else {
                    core.settle_durable(*page, NotDurable::Lost);
                }
            }
            from = pages.last().copied();
            pages.len() < DURABLE_PAGES_PER_SLICE
        }));
    }
}
