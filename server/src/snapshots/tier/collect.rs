//! Collections by themselves: archived sessions that are too old, or too much, go. Owns: when. Must not know: how.

use super::run::Tier;
use crate::limits::ARCHIVE_FIRST_COLLECT;
use crate::snapshots::counts::SnapshotVerb;
use std::future::pending;
use tokio::time::{Instant, sleep};
use turnkv_archive::CollectLimits;

impl Tier {
    /// Collects the archives of all tenants, again and again.
    pub(super) async fn collect_sessions(&self) {
        let Some(every) = self.config().collect else { return pending().await };
        let mut pause = every.min(ARCHIVE_FIRST_COLLECT);
        loop {
            sleep(pause).await;
            pause = every;
            for tenant in self.engine().open_tenants() {
                self.collect_one(&tenant).await;
            }
        }
    }

    async fn collect_one(&self, tenant: &str) {
        let (limits, began) = (self.limits(), Instant::now());
        let collected = async { self.snapshots.archive_of(tenant).await?.collect(limits).await }.await;
        match collected {
            Ok(report) => {
                self.snapshots.counts.took(SnapshotVerb::Collect, began.elapsed());
                tracing::info!(
                    deleted = report.snapshots_deleted,
                    stay = report.snapshots,
                    bytes_deleted = report.bytes_deleted,
                    "a collection is done"
                );
            }
            Err(fault) => {
                self.snapshots.counts.failed(&fault);
                tracing::warn!(%fault, "a collection was not done: the next one goes on");
            }
        }
    }

    fn limits(&self) -> CollectLimits {
        let config = self.config();
        CollectLimits {
            snapshot_age_max: config.age_max,
            stored_bytes_max: config.stored_max,
            sessions_only: true,
        }
    }
}
