//! What is counted and shown of connections. Owns: the series' names. Must not know: when they change.

use super::caps::Caps;
use super::{Cause, Door};
use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};

pub(super) struct Counters {
    open: [Gauge; Door::ALL.len()],
    refused: [Counter; Door::ALL.len()],
    ended: [[Counter; CAUSES.len()]; Door::ALL.len()],
}

const CAUSES: [(Cause, &str); 5] = [
    (Cause::Silent, "silent"),
    (Cause::Idle, "idle"),
    (Cause::Stalled, "stalled"),
    (Cause::Unread, "unread"),
    (Cause::Room, "room"),
];

impl Counters {
    pub(super) fn new(caps: &Caps) -> Counters {
        describe_gauge!("turnkv_door_open_connections", "Connections that a door serves");
        describe_gauge!(
            "turnkv_door_limit_connections",
            "Connections that a door takes; one peer may have part of them"
        );
        describe_counter!("turnkv_door_refused_total", "Connections refused because there was no room");
        describe_counter!(
            "turnkv_door_ended_total",
            "Connections that the server ended: silent (asked nothing in time), idle, stalled (within a frame), unread (left an answer), or for room"
        );
        for door in Door::ALL {
            gauge!("turnkv_door_limit_connections", "door" => door.name()).set(caps.of(door) as f64);
        }
        let ended = |door: Door| {
            CAUSES.map(
                |(_, cause)| counter!("turnkv_door_ended_total", "door" => door.name(), "cause" => cause),
            )
        };
        Counters {
            open: Door::ALL.map(|door| gauge!("turnkv_door_open_connections", "door" => door.name())),
            refused: Door::ALL.map(|door| counter!("turnkv_door_refused_total", "door" => door.name())),
            ended: Door::ALL.map(ended),
        }
    }

    pub(super) fn refused(&self, door: Door) {
        self.refused[door.at()].increment(1);
    }

    pub(super) fn ended(&self, door: Door, cause: Cause) {
        let at = CAUSES.iter().position(|(known, _)| *known == cause);
        if let Some(counter) = at.and_then(|at| self.ended[door.at()].get(at)) {
            counter.increment(1);
        }
    }

    pub(super) fn refresh(&self, open: &[usize; Door::ALL.len()]) {
        for (gauge, open) in self.open.iter().zip(open) {
            gauge.set(*open as f64);
        }
    }
}
