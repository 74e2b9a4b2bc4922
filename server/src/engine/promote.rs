//! Promote: NVMe pages into DRAM slots. Owns: the reads in flight and who waits for each. Must not know: leases.

use super::{Engine, malformed, refuse};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use turnkv_pool::{MissCause, NamespaceIndex, PageKey, Promotion};
use turnkv_proto::{BlockHash, Error, SessionId, unpack_hashes, wire};
use turnkv_tier::{Location, Tier, TierError};

/// One reload that waits for a page to land; told `(position, how it went)`.
pub(super) struct Waiter {
    pub(super) index: u32,
    pub(super) tell: mpsc::Sender<(u32, Result<(), MissCause>)>,
}

/// Who waits for which promotion. Bounded by the leases and their pages.
#[derive(Default)]
pub(super) struct Waiters(HashMap<(PageKey, u16), Vec<Waiter>>);

impl Waiters {
    pub(super) fn add(&mut self, page: PageKey, shard: u16, waiter: Waiter) {
        self.0.entry((page, shard)).or_default().push(waiter);
    }

    fn take(&mut self, page: PageKey, shard: u16) -> Vec<Waiter> {
        self.0.remove(&(page, shard)).unwrap_or_default()
    }
}

impl Engine {
    /// Starts the reads that a plan asked for.
    pub(super) fn start_promotions(self: &Arc<Self>, promotions: Vec<Promotion>) {
        for promotion in promotions {
            let Some(nvme) = &self.nvme else {
                self.end_promotion(&promotion, Err(TierError::Poisoned));
                continue;
            };
            let place = self.core().place(promotion.slot);
            let slot = match self.slot(place) {
                Ok(slot) => slot,
                Err(error) => {
                    tracing::error!(%error, "a promotion's slot has no memory");
                    self.end_promotion(&promotion, Err(TierError::Busy));
                    continue;
                }
            };
            let at = Location { segment: promotion.place.segment, block: promotion.place.block };
            let (bytes, checksum) = (promotion.bytes as u32, promotion.checksum);
            let engine = Arc::clone(self);
            let done = move |result| engine.end_promotion(&promotion, result);
            nvme.read(at, bytes, checksum, slot, Box::new(done));
        }
    }

    fn end_promotion(self: &Arc<Self>, promotion: &Promotion, result: Result<(), TierError>) {
        let now = self.now();
        let mut cause = result.as_ref().err().map(miss_cause);
        let mut landed = true;
        let waiters = {
            let mut core = self.core();
            match cause {
                None => landed = core.pool.promoted(promotion.page, promotion.shard, now),
                Some(cause) => core.pool.promote_failed(promotion.page, promotion.shard, cause, now),
            }
            if !landed {
                cause = Some(MissCause::Absent); // dropped while it was read
            }
            core.promotions.take(promotion.page, promotion.shard)
        };
        self.metrics.promoted(promotion.bytes, cause);
        for waiter in waiters {
            // The channel holds one place for every page waited for; a reload that left has closed it.
            if waiter.tell.try_send((waiter.index, cause.map_or(Ok(()), Err))).is_err() {
                tracing::trace!("a reload left before its page landed");
            }
        }
        if cause.is_some() {
            if let Err(error) = result {
                tracing::warn!(%error, "a page could not be read back: it is a miss");
            }
            self.forget_dead_extents();
            self.check_nvme_health();
        }
        self.freed.notify_waiters();
    }

    /// Prefetch: brings a session's pages, or the given ones, into DRAM; nobody waits for them.
    pub(crate) fn prefetch(
        self: &Arc<Self>,
        ask: &wire::PrefetchRequest,
    ) -> Result<wire::PrefetchReply, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        if !ask.session.is_empty() {
            return self.promote_session(ns, &SessionId::parse(&ask.session).map_err(malformed)?);
        }
        self.promote_pages(ns, &unpack_hashes(&ask.hashes).map_err(malformed)?)
    }

    /// Starts the reads of a session's pages that are on NVMe only.
    pub(super) fn promote_session(
        self: &Arc<Self>,
        ns: NamespaceIndex,
        session: &SessionId,
    ) -> Result<wire::PrefetchReply, Error> {
        let hashes = self.core().pool.session_hashes(ns, session).map_err(refuse)?;
        self.promote_pages(ns, &hashes)
    }

    fn promote_pages(
        self: &Arc<Self>,
        ns: NamespaceIndex,
        hashes: &[BlockHash],
    ) -> Result<wire::PrefetchReply, Error> {
        let now = self.now();
        let (ready, promotions, renewals) = {
            let mut core = self.core();
            let ready = core.pool.lookup(ns, hashes, now).map_err(refuse)?.dram;
            let shards = core.pool.namespace_desc(ns).map_or(0, |desc| desc.shards);
            let mut promotions = Vec::new();
            for shard in 0..shards {
                promotions.extend(core.pool.begin_promote(ns, hashes, shard, now).map_err(refuse)?);
            }
            (ready, promotions, core.pool.take_slab_actions())
        };
        self.renew_slabs(renewals);
        let started = promotions.len() as u32;
        self.start_promotions(promotions);
        Ok(wire::PrefetchReply { started, ready })
    }
}

/// What a tier's failure means to whoever wanted the page.
fn miss_cause(error: &TierError) -> MissCause {
    match error {
        TierError::Checksum(_) => MissCause::Checksum,
        TierError::Busy => MissCause::Busy,
        TierError::Stale(_) => MissCause::Absent,
        _ => MissCause::Io,
    }
}
