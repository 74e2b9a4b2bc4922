//! Stats and Evict on the wire. Owns: their messages, and the wire's names of tiers. Must not know: where figures come from.

use crate::engine::remotes::clients::FabricReport;
use crate::engine::resize::ResizeReport;
use crate::engine::stats::{EvictFrom, Report, TierName};
use turnkv_proto::{Error, wire};

/// The wire's name of a tier.
pub(super) fn tier_kind(tier: TierName) -> wire::TierKind {
    match tier {
        TierName::Dram => wire::TierKind::Dram,
        TierName::Nvme => wire::TierKind::Nvme,
    }
}

/// Encodes the answer to a Stats, with what an operator should know beside it.
pub(crate) fn reply(report: Report, notes: Vec<String>) -> wire::StatsReply {
    let (pool, reloads) = (&report.pool, report.reloads);
    wire::StatsReply {
        evicted_pages: pool.evicted_pages,
        sessions: pool.sessions,
        namespaces: pool.namespaces,
        leases: pool.leases,
        dirty_bytes: pool.dirty_bytes,
        quarantined_bytes: pool.quarantined_bytes,
        uptime_ms: report.uptime_ms,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        index_bytes: pool.index_bytes,
        index_pages: pool.entries,
        connections: report.connections,
        lookups: report.lookups,
        miss_pages: reloads.misses,
        hit_tokens: reloads.hit_tokens,
        offloaded_pages: report.offloaded_pages,
        present_pages: report.present_pages,
        declined_pages: report.declined_pages,
        protected_bytes: pool.protected_bytes,
        protected_tenant_bytes_max: pool.protected_tenant_bytes_max,
        protected_budget_bytes: pool.protection_budget_bytes,
        protections: pool.protections,
        pins: pool.pins,
        corrupt_pages: report.corrupt_pages,
        fabrics: report.fabrics.iter().map(fabric).collect(),
        kept: report.kept.clone(),
        tiers: tiers(report),
        notes,
    }
}

fn fabric(report: &FabricReport) -> wire::FabricStats {
    let nics = &report.counts;
    wire::FabricStats {
        fabric: report.engine.name().to_owned(),
        nics: report.nics.clone(),
        rails: report.rails as u64,
        read_bytes: report.read_bytes,
        written_bytes: report.written_bytes,
        stuck_rails: nics.rails_stuck as u64,
        known_slabs: nics.slabs_known as u64,
        unknown_slabs: nics.slabs_unknown as u64,
    }
}

fn tiers(report: Report) -> Vec<wire::TierStats> {
    let (dram, nvme_pages) = (&report.pool.dram, report.pool.nvme.pages);
    let dram = wire::TierStats {
        tier: wire::TierKind::Dram.into(),
        capacity_bytes: dram.capacity_bytes,
        used_bytes: dram.used_bytes,
        leased_bytes: dram.leased_bytes,
        pages: dram.pages,
        hit_pages: report.reloads.dram_hits,
        note: report.dram_note,
        ..Default::default()
    };
    let nvme = report.nvme.map(|(usage, poisoned)| wire::TierStats {
        tier: wire::TierKind::Nvme.into(),
        capacity_bytes: usage.capacity_bytes,
        used_bytes: usage.used_bytes,
        leased_bytes: 0,
        pages: nvme_pages,
        read_bytes: usage.read_bytes,
        written_bytes: usage.written_bytes,
        poisoned: usage.poisoned,
        note: poisoned.unwrap_or_default(),
        hit_pages: report.reloads.nvme_hits,
    });
    std::iter::once(dram).chain(nvme).collect()
}

/// Encodes how far a change of DRAM's size is.
pub(crate) fn resized(report: ResizeReport) -> wire::ResizeReply {
    wire::ResizeReply {
        wanted_bytes: report.wanted_bytes,
        present_bytes: report.present_bytes,
        leaving_slabs: report.leaving_slabs,
        leased_bytes: report.leased_bytes,
        protected_bytes: report.protected_bytes,
        dirty_bytes: report.dirty_bytes,
        done: report.done,
        note: report.note,
    }
}

/// Decodes where an Evict drops pages from.
pub(crate) fn evict_from(raw: &wire::EvictRequest) -> Result<EvictFrom, Error> {
    match raw.tier() {
        wire::TierKind::Dram => Ok(EvictFrom::Dram),
        wire::TierKind::Unspecified => Ok(EvictFrom::Everywhere),
        wire::TierKind::Nvme => {
            Err(Error::invalid("evict from DRAM (tier DRAM) or everywhere (tier unspecified)"))
        }
    }
}
