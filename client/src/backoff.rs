//! Pauses between attempts to connect. Owns: how they grow and end. Must not know: what is attempted.

use crate::deadline::Deadline;
use crate::limits::{CONNECT_PAUSE_MAX, CONNECT_PAUSE_MIN};
use std::time::Duration;

/// Pauses that double, until a deadline.
#[derive(Debug)]
pub(crate) struct Backoff {
    pause: Duration,
    until: Option<Deadline>,
}

impl Backoff {
    /// `until` none: one attempt only.
    pub(crate) fn new(until: Option<Deadline>) -> Backoff {
        Backoff { pause: CONNECT_PAUSE_MIN, until }
    }

    /// The pause before the next attempt, or `None`: there is no time for one.
    pub(crate) fn next(&mut self) -> Option<Duration> {
        let left = self.until?.left();
        let pause = self.pause;
        self.pause = (pause * 2).min(CONNECT_PAUSE_MAX);
        (pause < left).then_some(pause)
    }
}
