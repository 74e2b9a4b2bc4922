//! Stats: what the Admin service and the gauges report. Owns: putting the rooms' own numbers together. Must not
//! know: who asks.

use super::Engine;
use super::metrics::ReloadTotals;
use super::outliving::Outliving;
use super::remotes::clients::FabricReport;
use turnkv_pool::{PoolStats, Sweep};
use turnkv_proto::{Error, NamespaceId};
use turnkv_tier::Usage;

/// A kind of memory that pages are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TierName {
    /// Page memory of this host.
    Dram,
    /// The segment log of this host.
    Nvme,
}

/// Where pages are dropped from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EvictFrom {
    /// From DRAM, where NVMe has them.
    Dram,
    /// From wherever they are.
    Everywhere,
}

/// A consistent picture of the pool, beside the tiers' own accounting.
pub(crate) struct Report {
    /// What the pool has.
    pub(crate) pool: PoolStats,
    /// What is to be known of the page memory; empty when all is well.
    pub(crate) dram_note: String,
    /// Who keeps page memory for the next start; empty: nobody.
    pub(crate) kept: String,
    /// The NVMe tier, where there is one, and why it is out of service, if it is.
    pub(crate) nvme: Option<(Usage, Option<String>)>,
    /// By which fabrics pages go to and from other hosts; none: no door for them is open.
    pub(crate) fabrics: Vec<FabricReport>,
    /// What reloads found since start.
    pub(crate) reloads: ReloadTotals,
    /// Since start.
    pub(crate) uptime_ms: u64,
    /// Open connections on the local socket.
    pub(crate) connections: u64,
    /// Lookups since start, and so on.
    pub(crate) lookups: u64,
    pub(crate) offloaded_pages: u64,
    pub(crate) present_pages: u64,
    pub(crate) declined_pages: u64,
    pub(crate) corrupt_pages: u64,
}

impl Engine {
    /// A consistent picture of the pool, beside the tiers' own accounting.
    pub(crate) fn stats(&self) -> Report {
        Report {
            pool: self.decide().pool.stats(),
            dram_note: self.slabs.note(),
            kept: self.outliving.as_ref().and_then(Outliving::describe).unwrap_or_default(),
            nvme: self.nvme.as_ref().map(|nvme| (nvme.usage(), nvme.poisoned())),
            fabrics: if self.settings.tcp.is_some() {
                self.remote.fabrics(self.slabs.dram.regions().len())
            } else {
                Vec::new()
            },
            reloads: self.metrics.reload_totals(),
            uptime_ms: self.now(),
            connections: self.clients.connections() as u64,
            lookups: self.metrics.lookups.total(),
            offloaded_pages: self.metrics.offloaded_pages.total(),
            present_pages: self.metrics.present_pages.total(),
            declined_pages: self.metrics.declined_pages.total(),
            corrupt_pages: self.metrics.corrupt_total(),
        }
    }

    /// Drops pages, of one namespace or all; says how many. It takes as long as there are pages: give it a thread.
    pub(crate) fn evict(&self, namespace: Option<&NamespaceId>, from: EvictFrom) -> Result<u64, Error> {
        let ns = namespace.map(|id| self.find_namespace(id)).transpose()?;
        let mut sweep = Sweep::default();
        match from {
            EvictFrom::Dram => drop(self.decide_in_slices(|core| core.pool.demote_some(ns, &mut sweep))),
            EvictFrom::Everywhere => drop(self.decide_in_slices(|core| core.pool.evict_some(ns, &mut sweep))),
        }
        Ok(sweep.pages())
    }
}
