//! Latency: one histogram a verb and door, as handles held from the start. Owns: their names. Must not know: what the verbs do.

use crate::connections::Door;
use metrics::{Histogram, describe_histogram, histogram};
use std::collections::HashMap;
use std::time::Instant;
use turnkv_proto::wire::{Method, Verb};

/// Time from a request's arrival to its (first) answer, whichever door it came through.
pub(crate) struct CallSeconds {
    /// By the path of an HTTP request.
    grpc: HashMap<&'static str, Histogram>,
    /// Of the doors of frames, by the number of a frame's verb.
    frames: [(Door, Vec<Histogram>); 2],
}

impl CallSeconds {
    pub(crate) fn new() -> CallSeconds {
        let name = "turnkv_rpc_call_seconds";
        describe_histogram!(name, "Time from a request's arrival to its first answer, by door and verb");
        let grpc = |verb: &'static str| histogram!(name, "door" => "grpc", "verb" => verb);
        let verbs = (0..).map_while(|number| Verb::try_from(number).ok());
        let verbs = verbs.map(|verb| verb.as_str_name().trim_start_matches("VERB_").to_ascii_lowercase());
        let verbs: Vec<String> = verbs.collect();
        let frames = |door: Door| {
            let timed = |verb: &String| histogram!(name, "door" => door.name(), "verb" => verb.clone());
            (door, verbs.iter().map(timed).collect())
        };
        CallSeconds {
            grpc: Method::ALL.iter().map(|method| (method.path(), grpc(method.name()))).collect(),
            frames: [Door::Local, Door::Framed].map(frames),
        }
    }

    /// The histogram of a gRPC method, if the path is that of one.
    pub(crate) fn grpc(&self, path: &str) -> Option<&Histogram> {
        self.grpc.get(path)
    }

    /// A verb of a frame that came through a door was answered.
    pub(crate) fn answered(&self, door: Door, verb: u8, began: Instant) {
        let timed = self.frames.iter().find(|(at, _)| *at == door);
        if let Some(seconds) = timed.and_then(|(_, verbs)| verbs.get(usize::from(verb))) {
            seconds.record(began.elapsed());
        }
    }
}
