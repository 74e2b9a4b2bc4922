//! Rates and pauses. Owns: when the next bytes may go, and how pauses grow. Must not know: what waits.

use crate::limits::{ARCHIVE_PAUSE_MS_MAX, ARCHIVE_PAUSE_MS_MIN};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// So many bytes a second.
pub(super) struct Pace {
    bytes_per_second: u64,
    /// When what was let through is over.
    free_at: Mutex<Instant>,
}

impl Pace {
    /// So many bytes a second.
    pub(super) fn new(bytes_per_second: u64) -> Pace {
        Pace { bytes_per_second: bytes_per_second.max(1), free_at: Mutex::new(Instant::now()) }
    }

    /// Waits until what went before has had its time; then so many bytes may go.
    pub(super) async fn spend(&self, bytes: u64) {
        let begins = {
            let mut free_at = self.free_at.lock();
            let begins = (*free_at).max(Instant::now());
            *free_at = begins + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
            begins
        };
        sleep_until(begins).await;
    }
}

/// A pause that grows each time, until something works again.
#[derive(Default)]
pub(super) struct Pause(Mutex<Option<Duration>>);

impl Pause {
    /// How long to wait this time.
    pub(super) fn next(&self) -> Duration {
        let mut last = self.0.lock();
        let least = Duration::from_millis(ARCHIVE_PAUSE_MS_MIN);
        let next = last.map_or(least, |last| (last * 2).min(Duration::from_millis(ARCHIVE_PAUSE_MS_MAX)));
        *last = Some(next);
        next
    }

    /// Something worked.
    pub(super) fn reset(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bytes_go_at_their_rate_and_pauses_grow_to_a_bound() {
        let (pace, began) = (Pace::new(10_000), Instant::now());
        for _ in 0..5 {
            pace.spend(500).await;
        }
        assert!(began.elapsed() >= Duration::from_millis(200), "{:?}", began.elapsed());
        let pause = Pause::default();
        let pauses: Vec<u64> = (0..8).map(|_| pause.next().as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        pause.reset();
        assert_eq!(pause.next().as_secs(), 1);
    }
}
