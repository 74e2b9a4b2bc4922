//! Collect: what no snapshot needs goes. Owns: nothing else. Must not know: why that is safe (the archive does).

use super::Snapshots;
use super::counts::SnapshotVerb;
use std::time::Duration;
use turnkv_archive::{CollectLimits, CollectReport};
use turnkv_proto::Error;

/// What a collection did.
pub(crate) struct Collected {
    /// In the archive's words.
    pub(crate) report: CollectReport,
    /// The archive's grace time.
    pub(crate) grace: Duration,
}

impl Snapshots {
    /// Removes what no snapshot of a tenant needs, and snapshots beyond the limits.
    pub(crate) async fn collect(&self, tenant: &str, limits: CollectLimits) -> Result<Collected, Error> {
        let operation = self.begin(SnapshotVerb::Collect)?;
        let archive = operation.archive(tenant).await?;
        let report = archive.collect(limits).await.map_err(|fault| operation.refuse(fault))?;
        operation.done();
        Ok(Collected { report, grace: archive.grace() })
    }
}
