//! The circuit breaker: stops calls to a sick pool, and lets one through now and then to see whether it recovered.
//! Owns: that decision, for a `now` it is handed. Must not know: clocks, connections, what a call does.
//!
//! ```text
//!             `failures` in a row                      cool-down is over: one probe passes
//!   Closed ------------------------------->   Open   ---------------------------------->   HalfOpen
//!     ^                                        ^  |                                          |   |
//!     |                                        |  +-- every other call: BreakerOpen          |   |
//!     |                                        +---------------- the probe failed -----------+   |
//!     +-------------------------------------------------------- the probe succeeded -------------+
//! ```

use std::time::{Duration, Instant};

#[cfg(test)]
mod tests;

/// What the breaker does with calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Lets them pass.
    Closed,
    /// Fails them at once.
    Open,
    /// Waits for the one call it let pass.
    HalfOpen,
}

/// The right to make one call; its end must be told with [`Breaker::end`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pass {
    /// An ordinary call, begun in this epoch of health.
    Usual(u64),
    /// The one that sees whether the pool recovered.
    Probe,
}

/// How a call ended, as far as the pool's health goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The pool answered.
    Healthy,
    /// Nobody there, or no answer by the deadline.
    Sick,
    /// The caller went away: it says nothing.
    Unknown,
}

#[derive(Debug)]
pub(crate) struct Breaker {
    failures_max: u32,
    cooldown: Duration,
    failures: u32,
    opened: Option<Instant>,
    probing: bool,
    /// Counts openings and closings, so that calls begun before one say nothing after it.
    epoch: u64,
}

impl Breaker {
    pub(crate) fn new(failures_max: u32, cooldown: Duration) -> Breaker {
        Breaker {
            failures_max: failures_max.max(1),
            cooldown,
            failures: 0,
            opened: None,
            probing: false,
            epoch: 0,
        }
    }

    /// Whether a call may be made. `Err`: not before so long.
    pub(crate) fn admit(&mut self, now: Instant) -> Result<Pass, Duration> {
        let Some(opened) = self.opened else { return Ok(Pass::Usual(self.epoch)) };
        let waited = now.saturating_duration_since(opened);
        if self.probing || waited < self.cooldown {
            return Err(self.cooldown.saturating_sub(waited));
        }
        self.probing = true;
        Ok(Pass::Probe)
    }

    /// Tells how a call ended.
    pub(crate) fn end(&mut self, pass: Pass, outcome: Outcome, now: Instant) {
        match (pass, outcome) {
            (Pass::Usual(epoch), _) if epoch != self.epoch => {}
            (Pass::Usual(_), Outcome::Healthy) => self.failures = 0,
            (Pass::Usual(_), Outcome::Sick) => {
                self.failures += 1;
                if self.failures >= self.failures_max {
                    self.opened = Some(now);
                    self.epoch += 1;
                }
            }
            (Pass::Usual(_), Outcome::Unknown) => {}
            (Pass::Probe, Outcome::Healthy) => {
                self.opened = None;
                self.failures = 0;
                self.probing = false;
                self.epoch += 1;
            }
            (Pass::Probe, Outcome::Sick) => {
                self.opened = Some(now);
                self.probing = false;
            }
            // The next call becomes the probe.
            (Pass::Probe, Outcome::Unknown) => self.probing = false,
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        match (self.opened, self.probing) {
            (None, _) => BreakerState::Closed,
            (Some(_), false) => BreakerState::Open,
            (Some(_), true) => BreakerState::HalfOpen,
        }
    }

    /// Whether the last call that says anything succeeded.
    pub(crate) fn is_healthy(&self) -> bool {
        self.failures == 0 && self.opened.is_none()
    }
}
