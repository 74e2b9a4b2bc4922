//! The tier's life. Owns: what its parts share, and that they go on beside one another. Must not know: what each does.

use super::counts::TierCounts;
use super::known::KnownBookmarks;
use super::pace::{Pace, Pause};
use crate::config::SessionsConfig;
use crate::engine::Engine;
use crate::limits::ARCHIVE_LOOK_MS;
use crate::snapshots::Snapshots;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::sleep;
use turnkv_archive::Error as Fault;

/// The archive tier of a server.
pub(crate) struct Tier {
    pub(super) snapshots: Arc<Snapshots>,
    pub(super) counts: TierCounts,
    pub(super) pace: Pace,
    /// How long turns are not told of the archive after it did not answer.
    pub(super) distrust: Pause,
    /// How long archiving waits then.
    pub(super) postponing: Pause,
    pub(super) known: tokio::sync::Mutex<KnownBookmarks>,
    /// Sessions that were found by rule and wait.
    pub(super) found_waiting: AtomicUsize,
}

impl Tier {
    /// Of these snapshots; none where no sessions are archived by themselves.
    pub(crate) fn new(snapshots: &Arc<Snapshots>) -> Option<Arc<Tier>> {
        let config = &snapshots.config().sessions;
        snapshots.engine.archived.is_on().then(|| {
            Arc::new(Tier {
                counts: TierCounts::new(config.queue_max),
                pace: Pace::new(config.bytes_per_second),
                distrust: Pause::default(),
                postponing: Pause::default(),
                known: tokio::sync::Mutex::default(),
                found_waiting: AtomicUsize::new(0),
                snapshots: Arc::clone(snapshots),
            })
        })
    }

    /// Goes on for as long as it is polled.
    pub(crate) async fn run(self: Arc<Self>) -> Result<(), Infallible> {
        tokio::join!(
            self.keep_sessions(),
            self.fetch_sessions(),
            self.refresh_sessions(),
            self.collect_sessions(),
            self.tell_gauges()
        );
        Ok(())
    }

    /// Brings gauges up to date, whatever else is under way.
    async fn tell_gauges(&self) {
        loop {
            self.counts.look(self.engine(), self.found_waiting.load(Ordering::Relaxed));
            sleep(Duration::from_millis(ARCHIVE_LOOK_MS)).await;
        }
    }

    pub(super) fn engine(&self) -> &Arc<Engine> {
        &self.snapshots.engine
    }

    pub(super) fn config(&self) -> &SessionsConfig {
        &self.snapshots.config().sessions
    }

    /// The store did not do what it should: turns are not told of it for a while. How long.
    pub(super) fn store_failed(&self, fault: &Fault) -> Duration {
        self.snapshots.counts.failed(fault);
        self.store_is_slow()
    }

    /// The store takes too long.
    pub(super) fn store_is_slow(&self) -> Duration {
        let pause = self.distrust.next();
        self.engine().archived.distrust(self.engine().moment_after(pause));
        pause
    }
}

/// Whether the store, and not what was asked of it, is why it was not done.
pub(super) fn is_of_store(fault: &Fault) -> bool {
    matches!(
        fault,
        Fault::Unreachable { .. } | Fault::Short(_) | Fault::CredentialsRefused { .. } | Fault::Full { .. }
    )
}
