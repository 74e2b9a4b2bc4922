//! Pauses between attempts: to connect, and to be served by a server that is busy. Owns: how they grow and end. Must not know:
//! what is attempted.

use crate::deadline::Deadline;
use crate::limits::{CONNECT_PAUSE_MAX, CONNECT_PAUSE_MIN, RECONNECTS_MAX, RETRY_PAUSE_MAX, RETRY_PAUSE_MIN};
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

/// What one call has tried so far.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// It has opened its namespace again.
    pub(crate) reopened: bool,
    /// How often it has asked on another connection, after one was lost.
    reconnects: u32,
    /// The least pause before the next attempt.
    least: Duration,
}

impl Attempts {
    /// Waits before a server that is busy is asked again, for as long as it said and longer each time. False, at once: the
    /// deadline comes first.
    pub(crate) async fn pause(&mut self, retry_after_ms: u32, deadline: Deadline) -> bool {
        let said = Duration::from_millis(retry_after_ms.into());
        let pause = said.max(self.least).clamp(RETRY_PAUSE_MIN, RETRY_PAUSE_MAX);
        if deadline.left() < pause {
            return false;
        }
        self.least = pause * 2;
        tokio::time::sleep(pause).await;
        true
    }

    /// Its connection was lost: whether another one is worth it. One server that gives way to another ends its connections one after the
    /// other, so a call may meet that more than once.
    pub(crate) fn may_reconnect(&mut self) -> bool {
        self.reconnects += 1;
        self.reconnects <= RECONNECTS_MAX
    }

    /// Something was served: whoever is refused next begins with short pauses.
    pub(crate) fn progressed(&mut self) {
        self.least = Duration::ZERO;
        self.reconnects = 0;
    }
}

#[cfg(test)]
mod tests;
