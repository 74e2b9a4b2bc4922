//! Latency: one histogram a verb and door, as handles held from the start. Owns: their names. Must not know: what the verbs do.

use metrics::{Histogram, describe_histogram, histogram};
use std::collections::HashMap;
use std::time::Instant;
use turnkv_proto::wire::{METHODS, Verb};

/// Time from a request's arrival to its (first) answer, whichever door it came through.
pub(crate) struct CallSeconds {
    /// By the path of an HTTP request.
    grpc: HashMap<&'static str, Histogram>,
    /// By the number of a frame's verb.
    local: Vec<Histogram>,
}

impl CallSeconds {
    pub(crate) fn new() -> CallSeconds {
        let name = "turnkv_rpc_call_seconds";
        describe_histogram!(name, "Time from a request's arrival to its first answer, by door and verb");
        let grpc = |verb: &'static str| histogram!(name, "door" => "grpc", "verb" => verb);
        let local = |verb: String| histogram!(name, "door" => "local", "verb" => verb);
        let verbs = (0..).map_while(|number| Verb::try_from(number).ok());
        let verbs = verbs.map(|verb| verb.as_str_name().trim_start_matches("VERB_").to_ascii_lowercase());
        CallSeconds {
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
