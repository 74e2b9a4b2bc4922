//! How long something may take. Owns: the part of the grace time that captures and collections have. Must not know: what they do.

use crate::error::Error;
use crate::limits::GRACE_QUARTERS;
use std::time::Duration;
use tokio::time::Instant;

/// A time that began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Term {
    began: Instant,
    max: Duration,
    what: &'static str,
}

impl Term {
    /// Begins now, and lasts three quarters of a grace time.
    pub(crate) fn begin(what: &'static str, grace: Duration) -> Term {
        Term { began: Instant::now(), max: grace * GRACE_QUARTERS / 4, what }
    }

    /// How much is left; an error if nothing is.
    pub(crate) fn left(&self) -> Result<Duration, Error> {
        let took = self.began.elapsed();
        let left = self.max.checked_sub(took).filter(|left| !left.is_zero());
        left.ok_or(Error::TooLate { what: self.what, took, max: self.max })
    }

    /// How long it has lasted.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}
