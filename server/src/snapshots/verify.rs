//! Verify: every byte of a snapshot, or of all, is read. Owns: nothing else. Must not know: what to do about faults.

use super::Snapshots;
use super::counts::SnapshotVerb;
use super::progress::Tell;
use turnkv_archive::{ObjectId, VerifyProgress, VerifyReport};
use turnkv_proto::Error;

/// What is to be read.
pub(crate) struct VerifySnapshots {
    /// Whose.
    pub(crate) tenant: String,
    /// Which one; none: all.
    pub(crate) snapshot: Option<ObjectId>,
}

impl Snapshots {
    /// Reads all bytes, and says what is wrong with them.
    pub(crate) async fn verify(
        &self,
        ask: &VerifySnapshots,
        tell: Tell<'_, VerifyProgress>,
    ) -> Result<VerifyReport, Error> {
        let operation = self.begin(SnapshotVerb::Verify)?;
        let archive = operation.archive(&ask.tenant).await?;
        let report = archive.verify(ask.snapshot, tell).await.map_err(|fault| operation.refuse(fault))?;
        report.faults.iter().for_each(|fault| self.counts.failed(&fault.error));
        operation.done();
        Ok(report)
    }
}
