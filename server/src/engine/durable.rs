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
use turnkv_proto::wire::NotDurable;
use turnkv_tier::Tier;

/// Whether pages are on stable storage, or why not.
pub(crate) type Durability = Result<(), NotDurable>;

/// The wire's form of it.
pub(crate) fn not_durable(outcome: Durability) -> i32 {
    outcome.err().unwrap_or(NotDurable::Unspecified).into()
}

/// Commits that wait until their pages are on NVMe. Bounded by the calls in service, each of which waits a bounded time. In
/// order, so that who is told first does not depend on chance.
#[derive(Default)]
pub(super) struct DurableWaits {
    pages: BTreeMap<PageKey, Vec<u64>>,
    waits: BTreeMap<u64, Wait>,
    next: u64,
}

struct Wait {
    pages: Vec<PageKey>,
    remaining: usize,
    tell: oneshot::Sender<Durability>,
}

impl DurableWaits {
    fn add(&mut self, pages: Vec<PageKey>) -> (u64, oneshot::Receiver<Durability>) {
        let (tell, told) = oneshot::channel();
        let wait = self.next;
        self.next += 1;
        for page in &pages {
            self.pages.entry(*page).or_default().push(wait);
        }
        self.waits.insert(wait, Wait { remaining: pages.len(), pages, tell });
        (wait, told)
    }

    /// A page is on NVMe, or never will be.
    fn settle(&mut self, page: PageKey, outcome: Durability) {
        for id in self.pages.remove(&page).unwrap_or_default() {
            let Some(wait) = self.waits.get_mut(&id) else { continue };
            wait.remaining -= 1;
            if outcome.is_ok() && wait.remaining > 0 {
                continue;
            }
            if let Some(wait) = self.end(id)
                && wait.tell.send(outcome).is_err()
            {
                tracing::trace!("a durable commit left before it was durable");
            }
        }
    }

    /// Nobody waits under this number any more.
    fn end(&mut self, id: u64) -> Option<Wait> {
        let wait = self.waits.remove(&id)?;
        for page in &wait.pages {
            if let Some(waiting) = self.pages.get_mut(page) {
                waiting.retain(|other| *other != id);
                if waiting.is_empty() {
                    self.pages.remove(page);
                }
            }
        }
        Some(wait)
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
struct Waiting<'a> {
    engine: &'a Engine,
    id: u64,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.engine.core().durable.end(self.id);
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
        let waiting = {
            let mut core = self.core();
            let missing = core.pool.durable_chain(kept);
            core.pool.make_urgent(&missing);
            if missing.is_empty() { None } else { Some(core.durable.add(missing)) }
        };
        if let Some((id, told)) = waiting {
            let _place = Waiting { engine: self, id };
            self.pump_writes();
            let outcome = self.clock.until(deadline, told).await.ok_or(NotDurable::Timeout)?;
            outcome.unwrap_or(Err(NotDurable::Lost))?;
        }
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

    /// Settles durable waits on pages that were dropped meanwhile. Called by the tick.
    pub(super) fn sweep_durable(&self) {
        let lost = self.nvme.as_ref().is_none_or(|nvme| nvme.poisoned().is_some());
        let mut from = None;
        drop(self.slices(|core| {
            let pages = core.durable.waited_for(from, DURABLE_PAGES_PER_SLICE);
            for page in &pages {
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
