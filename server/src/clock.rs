//! What time it is, and waiting until then. Owns: where the engine's time comes from. Must not know: what waits, or why.
//!
//! - `time`: the clock that a simulator moves

#[cfg(feature = "simulation")]
pub(crate) mod time;

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The engine's time: since the server started, monotonic. Clones tell the same time.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The system's.
    System {
        /// Zero.
        started: Instant,
    },
    /// One that the simulator moves.
    #[cfg(feature = "simulation")]
    Simulated(std::sync::Arc<time::Time>),
}

impl Clock {
    /// The system's clock, from now on.
    pub(crate) fn system() -> Clock {
        Clock::System { started: Instant::now() }
    }

    /// Time since the server started.
    pub(crate) fn now(&self) -> Duration {
        match self {
            Clock::System { started } => started.elapsed(),
            #[cfg(feature = "simulation")]
            Clock::Simulated(time) => time.now(),
        }
    }

    /// Milliseconds since 1970, for what is written down: it outlives the server.
    pub(crate) fn unix_ms(&self) -> u64 {
        let since = match self {
            Clock::System { .. } => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
            #[cfg(feature = "simulation")]
            Clock::Simulated(time) => time.now(),
        };
        since.as_millis() as u64
    }

    /// Waits for a future, at most until a moment: then it is dropped and there is no output.
    pub(crate) async fn until<F: Future>(&self, deadline: Duration, future: F) -> Option<F::Output> {
        match self {
            Clock::System { started } => {
                tokio::time::timeout_at((*started + deadline).into(), future).await.ok()
            }
            #[cfg(feature = "simulation")]
            Clock::Simulated(time) => time.until(deadline, future).await,
        }
    }
}
