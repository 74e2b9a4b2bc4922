//! What a simulator may look at inside an engine. Owns: reading without touching. Must not know: why it is asked.

use super::Engine;
use crate::simulation::Held;
use turnkv_proto::{BlockHash, NamespaceId};
use turnkv_tier::nvme::NvmeTier;

impl Engine {
    /// The pool's invariants, from scratch.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.core().pool.check()
    }

    /// What the pool has of a page that readers can see.
    pub(crate) fn held(&self, namespace: &NamespaceId, hash: &BlockHash) -> Option<Held> {
        let core = self.core();
        let page = core.pool.page_key(core.pool.namespace(namespace)?, hash)?;
        let place = |place: turnkv_pool::NvmePlace| (place.segment, place.block);
        let places = core.pool.places(page).into_iter().map(|at| at.map(place)).collect();
        Some(Held { on_nvme: core.pool.is_on_nvme(page) == Some(true), places })
    }

    /// The NVMe tier.
    pub(crate) fn nvme(&self) -> Option<&NvmeTier> {
        self.nvme.as_deref()
    }
}
