//! Counters and gauges of the engine, as handles (an increment costs 12 ns). Owns: the names. Must not know: HTTP.

use super::Engine;
use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use std::sync::atomic::{AtomicU64, Ordering};
use turnkv_pool::MissCause;

/// The engine's handles. Names: `turnkv_<subsystem>_<what>_<unit>`; labels only over fixed sets.
#[allow(missing_docs, reason = "each is described by the text it is registered with")]
pub(crate) struct Metrics {
    pub(crate) lookups: Tally,
    pub(crate) offloaded_pages: Tally,
    pub(crate) present_pages: Tally,
    pub(crate) declined_pages: Tally,
    pub(crate) corrupt_pages: Tally,
    pub(crate) demoted_bytes: Tally,
    pub(crate) rewritten_bytes: Tally,
    pub(crate) reclaimed_segments: Tally,
    pub(crate) call_seconds: CallSeconds,
    dram_hits: Tally,
    nvme_hits: Tally,
    hit_tokens: Tally,
    promoted_bytes: Tally,
    misses: [Tally; 5],
    gauges: Gauges,
}

/// Latency of the verbs, whichever door they came through.
#[allow(missing_docs, reason = "one histogram a verb")]
pub(crate) struct CallSeconds {
    pub(crate) lookup: Histogram,
    pub(crate) begin_offload: Histogram,
    pub(crate) commit_offload: Histogram,
    pub(crate) begin_reload: Histogram,
    pub(crate) reserve: Histogram,
    pub(crate) commit_reserved: Histogram,
}

/// A counter that can also be read back, for Stats.
pub(crate) struct Tally {
    counter: Counter,
    total: AtomicU64,
}

impl Tally {
    fn new(counter: Counter) -> Tally {
        Tally { counter, total: AtomicU64::new(0) }
    }

    /// Adds to the counter.
    pub(crate) fn increment(&self, by: u64) {
        self.counter.increment(by);
        self.total.fetch_add(by, Ordering::Relaxed);
    }

    /// Its value so far.
    pub(super) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

struct Gauges {
    dram: TierGauges,
    nvme: TierGauges,
    dirty_bytes: Gauge,
    quarantined_bytes: Gauge,
    sessions: Gauge,
    namespaces: Gauge,
    leases: Gauge,
    connections: Gauge,
    index_bytes: Gauge,
    index_pages: Gauge,
    locked_bytes: Gauge,
    huge_bytes: Gauge,
    poisoned: Gauge,
    kept_off: Gauge,
    evicted: Gauge,
}

struct TierGauges {
    capacity: Gauge,
    used: Gauge,
    leased: Gauge,
    pages: Gauge,
}

const CAUSES: [&str; 5] = ["absent", "checksum", "io", "busy", "incomplete"];

impl Metrics {
    /// Registers everything once, at start.
    pub(super) fn new() -> Metrics {
        describe();
        Metrics {
            lookups: Tally::new(counter!("turnkv_pool_lookups_total")),
            offloaded_pages: Tally::new(counter!("turnkv_offload_stored_pages_total")),
            present_pages: Tally::new(counter!("turnkv_offload_present_pages_total")),
            declined_pages: Tally::new(counter!("turnkv_offload_declined_pages_total")),
            corrupt_pages: Tally::new(counter!("turnkv_pool_corrupt_pages_total")),
            demoted_bytes: Tally::new(counter!("turnkv_nvme_written_bytes_total")),
            rewritten_bytes: Tally::new(counter!("turnkv_nvme_rewritten_bytes_total")),
            reclaimed_segments: Tally::new(counter!("turnkv_nvme_reclaimed_segments_total")),
            call_seconds: CallSeconds {
                lookup: histogram!("turnkv_call_seconds", "verb" => "lookup"),
                begin_offload: histogram!("turnkv_call_seconds", "verb" => "begin_offload"),
                commit_offload: histogram!("turnkv_call_seconds", "verb" => "commit_offload"),
                begin_reload: histogram!("turnkv_call_seconds", "verb" => "begin_reload"),
                reserve: histogram!("turnkv_call_seconds", "verb" => "reserve"),
                commit_reserved: histogram!("turnkv_call_seconds", "verb" => "commit_reserved"),
            },
            dram_hits: Tally::new(counter!("turnkv_reload_hit_pages_total", "tier" => "dram")),
            nvme_hits: Tally::new(counter!("turnkv_reload_hit_pages_total", "tier" => "nvme")),
            hit_tokens: Tally::new(counter!("turnkv_reload_hit_tokens_total")),
            promoted_bytes: Tally::new(counter!("turnkv_nvme_read_bytes_total")),
            misses: CAUSES.map(|cause| Tally::new(counter!("turnkv_reload_misses_total", "cause" => cause))),
            gauges: Gauges::new(),
        }
    }

    /// A reload found pages in these tiers.
    pub(super) fn reloaded(&self, dram: u64, nvme: u64, tokens: u64) {
        self.dram_hits.increment(dram);
        self.nvme_hits.increment(nvme);
        self.hit_tokens.increment(tokens);
    }

    /// Pages found in DRAM and on NVMe, tokens saved, reloads that ended at a miss.
    pub(super) fn reload_totals(&self) -> (u64, u64, u64, u64) {
        let misses = self.misses.iter().map(Tally::total).sum();
        (self.dram_hits.total(), self.nvme_hits.total(), self.hit_tokens.total(), misses)
    }

    /// A reload ended at a page that is not there.
    pub(super) fn missed(&self, cause: MissCause) {
        self.misses[cause_index(cause)].increment(1);
    }

    /// A read from NVMe ended.
    pub(super) fn promoted(&self, bytes: u64, cause: Option<MissCause>) {
        match cause {
            None => self.promoted_bytes.increment(bytes),
            Some(cause) => {
                self.missed(cause);
                if cause == MissCause::Checksum {
                    self.corrupt_pages.increment(1);
                }
            }
        }
    }
}

impl Engine {
    /// Brings the gauges up to date; called before they are rendered.
    pub(crate) fn refresh_gauges(&self) {
        let stats = self.stats();
        let gauges = &self.metrics.gauges;
        for tier in &stats.tiers {
            let target = if tier.tier == turnkv_proto::wire::TierKind::Dram as i32 {
                &gauges.dram
            } else {
                &gauges.nvme
            };
            target.capacity.set(tier.capacity_bytes as f64);
            target.used.set(tier.used_bytes as f64);
            target.leased.set(tier.leased_bytes as f64);
            target.pages.set(tier.pages as f64);
            if tier.tier == turnkv_proto::wire::TierKind::Nvme as i32 {
                gauges.poisoned.set(if tier.poisoned { 1.0 } else { 0.0 });
            }
        }
        gauges.evicted.set(stats.evicted_pages as f64);
        gauges.kept_off.set(self.core().pool.stats().kept_off_pages as f64);
        gauges.dirty_bytes.set(stats.dirty_bytes as f64);
        gauges.quarantined_bytes.set(stats.quarantined_bytes as f64);
        gauges.sessions.set(stats.sessions as f64);
        gauges.namespaces.set(stats.namespaces as f64);
        gauges.leases.set(stats.leases as f64);
        gauges.connections.set(stats.connections as f64);
        gauges.index_bytes.set(stats.index_bytes as f64);
        gauges.index_pages.set(stats.index_pages as f64);
        gauges.locked_bytes.set(self.slabs.dram.locked_bytes() as f64);
        gauges.huge_bytes.set(self.slabs.dram.huge_bytes() as f64);
    }
}

impl Gauges {
    fn new() -> Gauges {
        let tier = |tier: &'static str| TierGauges {
            capacity: gauge!("turnkv_tier_capacity_bytes", "tier" => tier),
            used: gauge!("turnkv_tier_used_bytes", "tier" => tier),
            leased: gauge!("turnkv_tier_leased_bytes", "tier" => tier),
            pages: gauge!("turnkv_tier_pages", "tier" => tier),
        };
        Gauges {
            dram: tier("dram"),
            nvme: tier("nvme"),
            dirty_bytes: gauge!("turnkv_pool_dirty_bytes"),
            quarantined_bytes: gauge!("turnkv_pool_quarantined_bytes"),
            sessions: gauge!("turnkv_pool_sessions"),
            namespaces: gauge!("turnkv_pool_namespaces"),
            leases: gauge!("turnkv_pool_leases"),
            connections: gauge!("turnkv_local_connections"),
            index_bytes: gauge!("turnkv_pool_index_bytes"),
            index_pages: gauge!("turnkv_pool_index_pages"),
            locked_bytes: gauge!("turnkv_dram_locked_bytes"),
            huge_bytes: gauge!("turnkv_dram_huge_bytes"),
            poisoned: gauge!("turnkv_nvme_poisoned"),
            evicted: gauge!("turnkv_pool_evicted_pages"),
            kept_off: gauge!("turnkv_nvme_kept_off_pages"),
        }
    }
}

fn cause_index(cause: MissCause) -> usize {
    match cause {
        MissCause::Absent => 0,
        MissCause::Checksum => 1,
        MissCause::Io => 2,
        MissCause::Busy => 3,
        MissCause::Incomplete => 4,
    }
}

fn describe() {
    describe_counter!("turnkv_pool_lookups_total", "Lookup calls");
    describe_counter!("turnkv_offload_stored_pages_total", "Pages made visible by commits");
    describe_counter!("turnkv_offload_present_pages_total", "Offloaded pages that were already there");
    describe_counter!(
        "turnkv_offload_declined_pages_total",
        "Offloaded pages that were declined, with a reason to the caller"
    );
    describe_gauge!(
        "turnkv_nvme_kept_off_pages",
        "Pages that admission or the write budget kept off NVMe when they came, since start"
    );
    describe_gauge!("turnkv_pool_evicted_pages", "Pages that left the pool by policy, since start");
    describe_counter!(
        "turnkv_pool_corrupt_pages_total",
        "Pages whose bytes did not verify; dropped, never served"
    );
    describe_counter!("turnkv_nvme_written_bytes_total", "Page bytes written to NVMe");
    describe_counter!("turnkv_nvme_rewritten_bytes_total", "Page bytes written again by reclaim");
    describe_counter!("turnkv_nvme_reclaimed_segments_total", "Segments emptied by reclaim");
    describe_counter!("turnkv_nvme_read_bytes_total", "Page bytes read back from NVMe");
    describe_counter!("turnkv_reload_hit_pages_total", "Pages found by reloads, by tier");
    describe_counter!("turnkv_reload_hit_tokens_total", "Tokens that need no prefill");
    describe_counter!("turnkv_reload_misses_total", "Reloads that ended at a missing page, by cause");
    describe_histogram!("turnkv_call_seconds", "Time from a request's arrival to its answer, by verb");
    describe_gauge!("turnkv_tier_capacity_bytes", "Configured bytes of a tier");
    describe_gauge!("turnkv_tier_used_bytes", "Bytes of a tier that hold pages");
    describe_gauge!("turnkv_tier_leased_bytes", "Bytes of a tier under lease");
    describe_gauge!("turnkv_tier_pages", "Pages in a tier");
    describe_gauge!("turnkv_pool_dirty_bytes", "Bytes in DRAM that are not yet on NVMe");
    describe_gauge!("turnkv_pool_quarantined_bytes", "Bytes that an expired writer may still be writing to");
    describe_gauge!("turnkv_pool_sessions", "Sessions remembered");
    describe_gauge!("turnkv_pool_namespaces", "Namespaces open");
    describe_gauge!("turnkv_pool_leases", "Leases held");
    describe_gauge!("turnkv_local_connections", "Connections on the local socket");
    describe_gauge!("turnkv_pool_index_bytes", "Memory of the index");
    describe_gauge!("turnkv_pool_index_pages", "Pages in the index");
    describe_gauge!("turnkv_dram_locked_bytes", "Page memory that is locked (mlock)");
    describe_gauge!("turnkv_dram_huge_bytes", "Page memory on huge pages");
    describe_gauge!("turnkv_nvme_poisoned", "1 when an I/O error took the NVMe tier out of service");
}
