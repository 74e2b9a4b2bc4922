//! What is counted of pulls. Owns: the names of the series. Must not know: what a pull does.

use super::fault::PullFault;
use crate::engine::Engine;
use crate::limits::{PULL_BYTES_MAX, PULL_PAGES_MAX, PULLS_MAX, PULLS_WAITING_MAX};
use crate::telemetry::{counted, shown};
use metrics::{Counter, Gauge, Histogram, counter, describe_counter, describe_histogram, histogram};
use std::sync::atomic::Ordering;
use std::time::Duration;

const FAILURES: &str = "turnkv_cluster_pull_failures_total";
const SECONDS: &str = "turnkv_cluster_pull_seconds";

/// Handles of what is counted.
pub(super) struct PullCounts {
    pages: Counter,
    bytes: Counter,
    refused: Counter,
    failures: [Counter; PullFault::ALL.len()],
    seconds: Histogram,
    running: Gauge,
    waiting: Gauge,
    coming_pages: Gauge,
    asked_bytes: Gauge,
    waiting_reloads: Gauge,
    second_copies: Gauge,
    second_copies_max: Gauge,
    brought: Gauge,
}

impl PullCounts {
    /// Registers everything once, at start.
    pub(super) fn new() -> PullCounts {
        shown("turnkv_cluster_pull_limit_running_operations", "Pulls that may be under way")
            .set(PULLS_MAX as f64);
        shown("turnkv_cluster_pull_limit_queued_operations", "Pulls that may wait")
            .set(PULLS_WAITING_MAX as f64);
        shown("turnkv_cluster_pull_limit_coming_pages", "Pages that may be on their way")
            .set(PULL_PAGES_MAX as f64);
        shown("turnkv_cluster_pull_limit_asked_bytes", "Bytes of pages that may be asked for at a time")
            .set(PULL_BYTES_MAX as f64);
        describe_counter!(
            FAILURES,
            "Pulls that ended before their last page, by cause: absent (the member does not have it), checksum, unreachable (no answer, or not in time), member (it had no room, or a device failed), room (there is none here), outranked (what would make way for it here is likelier to be used again), other"
        );
        describe_histogram!(SECONDS, "Time of pulls that brought all their pages");
        PullCounts {
            pages: counted("turnkv_cluster_pull_pages_total", "Pages that came from other pools"),
            bytes: counted("turnkv_cluster_pull_bytes_total", "Bytes of these"),
            refused: counted(
                "turnkv_cluster_pull_refused_total",
                "Pulls that found no place: too many waited",
            ),
            failures: PullFault::ALL.map(|fault| counter!(FAILURES, "cause" => fault.name())),
            seconds: histogram!(SECONDS),
            running: shown("turnkv_cluster_pull_running_operations", "Pulls under way"),
            waiting: shown("turnkv_cluster_pull_queued_operations", "Pulls that wait"),
            coming_pages: shown(
                "turnkv_cluster_pull_coming_pages",
                "Pages that are on their way, or will be",
            ),
            asked_bytes: shown(
                "turnkv_cluster_pull_asked_bytes",
                "Bytes of pages that were asked for and have not come",
            ),
            waiting_reloads: shown(
                "turnkv_cluster_pull_waiting_operations",
                "Reloads that wait for a page of another pool",
            ),
            second_copies: shown(
                "turnkv_cluster_second_copy_bytes",
                "Bytes of prefixes that were pulled from other pools, which have them as well, and may stay like other pages",
            ),
            second_copies_max: shown("turnkv_cluster_limit_second_copy_bytes", "The most of these"),
            brought: shown(
                "turnkv_cluster_brought_sessions",
                "Sessions of other pools whose pages were prefetched here, and whose turn has not begun",
            ),
        }
    }

    /// Pages came.
    pub(super) fn came(&self, pages: usize, page_bytes: u64) {
        self.pages.increment(pages as u64);
        self.bytes.increment(pages as u64 * page_bytes);
    }

    /// A pull has brought all of its pages.
    pub(super) fn done(&self, time: Duration) {
        self.seconds.record(time.as_secs_f64());
    }

    /// A pull has not.
    pub(super) fn failed(&self, fault: PullFault) {
        let at = PullFault::ALL.iter().position(|one| *one == fault);
        if let Some(failures) = at.map(|at| &self.failures[at]) {
            failures.increment(1);
        }
    }

    /// Brings the gauges up to date.
    pub(super) fn look(&self, engine: &Engine, asked_bytes: u64) {
        let (waiting, running, coming) = engine.afar.counts();
        self.waiting.set(waiting as f64);
        self.running.set(running as f64);
        self.coming_pages.set(coming as f64);
        self.asked_bytes.set(asked_bytes as f64);
        self.waiting_reloads.set(engine.afar.waiting_reloads.load(Ordering::Relaxed) as f64);
        self.second_copies.set(engine.afar.second_copies.bytes() as f64);
        self.second_copies_max.set(engine.second_copy_bytes_max() as f64);
        self.brought.set(engine.afar.brought.count() as f64);
        self.refused.absolute(engine.afar.refused.load(Ordering::Relaxed));
    }
}
