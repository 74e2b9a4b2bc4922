//! Export: a snapshot becomes a directory of this host that ordinary tools can check. Owns: where it may be. Must not know: its form.

use super::Snapshots;
use super::counts::SnapshotVerb;
use super::exports::{ExportPlace, within};
use super::room::Operation;
use std::path::PathBuf;
use turnkv_archive::limits::EXPORT_LEVEL_DEFAULT;
use turnkv_archive::{ExportCounts, ObjectId};
use turnkv_proto::Error;

/// What is to be exported.
pub(crate) struct ExportSnapshot {
    /// Whose.
    pub(crate) tenant: String,
    /// Which snapshot.
    pub(crate) snapshot: ObjectId,
    /// Into this directory; empty: one of its name.
    pub(crate) directory: String,
    /// Level of zstd; none: that of the published format.
    pub(crate) level: Option<i32>,
}

/// An export that was written.
pub(crate) struct Exported {
    /// Where it is.
    pub(crate) directory: PathBuf,
    /// What it has.
    pub(crate) counts: ExportCounts,
}

impl Snapshots {
    /// Writes a snapshot into a directory within the folder of exports.
    pub(crate) async fn export(&self, ask: ExportSnapshot) -> Result<Exported, Error> {
        let operation = self.begin(SnapshotVerb::Export)?;
        let named = if ask.directory.is_empty() { ask.snapshot.to_string() } else { ask.directory };
        let place = self.place_of_export(&operation, named).await?;
        let directory = place.path();
        let archive = operation.archive(&ask.tenant).await?;
        let level = ask.level.unwrap_or(EXPORT_LEVEL_DEFAULT);
        let counts = archive.export(ask.snapshot, &directory, level).await;
        let counts = counts.map_err(|fault| operation.refuse(fault))?;
        operation.done();
        Ok(Exported { directory, counts })
    }

    /// A place in the folder of exports. It looks at files: not on an async thread.
    pub(super) async fn place_of_export(
        &self,
        operation: &Operation<'_>,
        named: String,
    ) -> Result<ExportPlace, Error> {
        let exports = self.config().exports.clone();
        operation.blocking(move || within(exports.as_deref(), &named)).await?
    }
}
