//! The moment by which a call answers. Owns: its arithmetic. Must not know: what is waited for.

use crate::error::{Error, Result};
use std::future::Future;
use std::time::{Duration, Instant};

/// The moment by which a call answers, whatever happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(wait: Duration) -> Deadline {
        let now = Instant::now();
        // A wait beyond the clock's range is as good as a day.
        Deadline(now.checked_add(wait).unwrap_or(now + Duration::from_secs(86_400)))
    }

    pub(crate) fn at(self) -> Instant {
        self.0
    }

    pub(crate) fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    pub(crate) fn check(self) -> Result<()> {
        if self.left().is_zero() { Err(Error::deadline()) } else { Ok(()) }
    }

    /// The earlier of this and `wait` from now.
    pub(crate) fn within(self, wait: Duration) -> Deadline {
        self.min(Deadline::after(wait))
    }

    /// How long the server may wait so that its answer still arrives in time: three quarters of what is left.
    pub(crate) fn server_wait_ms(self) -> u32 {
        u32::try_from(self.left().as_millis() * 3 / 4).unwrap_or(u32::MAX)
    }

    /// Waits for `future` no longer than this.
    pub(crate) async fn bound<F: Future>(self, future: F) -> Result<F::Output> {
        tokio::time::timeout_at(self.0.into(), future).await.map_err(|_| Error::deadline())
    }
}

#[cfg(test)]
mod tests;
