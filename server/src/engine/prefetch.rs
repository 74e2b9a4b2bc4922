//! Prefetch: pages into DRAM before their turn begins. Owns: the bytes read ahead of need, and the verb. Must not know: whose
//! pages make room (the pool's to say).

use super::lookup::PagesOf;
use super::session::SessionKey;
use super::{Engine, refuse};
use crate::limits::{PREFETCH_BYTES_INFLIGHT_MAX, PREFETCH_PAGES_PER_SLICE};
use std::sync::Arc;
use turnkv_pool::limits::PROMOTIONS_PER_CALL_MAX;
use turnkv_pool::{NamespaceIndex, Prefetching, Promotion};
use turnkv_proto::{BlockHash, Error, NamespaceId, SessionId};

/// Pages to be brought into DRAM.
pub(crate) struct Prefetch {
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// Which, and by when.
    pub(crate) when: When,
}

/// When which pages are wanted in DRAM.
pub(crate) enum When {
    /// These, now.
    Now(PagesOf),
    /// Those of a session, when it is back.
    Within {
        /// The session.
        session: SessionId,
        /// Milliseconds until then.
        ms: u64,
    },
}

/// What a prefetch has begun.
#[derive(Clone, Copy, Default)]
pub(crate) struct PrefetchBegun {
    /// Reads started.
    pub(crate) started: u32,
    /// Pages that were in DRAM already.
    pub(crate) ready: u32,
}

impl Engine {
    /// Brings a session's pages, or the given ones, into DRAM, now or by a time; nobody waits for them.
    pub(crate) fn prefetch(self: &Arc<Self>, ask: &Prefetch) -> Result<PrefetchBegun, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        let (session, ms) = match &ask.when {
            When::Now(pages) => {
                let hashes = self.hashes_of(ns, pages)?;
                let begun = self.promote_pages(ns, &hashes)?;
                self.fetch_ahead(ns, &ask.namespace, pages)?;
                return Ok(begun);
            }
            When::Within { session, ms } => (session, *ms),
        };
        let now = self.now();
        let begun = self.decide().pool.start_expecting(ns, session, ms, now);
        let mut expecting = begun.map_err(refuse)?;
        drop(self.try_in_slices(|core| core.pool.expect_some(&mut expecting, now))?);
        self.pump_prefetches();
        Ok(PrefetchBegun { started: 0, ready: expecting.dram_pages() })
    }

    /// Has come back what only the archive has of these.
    fn fetch_ahead(&self, ns: NamespaceIndex, namespace: &NamespaceId, pages: &PagesOf) -> Result<(), Error> {
        match pages {
            PagesOf::Hashes(hashes) => {
                let here = self.look(ns, hashes, self.now())?.present as usize;
                self.archived_after(namespace, hashes.get(here..).unwrap_or_default());
            }
            PagesOf::Session(session) => {
                let here = self.session_hashes(ns, session)?.len() as u32;
                let of = SessionKey { namespace: *namespace, session: session.clone() };
                self.archived_of(ns, &of, here);
            }
        }
        Ok(())
    }

    /// Starts the reads of sessions that are expected back soon, up to the bound in flight. Called by the tick and when such a
    /// read has landed; never waits.
    pub(super) fn pump_prefetches(self: &Arc<Self>) {
        if self.nvme.is_none() {
            return;
        }
        let now = self.now();
        let (mut prefetching, mut promotions) = (Prefetching::new(PREFETCH_BYTES_INFLIGHT_MAX), Vec::new());
        drop(self.decide_in_slices(|core| {
            // Others read ahead as well.
            prefetching.limit(PREFETCH_BYTES_INFLIGHT_MAX.saturating_sub(core.prefetching_bytes));
            let before = promotions.len();
            let all = core.pool.prefetch_some(&mut prefetching, &mut promotions, now);
            core.prefetching_bytes += promotions[before..].iter().map(|read| read.bytes).sum::<u64>();
            all
        }));
        let first = promotions.iter().filter(|read| read.shard == 0);
        self.metrics.prefetched_pages.increment(first.count() as u64);
        for promotion in promotions {
            self.start_ahead(promotion);
        }
    }

    fn start_ahead(self: &Arc<Self>, promotion: Promotion) {
        self.start_read(promotion, move |engine, good| {
            engine.decide().prefetching_bytes -= promotion.bytes;
            // After a refusal the tick goes on with what is still to be planned: at once, it would be refused again.
            if good {
                engine.pump_prefetches();
            }
        });
    }

    pub(super) fn promote_pages(
        self: &Arc<Self>,
        ns: NamespaceIndex,
        hashes: &[BlockHash],
    ) -> Result<PrefetchBegun, Error> {
        let now = self.now();
        let found = self.look(ns, hashes, now)?;
        let (ready, hashes) = (found.dram, &hashes[..found.present as usize]);
        // What is in DRAM already must not make room for the rest: it is used first, tails before heads.
        let parts = hashes.chunks(PREFETCH_PAGES_PER_SLICE);
        let mut tails_first = parts.clone().rev();
        drop(self.decide_in_slices(|core| {
            tails_first.next().map(|part| core.pool.touch_pages(ns, part, now)).is_none()
        }));
        let shards = self.decide().pool.namespace_desc(ns).map_or(0, |desc| desc.shards);
        let (mut shard, mut from, mut promotions) = (0, 0, Vec::new());
        let mut core = self.decide();
        while shard < shards && !hashes.is_empty() && promotions.len() < PROMOTIONS_PER_CALL_MAX {
            promotions.extend(core.pool.begin_promote(ns, hashes, shard, &mut from, now).map_err(refuse)?);
            if from == hashes.len() {
                (shard, from) = (shard + 1, 0);
            }
            core.let_others_in();
        }
        drop(core);
        let started = promotions.len() as u32;
        self.start_promotions(promotions);
        Ok(PrefetchBegun { started, ready })
    }
}
