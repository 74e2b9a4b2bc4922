//! How fast a rail must be. Owns: since when something is due without a pause, and what has moved since. Must not know:
//! what is due, who waits.
//!
//! A single byte is no progress: who sends one now and then would keep slots and shares for ever. While something is due,
//! [`RAIL_PACE_BYTES`] move within each stall, or nothing is due any more before it ends.

use std::time::{Duration, Instant};

use crate::fabric::operation::Cause;
use crate::limits::RAIL_PACE_BYTES;

/// The pace of one end of a rail.
#[derive(Debug)]
pub(super) struct Pace {
    stall: Duration,
    /// None while nothing is due.
    measured: Option<Measured>,
}

#[derive(Clone, Copy, Debug)]
struct Measured {
    since: Instant,
    /// What had moved by then.
    bytes: u64,
}

impl Pace {
    pub(super) fn new(stall: Duration) -> Self {
        Self { stall, measured: None }
    }

    /// For how long the rail may wait for its peer; none: for ever, as nothing is due. `bytes`: all that it has moved of what
    /// was due.
    pub(super) fn left(&mut self, due: bool, bytes: u64) -> Result<Option<Duration>, Cause> {
        if !due {
            self.measured = None;
            return Ok(None);
        }
        let now = Instant::now();
        let from = Measured { since: now, bytes };
        let measured = self.measured.get_or_insert(from);
        if bytes - measured.bytes >= RAIL_PACE_BYTES {
            *measured = from;
        }
        let left = self.stall.saturating_sub(now - measured.since);
        if left.is_zero() { Err(Cause::Stalled) } else { Ok(Some(left)) }
    }
}
