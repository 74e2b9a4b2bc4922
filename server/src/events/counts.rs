//! What is counted of KV events. Owns: the names of the series. Must not know: what an event says.

use crate::limits::{EVENTS_REPLAYS_MAX, EVENTS_SUBSCRIBERS_MAX, EVENTS_WAITING_MAX};
use crate::telemetry::{counted, shown};
use metrics::{Counter, Gauge};

/// Handles of what is counted.
pub(super) struct EventCounts {
    published: Counter,
    messages: Counter,
    lost: Counter,
    skipped: Counter,
    replays: Counter,
    refused: Counter,
    waiting: Gauge,
    connections: Gauge,
}

impl EventCounts {
    /// Registers everything once, at start.
    pub(super) fn new() -> EventCounts {
        shown("turnkv_events_limit_waiting_pages", "Page changes that may wait to be published")
            .set(EVENTS_WAITING_MAX as f64);
        shown("turnkv_events_limit_connections", "Connections that may be at the doors of events")
            .set((EVENTS_SUBSCRIBERS_MAX + EVENTS_REPLAYS_MAX) as f64);
        EventCounts {
            published: counted("turnkv_events_pages_total", "Page changes that were published as KV events"),
            messages: counted("turnkv_events_messages_total", "Messages that these were in"),
            lost: counted(
                "turnkv_events_lost_pages_total",
                "Page changes that found no room to wait: subscribers were told that nothing is known any more",
            ),
            skipped: counted(
                "turnkv_events_skipped_total",
                "Messages that a subscriber was too slow for: it sees that by their numbers, and can ask for them",
            ),
            replays: counted(
                "turnkv_events_replays_total",
                "Questions for messages of before that were answered",
            ),
            refused: counted(
                "turnkv_events_refused_total",
                "Connections ended because as many were there as may",
            ),
            waiting: shown("turnkv_events_waiting_pages", "Page changes that wait to be published"),
            connections: shown("turnkv_events_connections", "Connections at the doors of events"),
        }
    }

    /// A message with so many changes.
    pub(super) fn published(&self, changes: usize) {
        self.published.increment(changes as u64);
        self.messages.increment(1);
    }

    /// So many changes found no room.
    pub(super) fn lost(&self, changes: usize) {
        self.lost.increment(changes as u64);
    }

    /// A subscriber was too slow for so many messages.
    pub(super) fn skipped(&self, messages: u64) {
        self.skipped.increment(messages);
    }

    /// A question was answered.
    pub(super) fn replayed(&self) {
        self.replays.increment(1);
    }

    /// A connection too many.
    pub(super) fn refused(&self) {
        self.refused.increment(1);
    }

    /// So many changes were taken to be published.
    pub(super) fn waiting(&self, changes: usize) {
        self.waiting.set(changes as f64);
    }

    /// A connection more.
    pub(super) fn came(&self) {
        self.connections.increment(1.0);
    }

    /// One less.
    pub(super) fn went(&self) {
        self.connections.decrement(1.0);
    }
}
