//! Latency of the tiers: one histogram an operation, as handles held from the start. Owns: their names. Must not know: what is
//! moved, or why.

use metrics::{Histogram, describe_histogram, histogram};

/// Time that the tiers take, from the call to its completion.
#[allow(missing_docs, reason = "one histogram an operation")]
pub(crate) struct TierSeconds {
    pub(crate) write: Histogram,
    pub(crate) rewrite: Histogram,
    pub(crate) read: Histogram,
    pub(crate) flush: Histogram,
    pub(crate) renew: Histogram,
}

impl TierSeconds {
    pub(super) fn new() -> TierSeconds {
        let name = "turnkv_tier_operation_seconds";
        describe_histogram!(name, "Time of a tier's operation, from the call to its completion");
        let nvme = |operation: &'static str| histogram!(name, "tier" => "nvme", "operation" => operation);
        TierSeconds {
            write: nvme("write"),
            rewrite: nvme("rewrite"),
            read: nvme("read"),
            flush: nvme("flush"),
            renew: histogram!(name, "tier" => "dram", "operation" => "renew"),
        }
    }
}
