//! The bounds of KV events. Owns: constants. Must not know: what keeps them.

use std::time::Duration;

/// Page changes that wait to be published; more are let go of together, and subscribers are told that nothing is known any more.
pub(crate) const EVENTS_WAITING_MAX: usize = 1 << 16;
/// Page changes in one message.
pub(crate) const EVENTS_BATCH_MAX: usize = 512;
/// Connections of subscribers.
pub(crate) const EVENTS_SUBSCRIBERS_MAX: usize = 64;
/// Connections that ask for messages of before.
pub(crate) const EVENTS_REPLAYS_MAX: usize = 16;
/// Beginnings of topics that one subscriber asks for.
pub(crate) const EVENTS_TOPICS_MAX: usize = 16;
/// Bytes of a frame that a subscriber sends: a topic, or a number.
pub(crate) const EVENTS_FRAME_BYTES_MAX: u64 = 1_024;
/// How long the first words of a connection may take.
pub(crate) const EVENTS_GREETING_WAIT: Duration = Duration::from_secs(5);
/// How long one message may take to leave before its connection ends.
pub(crate) const EVENTS_SEND_WAIT: Duration = Duration::from_secs(10);
/// Pause of a door that could not take a connection.
pub(crate) const EVENTS_ACCEPT_PAUSE: Duration = Duration::from_millis(100);
