//! Counters of the engine, as handles (an increment costs 12 ns). Owns: what is counted as it happens. Must not know:
//! HTTP; gauges (`gauges`), latencies (`tier_seconds`).

use super::gauges::Gauges;
use super::tier_seconds::TierSeconds;
use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use turnkv_pool::MissCause;

/// The engine's handles. Names: `turnkv_<subsystem>_<what>_<unit>`; labels only over fixed sets.
#[allow(missing_docs, reason = "each is described by the text it is registered with")]
pub(crate) struct Metrics {
    pub(crate) lookups: Tally,
    pub(crate) offloaded_pages: Tally,
    pub(crate) present_pages: Tally,
    pub(crate) declined_pages: Tally,
    pub(crate) outranked_pages: Tally,
    pub(crate) demoted_bytes: Tally,
    pub(crate) rewritten_bytes: Tally,
    pub(crate) reclaimed_segments: Tally,
    pub(crate) retired_namespaces: Tally,
    pub(crate) prefetched_pages: Tally,
    pub(crate) routes: Tally,
    /// Inline calls refused because as many callers have some in service as may.
    pub(crate) refused_callers: Tally,
    pub(crate) unlisted_sessions: Tally,
    pub(crate) tier_seconds: TierSeconds,
    pub(super) gauges: Gauges,
    dram_hits: Tally,
    nvme_hits: Tally,
    hit_tokens: Tally,
    /// A gauge that only grows: counters count whole numbers, and Prometheus wants seconds.
    saved_seconds: Gauge,
    promoted_bytes: Tally,
    /// Shared with the reloads under way: each counts its own miss.
    pub(super) misses: Arc<Misses>,
    corrupt: [Tally; 4],
}

/// What reloads found since start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReloadTotals {
    /// Pages found in DRAM.
    pub(crate) dram_hits: u64,
    /// Pages found on NVMe.
    pub(crate) nvme_hits: u64,
    /// Tokens that need no prefill.
    pub(crate) hit_tokens: u64,
    /// Reloads that ended at a miss.
    pub(crate) misses: u64,
}

/// Reloads that ended at a miss, by cause.
pub(super) struct Misses([Tally; 5]);

impl Misses {
    /// A reload ended at a page that is not there.
    pub(super) fn count(&self, cause: MissCause) {
        self.0[cause_index(cause)].increment(1);
    }

    fn total(&self) -> u64 {
        self.0.iter().map(Tally::total).sum()
    }
}

/// Where bytes were found that do not match their checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Corrupt {
    /// By a client that read them.
    Reader,
    /// On NVMe.
    Nvme,
    /// In DRAM, when they had been written to NVMe.
    Write,
    /// In DRAM, before a reload.
    Dram,
}

/// A counter that can also be read back, for Stats.
pub(crate) struct Tally {
    counter: Counter,
    total: AtomicU64,
}

impl Tally {
    /// Registers and describes a counter without labels.
    fn new(name: &'static str, help: &'static str) -> Tally {
        describe_counter!(name, help);
        Tally::of(counter!(name))
    }

    fn of(counter: Counter) -> Tally {
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

/// Names of the causes of a miss, in the order of [`cause_index`].
const CAUSES: [&str; 5] = ["absent", "checksum", "io", "busy", "incomplete"];
const FOUND: [&str; 4] = ["reader", "nvme", "write", "dram"];
const CORRUPT: &str = "turnkv_pool_corrupt_pages_total";
const HITS: &str = "turnkv_reload_hit_pages_total";
const SAVED: &str = "turnkv_reload_saved_seconds";
const MISSES: &str = "turnkv_reload_misses_total";

impl Metrics {
    /// Registers everything once, at start.
    pub(super) fn new() -> Metrics {
        describe_counter!(
            HITS,
            "Pages found by reloads, by tier; read shard by shard, by the call for the first shard"
        );
        describe_gauge!(
            SAVED,
            "Prefill time saved by reloads since start, in namespaces whose prefill rate is known"
        );
        describe_counter!(
            CORRUPT,
            "Pages dropped, never served, because bytes of theirs did not verify, by where that was found"
        );
        describe_counter!(
            MISSES,
            "Reloads that ended at a missing page, by cause; of pages read shard by shard, those of the first shard"
        );
        Metrics {
            lookups: Tally::new("turnkv_pool_lookups_total", "Lookup calls"),
            offloaded_pages: Tally::new(
                "turnkv_offload_stored_pages_total",
                "Pages made visible by commits, by that of the last shard",
            ),
            present_pages: Tally::new(
                "turnkv_offload_present_pages_total",
                "Offloaded pages that were already there; offloaded shard by shard, told to the call for the first shard",
            ),
            declined_pages: Tally::new(
                "turnkv_offload_declined_pages_total",
                "Offloaded pages that were declined, with a reason to the caller; shard by shard, to the call for the first shard",
            ),
            outranked_pages: Tally::new(
                "turnkv_offload_outranked_pages_total",
                "Offloaded pages not taken because what would have made way is likelier to be used again",
            ),
            demoted_bytes: Tally::new("turnkv_nvme_written_bytes_total", "Page bytes written to NVMe"),
            rewritten_bytes: Tally::new(
                "turnkv_nvme_rewritten_bytes_total",
                "Page bytes written again by reclaim",
            ),
            retired_namespaces: Tally::new(
                "turnkv_pool_retired_namespaces_total",
                "Namespaces that made way for new ones at the limit",
            ),
            reclaimed_segments: Tally::new(
                "turnkv_nvme_reclaimed_segments_total",
                "Segments emptied by reclaim",
            ),
            prefetched_pages: Tally::new(
                "turnkv_prefetch_read_pages_total",
                "Pages read from NVMe ahead of an expected turn, each counted with its first shard",
            ),
            routes: Tally::new("turnkv_route_answers_total", "Routes given"),
            refused_callers: Tally::of(counter!("turnkv_requests_refused_total", "cause" => "callers")),
            unlisted_sessions: Tally::new(
                "turnkv_catalog_unlisted_sessions_total",
                "Sessions saved without their lists, because the catalog holds as many as it may",
            ),
            tier_seconds: TierSeconds::new(),
            gauges: Gauges::new(),
            dram_hits: Tally::of(counter!(HITS, "tier" => "dram")),
            nvme_hits: Tally::of(counter!(HITS, "tier" => "nvme")),
            hit_tokens: Tally::new("turnkv_reload_hit_tokens_total", "Tokens that need no prefill"),
            saved_seconds: gauge!(SAVED),
            promoted_bytes: Tally::new("turnkv_nvme_read_bytes_total", "Page bytes read back from NVMe"),
            corrupt: FOUND.map(|found| Tally::of(counter!(CORRUPT, "found" => found))),
            misses: Arc::new(Misses(CAUSES.map(|cause| Tally::of(counter!(MISSES, "cause" => cause))))),
        }
    }

    /// A reload found pages in these tiers; `saved_us` is what prefilling their tokens would have
    /// taken, if known.
    pub(super) fn reloaded(&self, dram: u64, nvme: u64, tokens: u64, saved_us: u64) {
        self.dram_hits.increment(dram);
        self.nvme_hits.increment(nvme);
        self.hit_tokens.increment(tokens);
        self.saved_seconds.increment(saved_us as f64 / 1e6);
    }

    /// What they found since start.
    pub(super) fn reload_totals(&self) -> ReloadTotals {
        ReloadTotals {
            dram_hits: self.dram_hits.total(),
            nvme_hits: self.nvme_hits.total(),
            hit_tokens: self.hit_tokens.total(),
            misses: self.misses.total(),
        }
    }

    /// Pages were dropped whose bytes do not verify.
    pub(super) fn corrupted(&self, found: Corrupt, pages: u64) {
        self.corrupt[found as usize].increment(pages);
    }

    /// How many there were.
    pub(super) fn corrupt_total(&self) -> u64 {
        self.corrupt.iter().map(Tally::total).sum()
    }

    /// Bytes were read back from NVMe.
    pub(super) fn promoted(&self, bytes: u64) {
        self.promoted_bytes.increment(bytes);
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
