//! Durable commits: answers that wait until pages are on NVMe and flushed. Owns: how long they wait, and what settles them. Must
//! not know: how pages get there.

use super::durable::{Durability, NotDurable};
use super::{Core, Engine};
use crate::limits::DURABLE_PAGES_PER_SLICE;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use turnkv_pool::PageKey;

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
