//! What is counted of snapshots. Owns: the names of the series. Must not know: what an operation does.

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge,
    histogram,
};
use std::time::Duration;
use turnkv_archive::Error as Fault;

/// What is done with snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SnapshotVerb {
    Create,
    Restore,
    List,
    Describe,
    Verify,
    Fork,
    Delete,
    Collect,
    Export,
    Import,
}

impl SnapshotVerb {
    const ALL: [SnapshotVerb; 10] = [
        SnapshotVerb::Create,
        SnapshotVerb::Restore,
        SnapshotVerb::List,
        SnapshotVerb::Describe,
        SnapshotVerb::Verify,
        SnapshotVerb::Fork,
        SnapshotVerb::Delete,
        SnapshotVerb::Collect,
        SnapshotVerb::Export,
        SnapshotVerb::Import,
    ];

    /// Its name in metrics and logs.
    pub(super) fn name(self) -> &'static str {
        match self {
            SnapshotVerb::Create => "create",
            SnapshotVerb::Restore => "restore",
            SnapshotVerb::List => "list",
            SnapshotVerb::Describe => "describe",
            SnapshotVerb::Verify => "verify",
            SnapshotVerb::Fork => "fork",
            SnapshotVerb::Delete => "delete",
            SnapshotVerb::Collect => "collect",
            SnapshotVerb::Export => "export",
            SnapshotVerb::Import => "import",
        }
    }

    /// Whether it reads a few small objects only.
    pub(super) fn is_look(self) -> bool {
        matches!(self, SnapshotVerb::List | SnapshotVerb::Describe | SnapshotVerb::Delete)
    }
}

/// Handles of what is counted.
pub(super) struct SnapshotCounts {
    pub(super) captured_pages: Counter,
    pub(super) captured_bytes: Counter,
    pub(super) restored_pages: Counter,
    pub(super) restored_bytes: Counter,
    pub(super) stored_bytes: Counter,
    pub(super) refused: Counter,
    running: Gauge,
    seconds: [Histogram; SnapshotVerb::ALL.len()],
    failures: [(&'static str, Counter); CAUSES.len()],
}

const CAUSES: [&str; 5] = ["store", "full", "credentials", "damaged", "asked"];
const SECONDS: &str = "turnkv_archive_operation_seconds";
const FAILURES: &str = "turnkv_archive_failures_total";

impl SnapshotCounts {
    /// Registers everything once, at start.
    pub(super) fn new(operations_max: usize) -> SnapshotCounts {
        describe_histogram!(SECONDS, "Time of snapshot operations that were done, by verb");
        describe_counter!(
            FAILURES,
            "Refusals of the archive, by cause: store (no answer, or not in time), full, credentials, damaged, asked (what was asked for does not exist, or is too much)"
        );
        describe_gauge!("turnkv_archive_limit_operations", "Snapshot operations that may run at a time");
        gauge!("turnkv_archive_limit_operations").set(operations_max as f64);
        let described = |name: &'static str, help: &'static str| {
            describe_counter!(name, help);
            counter!(name)
        };
        describe_gauge!("turnkv_archive_running_operations", "Snapshot operations under way");
        SnapshotCounts {
            captured_pages: described("turnkv_archive_captured_pages_total", "Pages taken into snapshots"),
            captured_bytes: described(
                "turnkv_archive_captured_bytes_total",
                "Bytes of these, as engines have them",
            ),
            restored_pages: described(
                "turnkv_archive_restored_pages_total",
                "Pages of snapshots brought back into the pool",
            ),
            restored_bytes: described(
                "turnkv_archive_restored_bytes_total",
                "Bytes of these, as engines have them",
            ),
            stored_bytes: described(
                "turnkv_archive_stored_bytes_total",
                "Bytes of pages written to the archive's store: less than captured where they shrink, or were there",
            ),
            refused: described(
                "turnkv_archive_refused_total",
                "Snapshot operations refused because as many ran as may",
            ),
            running: gauge!("turnkv_archive_running_operations"),
            seconds: SnapshotVerb::ALL.map(|verb| histogram!(SECONDS, "verb" => verb.name())),
            failures: CAUSES.map(|cause| (cause, counter!(FAILURES, "cause" => cause))),
        }
    }

    /// An operation began.
    pub(super) fn begun(&self) {
        self.running.increment(1.0);
    }

    /// It is over, done or not.
    pub(super) fn ended(&self) {
        self.running.decrement(1.0);
    }

    /// It was done in this time.
    pub(super) fn took(&self, verb: SnapshotVerb, time: Duration) {
        let seconds = SnapshotVerb::ALL.iter().zip(&self.seconds).find(|(one, _)| **one == verb);
        if let Some((_, seconds)) = seconds {
            seconds.record(time);
        }
    }

    /// The archive refused.
    pub(super) fn failed(&self, fault: &Fault) {
        let cause = match fault {
            Fault::Unreachable { .. } | Fault::Short(_) | Fault::TooLate { .. } => "store",
            Fault::Full { .. } => "full",
            Fault::CredentialsRefused { .. } => "credentials",
            Fault::Damaged { .. } => "damaged",
            _ => "asked",
        };
        if let Some((_, failures)) = self.failures.iter().find(|(name, _)| *name == cause) {
            failures.increment(1);
        }
    }
}
