//! One look at everything that is shown. Owns: when it is taken, and where each number comes from. Must not know: the series'
//! names.

use super::Engine;
use super::gauges::Picture;
use crate::catalog::Catalog;
use turnkv_pool::LIST_CHUNK_PAGES;

impl Engine {
    /// Brings the gauges up to date; called before they are rendered.
    pub(crate) fn refresh_gauges(&self) {
        self.remote.refresh_gauges(self.slabs.dram.regions().len());
        self.metrics.gauges.show(&self.picture());
    }

    fn picture(&self) -> Picture {
        let nvme = self.nvme.as_ref().map(|nvme| nvme.usage()).unwrap_or_default();
        let first = self.metrics.demoted_bytes.total().saturating_sub(self.metrics.rewritten_bytes.total());
        let (route_engines, route_sessions, route_marks) = {
            let router = self.router.lock();
            (router.engines() as u64, router.sessions() as u64, router.marks() as u64)
        };
        let catalog = self.catalog.as_ref();
        let catalog_bytes = catalog.map_or(0, Catalog::bytes);
        let core = self.decide();
        let fullest = core.pool.fullest_client();
        let fullest = fullest.and_then(|client| self.clients.process_of(client)).unwrap_or_default();
        Picture {
            fullest,
            route_engines,
            route_sessions,
            route_marks,
            pool: core.pool.stats(),
            writing_bytes: core.writing_bytes,
            prefetching_bytes: core.prefetching_bytes,
            promotions_waited_for: core.promotions.len() as u64,
            durable_waits: core.durable.len() as u64,
            nvme,
            locked_bytes: self.slabs.dram.locked_bytes(),
            huge_bytes: self.slabs.dram.huge_bytes(),
            present_bytes: self.slabs.dram.report().bytes,
            draining: self.is_draining(),
            slot_waits: self.waiting_for_slots(),
            catalog_changes: self.unsaved() as u64,
            catalog_fails: catalog.is_some_and(|catalog| catalog.trouble().is_some()),
            catalogs_set_aside: catalog.map_or(0, Catalog::set_aside),
            catalog_bytes,
            list_pages: catalog.map_or(0, Catalog::list_chunks) * u64::from(LIST_CHUNK_PAGES),
            list_budget_pages: self.list_chunks_max() * u64::from(LIST_CHUNK_PAGES),
            kept: self.kept(),
            first_written_bytes: first,
        }
    }
}
