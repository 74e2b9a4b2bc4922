//! List, describe, delete. Owns: what is told of snapshots. Must not know: blobs.

use crate::archive::Archive;
use crate::error::Error;
use crate::id::ObjectId;
use crate::manifest::Manifest;
use crate::store::{Key, Kind};

/// A snapshot in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its name.
    pub id: ObjectId,
    /// Bytes of its manifest.
    pub manifest_bytes: u64,
    /// When it was written, in milliseconds since 1970 by the store's clock.
    pub stored_unix_ms: i64,
}

impl Archive {
    /// All snapshots, oldest first.
    pub async fn list(&self) -> Result<Vec<Snapshot>, Error> {
        let listed = self.store.list(Kind::Manifest).await?;
        let snapshot = |one: &crate::store::Listed| Snapshot {
            id: one.id,
            manifest_bytes: one.bytes,
            stored_unix_ms: one.stored_unix_ms,
        };
        Ok(listed.iter().map(snapshot).collect())
    }

    /// What a snapshot has. Its blobs are not looked at.
    pub async fn describe(&self, id: ObjectId) -> Result<Manifest, Error> {
        self.manifest(id).await
    }

    /// Removes a snapshot, also one whose manifest is damaged. Its blobs go with later collections, if nothing else needs them.
    pub async fn delete(&self, id: ObjectId) -> Result<(), Error> {
        let key = Key::Of(Kind::Manifest, id);
        self.store.head(key).await?;
        self.store.delete(key).await
    }
}
