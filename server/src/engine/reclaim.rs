//! Reclaim: empties the segment that is cheapest to empty. Owns: one pass at a time, a step after another; hot pages are
//! re-appended, cold leaves dropped. Must not know: how segments are written.

use super::Engine;
use super::place::place;
use crate::limits::{
    NVME_SMALLER_MS, RECLAIM_INFLIGHT_MAX, RECLAIM_LOOK, RECLAIM_PASS_MS_MAX, RECLAIM_REWRITE_PERCENT_MAX,
};
use parking_lot::Mutex;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use turnkv_pool::{PageKey, Reclaim, Rewrite, kept_percent};
use turnkv_tier::limits::BLOCK_BYTES;
use turnkv_tier::nvme::{Candidate, NvmeTier};
use turnkv_tier::{ExtentMeta, Location};

/// Who reclaims: the pass under way, and the bell of the thread that goes on with it. Without a thread, whoever owns the
/// engine calls [`Engine::step_reclaim`].
#[derive(Default)]
pub(super) struct Reclaimer {
    pass: Mutex<Option<Pass>>,
    bell: OnceLock<SyncSender<()>>,
}

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

/// One segment on its way to be empty.
struct Pass {
    candidate: Candidate,
    /// Extents before this one have not been looked at: children were written after their parents, so from the back leaves
    /// go first.
    left: usize,
    /// Bytes that may still be written again.
    rewrite_left: u64,
    /// Positions in the candidate's extents of pages on their way out.
    moving: Vec<(usize, PageKey)>,
    deadline: Duration,
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
        let mut under_way = self.reclaimer.pass.lock();
        let Some(pass) = under_way.as_mut() else {
            *under_way = self.begin_pass(nvme);
            return if under_way.is_some() { Next::Now } else { Next::Rung };
        };
        let next = self.step(pass);
        if next != Next::Rung {
            return next;
        }
        let segment = pass.candidate.segment;
        let empty = self.end_pass(pass);
        if empty {
            // A segment that is taken out of use instead of written again counts what is alive in it.
            pass.candidate.extents.iter().for_each(|(meta, at)| nvme.forget_moved(*at, meta.payload_bytes));
        }
        *under_way = None;
        drop(under_way);
        if !empty {
            nvme.keep(segment);
            self.pump_writes();
            return Next::Rung; // tried again at the next tick, with another candidate or with freed slots
        }
        nvme.release(segment);
        self.metrics.reclaimed_segments.increment(1);
        self.pump_writes();
        Next::Now
    }

    fn begin_pass(&self, nvme: &NvmeTier) -> Option<Pass> {
        if !nvme.needs_reclaim() || nvme.poisoned().is_some() {
            return None;
        }
        let kept = self.core().pool.kept_by_segment().to_vec();
        let candidate =
            nvme.reclaim_candidate(|segment| kept.get(usize::from(segment)).copied().unwrap_or(0))?;
        let all: u64 = candidate.extents.iter().map(|(meta, _)| u64::from(meta.payload_bytes)).sum();
        let (_, _, segment_bytes) = nvme.geometry();
        let largest =
            candidate.extents.iter().map(|(meta, _)| u64::from(meta.payload_bytes)).max().unwrap_or(0);
        let rewrite_left = if candidate.surplus {
            self.core().pool.allow_rewrites(all);
            segment_bytes // it wins its space however much of it moves
        } else {
            // What moves leaves room for one extent more, or a segment would be emptied only to fill the next one alike.
            let most = segment_bytes * RECLAIM_REWRITE_PERCENT_MAX / 100;
            let blocks = (candidate.extents.len() as u64 + 3) * BLOCK_BYTES;
            most.min(segment_bytes.saturating_sub(largest + blocks)).min(self.core().pool.moves_left())
        };
        Some(Pass {
            left: candidate.extents.len(),
            rewrite_left,
            moving: Vec::new(),
            deadline: self.clock.now() + Duration::from_millis(RECLAIM_PASS_MS_MAX),
            candidate,
        })
    }

    /// Moves or drops the next live page of the segment, or waits for those on their way; [`Next::Rung`]: there is no more
    /// to do, or no more time.
    fn step(self: &Arc<Self>, pass: &mut Pass) -> Next {
        let late = self.clock.now() >= pass.deadline;
        if !late && (pass.moving.len() >= RECLAIM_INFLIGHT_MAX || pass.left == 0 && !pass.moving.is_empty()) {
            let on_their_way = self.push_moving(pass);
            let room = pass.moving.len() < RECLAIM_INFLIGHT_MAX;
            return match () {
                () if room && pass.left > 0 || pass.moving.is_empty() => Next::Now,
                () if on_their_way => Next::Soon,
                () => Next::Rung,
            };
        }
        let Some(at) = pass.left.checked_sub(1).filter(|_| !late) else { return Next::Rung };
        let extent = &pass.candidate.extents[at];
        let bytes = u64::from(extent.0.payload_bytes);
        // Where nothing can be moved to, waiting would not help: the segment that costs least is given up.
        let room = self.nvme.as_ref().is_some_and(|nvme| nvme.can_move(extent.0.payload_bytes));
        let cold = match self.verdict(extent) {
            Reclaim::Dead => None,
            Reclaim::Cold(page) => Some(page),
            Reclaim::Hot(page)
                if room && pass.rewrite_left >= bytes && self.rewrite(page, extent.0.shard) =>
            {
                pass.rewrite_left -= bytes;
                self.metrics.rewritten_bytes.increment(bytes);
                pass.moving.push((at, page));
                None
            }
            Reclaim::Hot(page) => Some(page),
        };
        // A bounded number of pages goes under one lock; what is left of them is looked at again.
        if cold.is_none_or(|page| self.core().pool.drop_page(page)) {
            pass.left = at;
        }
        Next::Now
    }

    /// The pass is over; says whether the segment is empty.
    fn end_pass(&self, pass: &Pass) -> bool {
        for (_, late) in &pass.moving {
            self.core().pool.rewrite_ended(*late);
        }
        self.pass_place_notes();
        pass.candidate.extents.iter().all(|extent| matches!(self.verdict(extent), Reclaim::Dead))
    }

    /// Tells the pool how many segments the tier can have now: fewer while its disk is full, once that has lasted.
    pub(super) fn follow_capacity(&self, now: u64) {
        let Some(nvme) = &self.nvme else { return };
        let (segments, spare) = nvme.capacity();
        let mut core = self.core();
        if core.nvme_lost || core.nvme_segments == segments {
            core.nvme_smaller_since = None;
            return;
        }
        let since = *core.nvme_smaller_since.get_or_insert(now);
        if segments < core.nvme_segments && now < since + NVME_SMALLER_MS {
            return;
        }
        core.nvme_smaller_since = None;
        let before = std::mem::replace(&mut core.nvme_segments, segments);
        core.pool.resize_nvme(segments * nvme.geometry().2, kept_percent(segments, spare));
        drop(core);
        tracing::warn!(before, segments, "NVMe has space for another number of segments than before");
    }

    fn verdict(&self, (meta, at): &(ExtentMeta, Location)) -> Reclaim {
        self.core().pool.reclaim_verdict(&meta.namespace, &meta.hash, meta.shard, place(*at))
    }

    /// Queues a page to be written again, reading it back first when only NVMe has it. False: there is no slot to read it into.
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

    /// Pushes pages on whose read has landed, lets go of those that moved. False: those that are left have no slot to be read
    /// into, so that looking at them again soon would not help.
    fn push_moving(self: &Arc<Self>, pass: &mut Pass) -> bool {
        self.pump_writes();
        let extents = &pass.candidate.extents;
        pass.moving.retain(|(at, _)| !matches!(self.verdict(&extents[*at]), Reclaim::Dead));
        let mut on_their_way = false;
        for (at, page) in &pass.moving {
            let (meta, _) = &extents[*at];
            if self.nvme.as_ref().is_some_and(|nvme| nvme.can_move(meta.payload_bytes)) {
                on_their_way |= self.rewrite(*page, meta.shard);
            } else {
                self.core().pool.drop_page(*page); // what is in DRAM stays there
                on_their_way = true;
            }
        }
        on_their_way
    }
}

#[cfg(test)]
mod tests;
