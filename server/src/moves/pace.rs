//! How many bytes a second leave. Owns: what was let go of and is not paid for in time yet. Must not know: sessions, clocks.

use crate::limits::MOVE_LOOK;
use std::time::Duration;

/// Whoever lets bytes go waits for as long as they take at the pace, before the next ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeavingPace {
    owed_bytes: f64,
}

impl LeavingPace {
    /// So many bytes leave.
    pub(super) fn leave(&mut self, bytes: u64) {
        self.owed_bytes += bytes as f64;
    }

    /// Time went by, at this pace. Returns how long to wait before it is asked again; none: the next ones may leave.
    pub(super) fn wait(&mut self, passed: Duration, bytes_per_s: u64) -> Option<Duration> {
        let bytes_per_s = bytes_per_s.max(1) as f64;
        self.owed_bytes = (self.owed_bytes - passed.as_secs_f64() * bytes_per_s).max(0.0);
        // The pace, or the whole plan, may be another one soon: nobody sleeps for longer than a look.
        let seconds = (self.owed_bytes / bytes_per_s).min(MOVE_LOOK.as_secs_f64());
        (self.owed_bytes > 0.0).then(|| Duration::from_secs_f64(seconds).max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_left_is_waited_for_at_the_pace_that_is_asked_for_now() {
        let mut pace = LeavingPace::default();
        assert_eq!(pace.wait(Duration::ZERO, 1000), None);
        pace.leave(300);
        assert_eq!(pace.wait(Duration::ZERO, 1000), Some(Duration::from_millis(300)));
        assert_eq!(pace.wait(Duration::from_millis(200), 1000), Some(Duration::from_millis(100)));
        assert_eq!(pace.wait(Duration::from_millis(200), 1000), None);
        pace.leave(100);
        assert_eq!(
            pace.wait(Duration::ZERO, 1000),
            Some(Duration::from_millis(100)),
            "time that is over pays for nothing"
        );
        pace.leave(u64::MAX);
        assert_eq!(pace.wait(Duration::ZERO, 0), Some(MOVE_LOOK), "nobody sleeps for an age");
        assert_eq!(pace.wait(Duration::from_secs(1), u64::MAX), None);
    }
}
