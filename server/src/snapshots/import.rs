//! Import: an export becomes a snapshot. Owns: the check that it is the tenant's. Must not know: how its bytes are checked.

use super::Snapshots;
use super::counts::SnapshotVerb;
use super::header::namespace_of;
use super::summary::{SnapshotSummary, summary_of};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use turnkv_archive::limits::MANIFEST_BYTES_MAX;
use turnkv_archive::{Error as Fault, Manifest};
use turnkv_proto::{Error, ErrorKind};

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
        let directory = self.place_of_export(directory).await?;
        let place = directory.clone();
        let read = tokio::task::spawn_blocking(move || manifest_at(&place)).await;
        let read = read.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        let manifest = read.map_err(|fault| operation.refuse(fault))?;
        // Before anything of it is in the tenant's archive.
        namespace_of(&manifest.header, tenant)?;
        let archive = operation.archive(tenant).await?;
        let imported = archive.import(&directory).await;
        let (manifest, counts) = imported.map_err(|fault| operation.refuse(fault))?;
        self.counts.stored_bytes.increment(counts.stored_bytes);
        operation.done();
        Ok(ImportedSnapshot { summary: summary_of(&manifest), stored_bytes: counts.stored_bytes })
    }
}

/// The manifest of an export. Blocking.
fn manifest_at(directory: &Path) -> Result<Manifest, Fault> {
    let path = directory.join("manifest.json");
    let object = || path.display().to_string();
    let mut text = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut text));
    match read {
        Ok(_) => Manifest::parse(&text)
            .map_err(|fault| Fault::Damaged { object: object(), fault: fault.to_string() }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Fault::NotFound { object: object() })
        }
        Err(error) => Err(Fault::Unreachable { object: object(), fault: error.to_string() }),
    }
}
