//! Write-behind: committed pages go to NVMe while DRAM still has them. Owns: the bytes in flight to the tier and the
//! waits for durability. Must not know: segments.

use super::{Core, Engine};
use crate::limits::{DURABLE_PAGES_PER_SLICE, WRITE_BEHIND_BYTES_INFLIGHT_MAX, WRITE_PAUSE_MS};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;
use turnkv_pool::{NvmePlace, PageKey, WriteBehind};
use turnkv_tier::nvme::NvmeTier;
use turnkv_tier::{ExtentMeta, Location, Tier, TierError};
use turnkv_transfer::Slot;

/// Commits that wait until their pages are on NVMe. Bounded by the calls in service. In order, so that who is told first does
/// not depend on chance.
#[derive(Default)]
pub(super) struct DurableWaits {
    pages: BTreeMap<PageKey, Vec<u64>>,
    waits: BTreeMap<u64, DurableWait>,
    next: u64,
}

struct DurableWait {
    remaining: usize,
    tell: oneshot::Sender<bool>,
}

impl DurableWaits {
    fn add(&mut self, pages: &[PageKey]) -> oneshot::Receiver<bool> {
        let (tell, told) = oneshot::channel();
        let wait = self.next;
        self.next += 1;
        for page in pages {
            self.pages.entry(*page).or_default().push(wait);
        }
        self.waits.insert(wait, DurableWait { remaining: pages.len(), tell });
        told
    }

    /// A page is on NVMe, or (`kept` false) never will be.
    fn settle(&mut self, page: PageKey, kept: bool) {
        for id in self.pages.remove(&page).unwrap_or_default() {
            let Some(wait) = self.waits.get_mut(&id) else { continue };
            wait.remaining -= 1;
            if kept && wait.remaining > 0 {
                continue;
            }
            if let Some(wait) = self.waits.remove(&id)
                && wait.tell.send(kept).is_err()
            {
                tracing::trace!("a durable commit left before it was durable");
            }
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
    /// Tells durable commits about a page whose state on NVMe may have changed.
    fn settle_durable(&mut self, page: PageKey) {
        match self.pool.is_on_nvme(page) {
            Some(true) => self.durable.settle(page, true),
            Some(false) => {}
            None => self.durable.settle(page, false),
        }
    }
}

impl Engine {
    /// Hands dirty pages to the NVMe tier, up to the bound in flight. Called when pages become dirty and when writes
    /// complete; never waits.
    pub(crate) fn pump_writes(self: &Arc<Self>) {
        let Some(nvme) = &self.nvme else { return };
        loop {
            let now = self.now();
            let writes: Vec<(WriteBehind, turnkv_pool::SlotPlace)> = {
                let mut core = self.core();
                let budget = WRITE_BEHIND_BYTES_INFLIGHT_MAX.saturating_sub(core.writing_bytes);
                if budget == 0 || now < core.writes_paused_until {
                    return;
                }
                let writes = core.pool.next_writes(budget, now);
                core.writing_bytes += writes.iter().map(|write| write.bytes).sum::<u64>();
                writes.into_iter().map(|write| (write, core.place(write.slot))).collect()
            };
            if writes.is_empty() {
                return;
            }
            for (write, place) in writes {
                match self.slot(place) {
                    Ok(slot) => self.start_write(nvme, write, slot),
                    Err(error) => {
                        tracing::error!(%error, "a dirty page's slot has no memory");
                        self.end_write(&write, Err(TierError::Busy));
                        return;
                    }
                }
            }
        }
    }

    fn start_write(self: &Arc<Self>, nvme: &NvmeTier, write: WriteBehind, slot: Slot) {
        let meta = ExtentMeta {
            namespace: write.namespace,
            hash: write.hash,
            parent: write.parent,
            shard: write.shard,
            shards: write.shards,
            tail_tokens: write.tail_tokens,
            payload_bytes: write.bytes as u32,
            checksum: write.checksum,
        };
        let engine = Arc::clone(self);
        let (began, moves) = (Instant::now(), write.moves);
        let done = move |result| {
            let seconds = &engine.metrics.tier_seconds;
            let seconds = if moves { &seconds.rewrite } else { &seconds.write };
            seconds.record(began.elapsed());
            // A tier that has no room is asked again after a pause: by reclaim, or by the tick.
            if engine.end_write(&write, result) {
                engine.pump_writes();
            }
        };
        // What reclaim moves may take the segment kept in reserve: else a full tier could never make room.
        if moves {
            nvme.rewrite(meta, slot, Box::new(done));
        } else {
            nvme.write(meta, slot, Box::new(done));
        }
    }

    /// Takes a completion; says whether the tier took the write.
    fn end_write(self: &Arc<Self>, write: &WriteBehind, result: Result<Location, TierError>) -> bool {
        let now = self.now();
        let (page, shard) = (write.page, write.shard);
        let mut core = self.core();
        core.writing_bytes -= write.bytes;
        let taken = match &result {
            Ok(at) => {
                let place = NvmePlace { segment: at.segment, block: at.block };
                let kept = core.pool.written(page, shard, place, now);
                core.settle_durable(page);
                drop(core);
                if !kept && let Some(nvme) = &self.nvme {
                    nvme.forget(*at, write.bytes as u32);
                }
                self.metrics.demoted_bytes.increment(write.bytes);
                true
            }
            Err(error) => {
                core.pool.write_failed(page, shard, now);
                core.writes_paused_until = now + WRITE_PAUSE_MS;
                drop(core);
                tracing::debug!(%error, "a page stays dirty");
                self.check_nvme_health();
                false
            }
        };
        self.freed.notify_waiters();
        self.forget_dead_extents();
        self.start_reclaim();
        taken
    }

    /// Waits until these pages and their ancestors are on NVMe and flushed; false when they cannot be.
    pub(super) async fn make_durable(self: &Arc<Self>, kept: &[PageKey]) -> bool {
        let Some(nvme) = &self.nvme else { return false };
        let told = {
            let mut core = self.core();
            let missing = core.pool.durable_chain(kept);
            core.pool.make_urgent(&missing);
            if missing.is_empty() { None } else { Some(core.durable.add(&missing)) }
        };
        if let Some(told) = told {
            self.pump_writes();
            if !told.await.unwrap_or(false) {
                return false;
            }
        }
        let (tell, flushed) = oneshot::channel();
        let began = Instant::now();
        nvme.flush(Box::new(move |result| {
            if tell.send(result.is_ok()).is_err() {
                tracing::trace!("a durable commit left before its flush");
            }
        }));
        let flushed = flushed.await.unwrap_or(false);
        self.metrics.tier_seconds.flush.record(began.elapsed());
        flushed
    }

    /// Settles durable waits on pages that were dropped meanwhile. Called by the tick.
    pub(super) fn sweep_durable(&self) {
        let lost = self.nvme.as_ref().is_none_or(|nvme| nvme.poisoned().is_some());
        let mut from = None;
        drop(self.slices(|core| {
            let pages = core.durable.waited_for(from, DURABLE_PAGES_PER_SLICE);
            for page in &pages {
                if lost { core.durable.settle(*page, false) } else { core.settle_durable(*page) }
            }
            from = pages.last().copied();
            pages.len() < DURABLE_PAGES_PER_SLICE
        }));
    }

    /// Tells the tier which extents nobody needs any more.
    pub(super) fn forget_dead_extents(&self) {
        let Some(nvme) = &self.nvme else { return };
        let dead = self.core().pool.take_dead_places();
        for (place, bytes) in dead {
            nvme.forget(Location { segment: place.segment, block: place.block }, bytes as u32);
        }
    }

    /// Takes a poisoned device out of service: DRAM lives on without it.
    pub(super) fn check_nvme_health(&self) {
        let Some(why) = self.nvme.as_ref().and_then(|nvme| nvme.poisoned()) else { return };
        let lost = {
            let mut core = self.core();
            let first = !std::mem::replace(&mut core.nvme_lost, true);
            first.then(|| core.pool.nvme_lost())
        };
        if let Some(mut sweep) = lost {
            drop(self.slices(|core| core.pool.lose_some(&mut sweep)));
            tracing::error!(
                why,
                "the NVMe tier is out of service: the pool goes on in DRAM; replace the device and restart"
            );
            self.sweep_durable();
            self.freed.notify_waiters();
        }
    }
}
