//! Promote: NVMe pages into DRAM slots. Owns: starting the reads, and what becomes of each. Must not know: leases, who waits.

use super::Engine;
use super::metrics::Corrupt;
use super::place::location;
use std::sync::Arc;
use std::time::Instant;
use turnkv_pool::{MissCause, Promotion};
use turnkv_tier::TierError;

impl Engine {
    /// Starts the reads that a plan asked for.
    pub(super) fn start_promotions(self: &Arc<Self>, promotions: Vec<Promotion>) {
        for promotion in promotions {
            self.start_read(promotion, |_, _| {});
        }
    }

    /// Starts one read; `then` is called with how it went, after the pool and the waiters know.
    pub(super) fn start_read(
        self: &Arc<Self>,
        promotion: Promotion,
        then: impl FnOnce(&Arc<Engine>, bool) + Send + 'static,
    ) {
        let (engine, began) = (Arc::clone(self), Instant::now());
        let done = move |result: Result<(), TierError>| {
            engine.metrics.tier_seconds.read.record(began.elapsed());
            let good = result.is_ok();
            engine.end_promotion(&promotion, result);
            then(&engine, good);
        };
        let place = self.decide().place(promotion.slot);
        let at = location(promotion.place);
        match (&self.nvme, self.slot(place)) {
            (None, _) => done(Err(TierError::Poisoned)),
            (Some(_), Err(error)) => {
                tracing::error!(%error, "a promotion's slot has no memory");
                done(Err(TierError::Busy));
            }
            (Some(nvme), Ok(slot)) => {
                nvme.read(at, promotion.bytes as u32, promotion.checksum, slot, Box::new(done));
            }
        }
    }

    fn end_promotion(self: &Arc<Self>, promotion: &Promotion, result: Result<(), TierError>) {
        let now = self.now();
        let mut cause = result.as_ref().err().map(miss_cause);
        let mut dropped = false;
        let waiters = {
            let mut core = self.decide();
            match cause {
                None if core.pool.promoted(promotion.page, promotion.shard, now) => {}
                None => cause = Some(MissCause::Absent), // dropped while it was read
                Some(cause) => {
                    dropped = core.pool.promote_failed(promotion.page, promotion.shard, cause, now);
                }
            }
            core.promotions.take(promotion.page, promotion.shard)
        };
        match cause {
            None => self.metrics.promoted(promotion.bytes),
            Some(MissCause::Checksum) if dropped => self.metrics.corrupted(Corrupt::Nvme, 1),
            Some(_) => {}
        }
        for waiter in waiters {
            // The channel holds one place for every page waited for; a reload that left has closed it.
            if waiter.tell.try_send((waiter.index, cause.map_or(Ok(()), Err))).is_err() {
                tracing::trace!("a reload left before its page landed");
            }
        }
        if cause.is_some() {
            match result {
                // Of a server that ends: nobody waits for it any more.
                Ok(()) | Err(TierError::Closed) => {}
                Err(error) => tracing::warn!(%error, "a page could not be read back: it is a miss"),
            }
            self.check_nvme_health();
        }
    }
}

/// What a tier's failure means to whoever wanted the page.
fn miss_cause(error: &TierError) -> MissCause {
    match error {
        TierError::Checksum(_) => MissCause::Checksum,
        TierError::Busy => MissCause::Busy,
        TierError::Stale(_) => MissCause::Absent,
        TierError::Unreadable(_) => MissCause::Io, // of this page alone: the device stays in service
        _ => MissCause::Io,
    }
}
