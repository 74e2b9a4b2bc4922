//! What a simulator may look at inside an engine. Owns: reading without touching. Must not know: why it is asked.

use super::Engine;
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_tier::nvme::NvmeTier;

/// What the pool has of a page that readers can see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Every shard of it is on NVMe, as far as the pool knows.
    pub on_nvme: bool,
    /// Segment and block of each shard that is on NVMe.
    pub places: Vec<Option<(u32, u32)>>,
}

/// What is on its way and what was given up, in one life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// Page bytes given to the tier to write.
    pub writing_bytes: u64,
    /// Bytes being read ahead of need.
    pub prefetching_bytes: u64,
    /// Page shards that reloads wait for.
    pub promotions: u64,
    /// Readers that wait for these, or left and are not forgotten.
    pub waiting_readers: u64,
    /// Commits that wait to be durable.
    pub durable_waits: u64,
    /// Slot bytes that cannot be given up now.
    pub pinned_bytes: u64,
    /// Bytes not yet on NVMe.
    pub dirty_bytes: u64,
    /// Pages that readers can see.
    pub visible: u64,
    /// Pages gone by policy.
    pub evicted: u64,
    /// Pages lost, corrupt or dropped by command.
    pub dropped: u64,
    /// Pages found on NVMe that a full index had no room for.
    pub crowded_out: u64,
    /// Pages that left DRAM and stayed on NVMe, shards read back, segments emptied.
    pub moved: [u64; 3],
    /// Extents that pages have, as the pool counts them.
    pub extents: u64,
    /// Extents of namespaces that are not open.
    pub stranger_extents: u64,
    /// Live extents, as the tier counts them.
    pub live_extents: u64,
    /// Extents that could not be read.
    pub unreadable_extents: u64,
    /// Operations that the tier has accepted and not ended.
    pub tier_operations: u64,
    /// Segments that new extents could still take.
    pub free_segments: u64,
    /// Segments beyond a lowered capacity that are still to be emptied.
    pub surplus_segments: u64,
}

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
            waiting_readers: core.promotions.readers() as u64,
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
