//! What is counted of sessions that go to other members, and come from them. Owns: the names of the series. Must not know: what is done
//! with a session.

use crate::engine::Engine;
use crate::engine::moves::MovedOne;
use crate::limits::{MOVES_MAX, TAKES_MAX};
use crate::telemetry::shown;
use metrics::{Counter, Gauge, counter, describe_counter};
use std::sync::atomic::Ordering;

const OFFERS: &str = "turnkv_cluster_offered_sessions_total";

/// Handles of what is counted.
pub(super) struct MoveCounts {
    offers: [Counter; 5],
    bytes: Counter,
    moving: Gauge,
    taking: Gauge,
    left: Gauge,
}

impl MoveCounts {
    /// Registers everything once, at start.
    pub(super) fn new() -> MoveCounts {
        shown("turnkv_cluster_limit_moving_operations", "Sessions that may be offered at a time")
            .set(MOVES_MAX as f64);
        shown("turnkv_cluster_limit_taking_operations", "Sessions that may be taken over at a time")
            .set(TAKES_MAX as f64);
        describe_counter!(
            OFFERS,
            "Sessions that were offered to other members because this host is emptied, by outcome: taken, gone (not at home here any more), no_room, no_peer (no member serves), failed"
        );
        let bytes = "turnkv_cluster_moved_bytes_total";
        describe_counter!(bytes, "Bytes of pages of sessions that other members have taken over");
        MoveCounts {
            offers: ["taken", "gone", "no_room", "no_peer", "failed"]
                .map(|outcome| counter!(OFFERS, "outcome" => outcome)),
            bytes: counter!(bytes),
            moving: shown("turnkv_cluster_moving_operations", "Sessions that are offered to other members"),
            taking: shown("turnkv_cluster_taking_operations", "Sessions of others that are being taken over"),
            left: shown("turnkv_cluster_leaving_sessions", "Sessions that are still to leave this host"),
        }
    }

    /// A session is offered.
    pub(super) fn offered(&self) {
        self.moving.increment(1.0);
    }

    /// It is not any more.
    pub(super) fn ended(&self, outcome: &MovedOne) {
        self.moving.decrement(1.0);
        let at = match outcome {
            MovedOne::Taken { bytes } => {
                self.bytes.increment(*bytes);
                0
            }
            MovedOne::Gone => 1,
            MovedOne::NoRoom => 2,
            MovedOne::NoPeer => 3,
            MovedOne::Failed(_) => 4,
        };
        self.offers[at].increment(1);
    }

    /// Brings the gauges up to date.
    pub(super) fn look(&self, engine: &Engine) {
        let standing = engine.moves.standing();
        self.left.set(if standing.is_running { standing.left_sessions as f64 } else { 0.0 });
        self.taking.set(engine.moves.taking.load(Ordering::Relaxed) as f64);
    }
}
