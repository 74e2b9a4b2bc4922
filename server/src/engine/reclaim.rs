//! Reclaim: empties the segment that is cheapest to empty. Owns: one pass at a time, on a thread of its own; hot
//! pages are re-appended, cold leaves dropped. Must not know: how segments are written.

use super::Engine;
use super::place::place;
use crate::limits::{RECLAIM_INFLIGHT_MAX, RECLAIM_PASS_MS_MAX, RECLAIM_REWRITE_PERCENT_MAX};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use turnkv_pool::{PageKey, Reclaim, Rewrite};
use turnkv_tier::nvme::{Candidate, NvmeTier};
use turnkv_tier::{ExtentMeta, Location};

impl Engine {
    /// Starts a pass when the tier runs low on free segments and none is under way.
    pub(super) fn start_reclaim(self: &Arc<Self>) {
        let Some(nvme) = &self.nvme else { return };
        if !nvme.needs_reclaim() || self.reclaiming.swap(true, Ordering::AcqRel) {
            return;
        }
        let engine = Arc::clone(self);
        let pass = move || {
            if let Some(nvme) = &engine.nvme {
                engine.reclaim(nvme);
            }
            engine.reclaiming.store(false, Ordering::Release);
            engine.pump_writes();
        };
        if let Err(error) = std::thread::Builder::new().name("turnkv-reclaim".into()).spawn(pass) {
            tracing::error!(%error, "no thread for reclaim: tried again at the next tick");
            self.reclaiming.store(false, Ordering::Release);
        }
    }

    fn reclaim(self: &Arc<Self>, nvme: &Arc<NvmeTier>) {
        while nvme.needs_reclaim() && nvme.poisoned().is_none() {
            let kept = self.core().pool.kept_by_segment().to_vec();
            let kept = |segment: u32| kept.get(segment as usize).copied().unwrap_or(0);
            let Some(candidate) = nvme.reclaim_candidate(kept) else { return };
            if !self.empty_segment(&candidate) {
                nvme.keep(candidate.segment);
                return; // tried again at the next tick, with another candidate or with freed slots
            }
            nvme.release(candidate.segment);
            self.metrics.reclaimed_segments.increment(1);
            self.pump_writes();
        }
    }

    /// Moves or drops every live page of a segment; false when that took too long.
    fn empty_segment(self: &Arc<Self>, candidate: &Candidate) -> bool {
        let deadline = Instant::now() + Duration::from_millis(RECLAIM_PASS_MS_MAX);
        let all: u64 = candidate.extents.iter().map(|(meta, _)| u64::from(meta.payload_bytes)).sum();
        let mut rewrite_left = all * RECLAIM_REWRITE_PERCENT_MAX / 100;
        let mut moving: Vec<Moving<'_>> = Vec::new();
        // Children were written after their parents: from the back, leaves go first.
        for extent in candidate.extents.iter().rev() {
            while moving.len() >= RECLAIM_INFLIGHT_MAX && Instant::now() < deadline {
                self.wait_moved(&mut moving);
            }
            let bytes = u64::from(extent.0.payload_bytes);
            match self.verdict(extent) {
                Reclaim::Dead => {}
                Reclaim::Cold(page) => self.drop_cold(page, deadline),
                Reclaim::Hot(page) if rewrite_left >= bytes && self.rewrite(page, extent.0.shard) => {
                    rewrite_left -= bytes;
                    self.metrics.rewritten_bytes.increment(bytes);
                    moving.push(Moving { extent, page });
                }
                Reclaim::Hot(page) => self.drop_cold(page, deadline),
            }
        }
        while !moving.is_empty() && Instant::now() < deadline {
            self.wait_moved(&mut moving);
        }
        for late in moving {
            self.core().pool.rewrite_ended(late.page);
        }
        self.forget_dead_extents();
        candidate.extents.iter().all(|extent| matches!(self.verdict(extent), Reclaim::Dead))
    }

    fn verdict(&self, (meta, at): &(ExtentMeta, Location)) -> Reclaim {
        self.core().pool.reclaim_verdict(&meta.namespace, &meta.hash, meta.shard, place(*at))
    }

    /// Drops a page and what hangs on it, a bounded number of pages under one lock.
    fn drop_cold(&self, page: PageKey, deadline: Instant) {
        while !self.core().pool.drop_page(page) && Instant::now() < deadline {}
    }

    /// Queues a page to be written again, reading it back first when only NVMe has it.
    fn rewrite(self: &Arc<Self>, page: PageKey, shard: u16) -> bool {
        let (rewrite, renewals) = {
            let mut core = self.core();
            let rewrite = core.pool.rewrite(page, shard);
            (rewrite, core.pool.take_slab_actions())
        };
        self.renew_slabs(renewals);
        match rewrite {
            Rewrite::Dirty => self.pump_writes(),
            Rewrite::Promotion(promotion) => self.start_promotions(vec![promotion]),
            Rewrite::Busy | Rewrite::Gone => {}
            Rewrite::NoSlot => return false,
        }
        true
    }

    /// Waits a moment for re-appended pages, pushes those on whose read has landed, lets go of those that moved.
    fn wait_moved(self: &Arc<Self>, moving: &mut Vec<Moving<'_>>) {
        self.pump_writes();
        std::thread::sleep(Duration::from_millis(1));
        moving.retain(|moving| !matches!(self.verdict(moving.extent), Reclaim::Dead));
        for moving in moving.iter() {
            self.rewrite(moving.page, moving.extent.0.shard);
        }
    }
}

/// A page on its way out of the segment that is being emptied.
struct Moving<'a> {
    extent: &'a (ExtentMeta, Location),
    page: PageKey,
}
