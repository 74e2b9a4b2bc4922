//! Reclaim: empties the segment of which the most is gained. Owns: one pass at a time, a step after another, by a thread of its
//! own. Must not know: which pages move or go (the pool does), how segments are written.

use super::Core;
use super::Engine;
use super::place::{location, place};
use super::reclaimer::Emptying;
use crate::limits::{NVME_PACKING_STEP_PERCENT, NVME_SMALLER_MS, RECLAIM_LOOK};
use std::sync::Arc;
use std::sync::mpsc::{TrySendError, sync_channel};
use turnkv_pool::{LiveExtent, Pass, PassNext, emptying_gain, kept_percent};
use turnkv_tier::nvme::NvmeTier;
use turnkv_tier::{ExtentMeta, Location};

/// When the next step of reclaim is worth taking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// At once.
    Now,
    /// After [`RECLAIM_LOOK`]: pages are on their way.
    Soon,
    /// When the bell rings: nothing to do, or nothing that can be done now.
    Rung,
}

impl Engine {
    /// The work of the thread that reclaims; it ends with the engine.
    pub(super) fn reclaiming(engine: &Arc<Engine>) -> std::io::Result<impl FnOnce() + Send + use<>> {
        let (bell, rung) = sync_channel(1);
        if engine.reclaimer.bell.set(bell).is_err() {
            return Err(std::io::Error::other("reclaim has a thread already"));
        }
        let weak = Arc::downgrade(engine);
        Ok(move || {
            while rung.recv().is_ok() {
                let step = || weak.upgrade().map_or(Next::Rung, |engine| engine.step_reclaim());
                loop {
                    match step() {
                        Next::Now => {}
                        Next::Soon => std::thread::sleep(RECLAIM_LOOK),
                        Next::Rung => break,
                    }
                }
                // Rung while a pass was under way: what that one could not do, the next tick asks for again.
                while rung.try_recv().is_ok() {}
            }
        })
    }

    /// Has the tier's segments looked at when it runs low on free ones.
    pub(super) fn start_reclaim(&self) {
        let (Some(nvme), Some(bell)) = (&self.nvme, self.reclaimer.bell.get()) else { return };
        if !nvme.needs_reclaim() {
            return;
        }
        match bell.try_send(()) {
            Ok(()) | Err(TrySendError::Full(())) => {} // full: it was rung, and not heard yet
            Err(TrySendError::Disconnected(())) => {
                tracing::error!("the thread that reclaims is gone: segments are no longer emptied");
            }
        }
    }

    /// Goes on with reclaim, a little.
    pub(crate) fn step_reclaim(self: &Arc<Self>) -> Next {
        let Some(nvme) = &self.nvme else { return Next::Rung };
        let mut under_way = self.reclaimer.emptying.lock();
        let Some(emptying) = under_way.as_mut() else {
            *under_way = self.begin_pass(nvme);
            return if under_way.is_some() { Next::Now } else { Next::Rung };
        };
        let empty = match self.step(nvme, &mut emptying.pass) {
            PassNext::Again => return Next::Now,
            PassNext::Wait => return Next::Soon,
            PassNext::Over { empty } => empty,
        };
        let segment = emptying.segment;
        if empty {
            // A segment that is taken out of use instead of written again counts what is alive in it.
            emptying.pass.extents().iter().for_each(|at| nvme.forget_moved(location(at.place), at.bytes));
            nvme.release(segment);
            self.metrics.reclaimed_segments.increment(1);
        } else {
            nvme.keep(segment);
        }
        *under_way = None;
        drop(under_way);
        self.pump_writes(); // there is room that there was not
        // One that was kept is tried again at the next tick, with another segment or with freed slots.
        if empty { Next::Now } else { Next::Rung }
    }

    fn begin_pass(&self, nvme: &NvmeTier) -> Option<Emptying> {
        if !nvme.needs_reclaim() || nvme.poisoned().is_some() {
            return None;
        }
        let (kept, packing) = {
            let core = self.decide();
            (core.pool.kept_by_segment().to_vec(), core.nvme_packing.max(1))
        };
        let candidate = nvme.reclaim_candidate(|sealed| {
            // The pool counts pages as they are, the tier as they are stored.
            let kept = kept.get(usize::from(sealed.segment)).copied().unwrap_or(0) * 100 / packing;
            let kept = kept.min(sealed.live_bytes);
            emptying_gain(kept as f64 / sealed.bytes as f64, sealed.age as f64)
        })?;
        let live = |(meta, at): &(ExtentMeta, Location)| LiveExtent {
            namespace: meta.namespace,
            hash: meta.hash,
            shard: meta.shard,
            bytes: meta.payload_bytes,
            place: place(*at),
        };
        let extents = candidate.extents.iter().map(live).collect();
        let pass = self.decide().pool.begin_pass(extents, candidate.surplus, self.now());
        Some(Emptying { segment: candidate.segment, pass })
    }

    /// Takes a step of a pass, and starts what it wants read or written.
    fn step(self: &Arc<Self>, nvme: &NvmeTier, pass: &mut Pass) -> PassNext {
        let movable_bytes = nvme.movable_bytes();
        let step = self.decide().pool.step_pass(pass, movable_bytes, self.now());
        self.metrics.rewritten_bytes.increment(step.moved_bytes);
        self.start_promotions(step.reads);
        step.next
    }

    /// Tells the pool how many segments the tier can have now (fewer while its disk is full, once that has lasted), and how much
    /// smaller pages are there.
    pub(super) fn follow_capacity(&self, now: u64) {
        let Some(nvme) = &self.nvme else { return };
        let ((segments, spare), packing) = (nvme.capacity(), nvme.packing_percent());
        let mut core = self.decide();
        if core.nvme_lost {
            return;
        }
        let before = core.nvme_segments;
        let segments = core.segments_that_last(segments, now);
        if segments == before && packing.abs_diff(core.nvme_packing) < NVME_PACKING_STEP_PERCENT {
            return;
        }
        (core.nvme_segments, core.nvme_packing) = (segments, packing);
        core.pool.resize_nvme(segments * nvme.geometry().2, packing, kept_percent(segments, spare));
        drop(core);
        if segments != before {
            tracing::warn!(before, segments, "NVMe has space for another number of segments than before");
        }
    }
}

impl Core {
    /// How many segments the tier can have, if that has lasted; as many as before if it has not yet.
    fn segments_that_last(&mut self, segments: u64, now: u64) -> u64 {
        if self.nvme_segments == segments {
            self.nvme_smaller_since = None;
            return segments;
        }
        let since = *self.nvme_smaller_since.get_or_insert(now);
        if segments < self.nvme_segments && now < since + NVME_SMALLER_MS {
            return self.nvme_segments;
        }
        self.nvme_smaller_since = None;
        segments
    }
}

#[cfg(test)]
mod tests;
