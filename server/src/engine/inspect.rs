//! What a simulator may look at inside an engine. Owns: reading without touching. Must not know: why it is asked.

use super::Engine;
use crate::simulation::{Books, Held};
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_tier::Tier;
use turnkv_tier::nvme::NvmeTier;

impl Engine {
    /// The pool's invariants, from scratch.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.decide().pool.check()
    }

    /// What the pool has of a page that readers can see.
    pub(crate) fn held(&self, namespace: &NamespaceId, hash: &BlockHash) -> Option<Held> {
        let core = self.decide();
        let page = core.pool.page_key(core.pool.namespace(namespace)?, hash)?;
        let place = |place: turnkv_pool::NvmePlace| (u32::from(place.segment), place.block);
        let places = core.pool.places(page).into_iter().map(|at| at.map(place)).collect();
        Some(Held { on_nvme: core.pool.is_on_nvme(page) == Some(true), places })
    }

    /// What is on its way and what was given up.
    pub(crate) fn books(&self) -> Books {
        let usage = self.nvme.as_ref().map(|nvme| nvme.usage()).unwrap_or_default();
        let core = self.decide();
        let stats = core.pool.stats();
        Books {
            writing_bytes: core.writing_bytes,
            prefetching_bytes: core.prefetching_bytes,
            promotions: core.promotions.len() as u64,
            durable_waits: core.durable.len() as u64,
            pinned_bytes: stats.dram.pinned_bytes,
            dirty_bytes: stats.dirty_bytes,
            visible: stats.pages,
            evicted: stats.evicted_pages,
            dropped: stats.dropped_pages,
            crowded_out: stats.crowded_out_pages,
            moved: [stats.demoted_pages, stats.promoted_shards, self.metrics.reclaimed_segments.total()],
            extents: core.pool.extents(),
            stranger_extents: stats.stranger_extents,
            live_extents: usage.live_extents,
            unreadable_extents: usage.unreadable_extents,
            tier_operations: usage.queued_ops,
            free_segments: usage.free_segments,
            surplus_segments: usage.surplus_segments,
        }
    }

    /// The NVMe tier.
    pub(crate) fn nvme(&self) -> Option<&NvmeTier> {
        self.nvme.as_deref()
    }
}
