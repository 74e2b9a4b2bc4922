//! Latency: one histogram a verb and door, one a tier operation, as handles held from the start. Owns: their names.
//! Must not know: what the verbs do.

use metrics::{Histogram, describe_histogram, histogram};
use std::collections::HashMap;
use std::time::Instant;
use turnkv_proto::wire::{METHODS, Verb};

/// Time from a request's arrival to its (first) answer, whichever door it came through.
pub(crate) struct Calls {
    /// By the path of an HTTP request.
    grpc: HashMap<&'static str, Histogram>,
    /// By the number of a frame's verb.
    local: Vec<Histogram>,
}

/// Time that the tiers take, from the call to its completion.
#[allow(missing_docs, reason = "one histogram an operation")]
pub(crate) struct TierSeconds {
    pub(crate) write: Histogram,
    pub(crate) rewrite: Histogram,
    pub(crate) read: Histogram,
    pub(crate) flush: Histogram,
    pub(crate) renew: Histogram,
}

impl Calls {
    pub(super) fn new() -> Calls {
        let name = "turnkv_rpc_call_seconds";
        describe_histogram!(name, "Time from a request's arrival to its first answer, by door and verb");
        let grpc = |verb: &'static str| histogram!(name, "door" => "grpc", "verb" => verb);
        let local = |verb: String| histogram!(name, "door" => "local", "verb" => verb);
        let verbs = (0..).map_while(|number| Verb::try_from(number).ok());
        let verbs = verbs.map(|verb| verb.as_str_name().trim_start_matches("VERB_").to_ascii_lowercase());
        Calls {
            grpc: METHODS.iter().map(|(path, verb)| (*path, grpc(verb))).collect(),
            local: verbs.map(local).collect(),
        }
    }

    /// The histogram of a gRPC method, if the path is that of one.
    pub(crate) fn grpc(&self, path: &str) -> Option<&Histogram> {
        self.grpc.get(path)
    }

    /// A verb of the local socket was answered.
    pub(crate) fn answered(&self, verb: u8, began: Instant) {
        if let Some(seconds) = self.local.get(usize::from(verb)) {
            seconds.record(began.elapsed());
        }
    }
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
