//! Import: an export becomes a snapshot. Owns: the check that it is the tenant's. Must not know: how its bytes are checked.

use super::Snapshots;
use super::counts::SnapshotVerb;
use super::header::namespace_of;
use super::summary::{SnapshotSummary, summary_of};
use turnkv_archive::Export;
use turnkv_proto::Error;

/// An export that was taken in.
pub(crate) struct ImportedSnapshot {
    /// The new snapshot.
    pub(crate) summary: SnapshotSummary,
    /// Bytes that were written for it.
    pub(crate) stored_bytes: u64,
}

impl Snapshots {
    /// Takes in a directory within the folder of exports, for the tenant whose namespace it is of.
    pub(crate) async fn import(&self, tenant: &str, directory: String) -> Result<ImportedSnapshot, Error> {
        let operation = self.begin(SnapshotVerb::Import)?;
        let place = self.place_of_export(&operation, directory).await?;
        let opened = operation.blocking(move || Export::open(&place.root, &place.below)).await?;
        let export = opened.map_err(|fault| operation.refuse_given(fault))?;
        // Before anything of it is in the tenant's archive.
        namespace_of(&export.manifest().header, tenant)?;
        let archive = operation.archive(tenant).await?;
        let imported = archive.import(export).await;
        let (manifest, counts) = imported.map_err(|fault| operation.refuse_given(fault))?;
        self.counts.stored_bytes.increment(counts.stored_bytes);
        operation.done();
        Ok(ImportedSnapshot { summary: summary_of(&manifest), stored_bytes: counts.stored_bytes })
    }
}
