//! What is counted and shown of connections. Owns: the series' names. Must not know: when they change.

use super::caps::Caps;
use super::cause::{Cause, Refusal};
use super::door::Door;
use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

pub(super) struct Counters {
    open: [Gauge; Door::ALL.len()],
    refused: [[Counter; Refusal::ALL.len()]; Door::ALL.len()],
    ended: [[Counter; Cause::ALL.len()]; Door::ALL.len()],
}

impl Counters {
    pub(super) fn new(caps: &Caps) -> Counters {
        describe_gauge!("turnkv_door_open_connections", "Connections that a door serves");
        describe_gauge!(
            "turnkv_door_limit_connections",
            "Connections that a door takes; one peer may have part of them"
        );
        describe_counter!(
            "turnkv_door_refused_total",
            "Connections refused: no room, no threads, too many clients (processes), or nobody's"
        );
        describe_counter!(
            "turnkv_door_ended_total",
            "Connections that the server ended: silent (asked nothing in time), idle, stalled (within a frame), unread (left an answer), for room, malformed (not the protocol), flood, gone (did not answer), for want of memory, or for a certificate that is not accepted any more"
        );
        for door in Door::ALL {
            gauge!("turnkv_door_limit_connections", "door" => door.name()).set(caps.of(door) as f64);
        }
        let ended = |door: Door| {
            Cause::ALL.map(
                |cause| counter!("turnkv_door_ended_total", "door" => door.name(), "cause" => cause.name()),
            )
        };
        let refused = |door: Door| {
            Refusal::ALL.map(
                |why| counter!("turnkv_door_refused_total", "door" => door.name(), "cause" => why.name()),
            )
        };
        Counters {
            open: Door::ALL.map(|door| gauge!("turnkv_door_open_connections", "door" => door.name())),
            refused: Door::ALL.map(refused),
            ended: Door::ALL.map(ended),
        }
    }

    pub(super) fn refused(&self, door: Door, why: Refusal) {
        if let Some(counter) = self.refused[door.at()].get(why as usize) {
            counter.increment(1);
        }
    }

    pub(super) fn ended(&self, door: Door, cause: Cause) {
        if let Some(counter) = self.ended[door.at()].get(cause as usize) {
            counter.increment(1);
        }
    }

    pub(super) fn refresh(&self, open: &[usize; Door::ALL.len()]) {
        for (gauge, open) in self.open.iter().zip(open) {
            gauge.set(*open as f64);
        }
    }
}
