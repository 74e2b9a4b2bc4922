//! How fast the device is. Owns: an estimate from what goes through anyway. Must not know: operations.

use crate::limits::{DEVICE_RATE_DEFAULT, RATE_WINDOW_BYTES};
use std::time::{Duration, Instant};

/// Bytes a second that a device has shown it can do, as long as it was busy all the time.
#[derive(Debug)]
pub(crate) struct Rate {
    inflight: usize,
    since: Option<Instant>,
    bytes: u64,
    shown: Option<f64>,
}

/// What is left of the best rate shown when a window passes that did not reach it.
const KEPT: f64 = 0.95;

impl Rate {
    pub(crate) fn new() -> Rate {
        Rate { inflight: 0, since: None, bytes: 0, shown: None }
    }

    /// An operation goes to the device.
    pub(crate) fn began(&mut self, now: Instant) {
        self.inflight += 1;
        if self.inflight == 1 {
            (self.since, self.bytes) = (Some(now), 0);
        }
    }

    /// One of so many bytes came back.
    pub(crate) fn ended(&mut self, bytes: u64, now: Instant) {
        self.inflight = self.inflight.saturating_sub(1);
        self.bytes += bytes;
        if self.bytes < RATE_WINDOW_BYTES {
            return;
        }
        let took = self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        if took > Duration::ZERO {
            let rate = self.bytes as f64 / took.as_secs_f64();
            self.shown = Some(self.shown.map_or(rate, |shown| rate.max(shown * KEPT)));
        }
        (self.since, self.bytes) = (Some(now), 0);
    }

    /// Bytes a second.
    pub(crate) fn bytes_per_s(&self) -> f64 {
        self.shown.unwrap_or(DEVICE_RATE_DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_a_busy_device_shows() {
        let start = Instant::now();
        let mut rate = Rate::new();
        assert_eq!(rate.bytes_per_s(), DEVICE_RATE_DEFAULT);
        rate.began(start);
        for window in 1..=4 {
            rate.began(start);
            rate.ended(RATE_WINDOW_BYTES, start + Duration::from_millis(10 * window));
        }
        let shown = rate.bytes_per_s();
        assert!((shown / (RATE_WINDOW_BYTES as f64 * 100.0) - 1.0).abs() < 1e-6, "{shown}");
        // Idle time counts for nothing, a slow window for little.
        rate.ended(0, start + Duration::from_secs(1));
        rate.began(start + Duration::from_secs(60));
        rate.ended(RATE_WINDOW_BYTES, start + Duration::from_secs(61));
        assert!(rate.bytes_per_s() > shown * 0.9);
    }
}
