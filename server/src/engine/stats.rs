//! Stats: what the Admin service and the gauges report. Owns: putting the rooms' own numbers together. Must not
//! know: who asks.

use super::Engine;
use turnkv_pool::Sweep;
use turnkv_proto::wire;
use turnkv_tier::Tier;

impl Engine {
    /// A consistent picture of the pool, beside the tiers' own accounting.
    pub(crate) fn stats(&self) -> wire::StatsReply {
        let pool = self.core().pool.stats();
        let (dram_hits, nvme_hits, hit_tokens, misses) = self.metrics.reload_totals();
        let dram = wire::TierStats {
            tier: wire::TierKind::Dram.into(),
            capacity_bytes: pool.dram.capacity_bytes,
            used_bytes: pool.dram.used_bytes,
            leased_bytes: pool.dram.leased_bytes,
            pages: pool.dram.pages,
            hit_pages: dram_hits,
            note: self.slabs.note(),
            ..Default::default()
        };
        let nvme = self.nvme.as_ref().map(|nvme| {
            let usage = nvme.usage();
            wire::TierStats {
                tier: wire::TierKind::Nvme.into(),
                capacity_bytes: usage.capacity_bytes,
                used_bytes: usage.used_bytes,
                leased_bytes: 0,
                pages: pool.nvme.pages,
                read_bytes: usage.read_bytes,
                written_bytes: usage.written_bytes,
                poisoned: usage.poisoned,
                note: nvme.poisoned().unwrap_or_default(),
                hit_pages: nvme_hits,
            }
        });
        wire::StatsReply {
            tiers: std::iter::once(dram).chain(nvme).collect(),
            evicted_pages: pool.evicted_pages,
            sessions: pool.sessions,
            namespaces: pool.namespaces,
            leases: pool.leases,
            dirty_bytes: pool.dirty_bytes,
            quarantined_bytes: pool.quarantined_bytes,
            uptime_ms: self.now(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            index_bytes: pool.index_bytes,
            index_pages: pool.entries,
            connections: self.clients.connections() as u64,
            lookups: self.metrics.lookups.total(),
            miss_pages: misses,
            hit_tokens,
            offloaded_pages: self.metrics.offloaded_pages.total(),
            present_pages: self.metrics.present_pages.total(),
            declined_pages: self.metrics.declined_pages.total(),
            protected_bytes: pool.protected_bytes,
            protected_tenant_bytes_max: pool.protected_tenant_bytes_max,
            protected_budget_bytes: pool.protection_budget_bytes,
            protections: pool.protections,
            pins: pool.pins,
            corrupt_pages: self.metrics.corrupt_total(),
        }
    }

    /// Drops pages: of one namespace or all, from DRAM only or everywhere. It takes as long as there are pages: give it a thread.
    pub(crate) fn evict(&self, ask: &wire::EvictRequest) -> Result<wire::EvictReply, turnkv_proto::Error> {
        let ns = if ask.namespace.is_empty() { None } else { Some(self.find_namespace(&ask.namespace)?) };
        let mut sweep = Sweep::default();
        let pages = match ask.tier() {
            wire::TierKind::Dram => {
                drop(self.slices(|core| core.pool.demote_some(ns, &mut sweep)));
                sweep.pages()
            }
            wire::TierKind::Unspecified => {
                drop(self.slices(|core| core.pool.evict_some(ns, &mut sweep)));
                sweep.pages()
            }
            wire::TierKind::Nvme => {
                let text = "evict from DRAM (tier DRAM) or everywhere (tier unspecified)";
                return Err(turnkv_proto::Error::invalid(text));
            }
        };
        self.pass_place_notes();
        self.freed.notify_waiters();
        Ok(wire::EvictReply { pages })
    }
}
