//! Filling packs and writing them. Owns: how many are on their way at once. Must not know: whose blobs they are.

use crate::archive::Archive;
use crate::blob::StoredBlob;
use crate::error::Error;
use crate::id::ObjectId;
use crate::limits::PACKS_IN_FLIGHT_MAX;
use crate::pack::build::PackBuilder;
use crate::store::{Key, Kind};
use tokio::task::JoinSet;

/// Writes packs as they get full.
pub(crate) struct Filler {
    archive: Archive,
    pack: PackBuilder,
    writes: JoinSet<Result<ObjectId, Error>>,
    written: Vec<ObjectId>,
}

impl Filler {
    /// Nothing yet.
    pub(crate) fn new(archive: &Archive) -> Filler {
        let archive = archive.clone();
        Filler { archive, pack: PackBuilder::new(), writes: JoinSet::new(), written: Vec::new() }
    }

    /// Bytes that wait in the pack that is being filled.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        self.pack.bytes()
    }

    /// Adds a blob.
    pub(crate) async fn add(&mut self, blob: StoredBlob) -> Result<(), Error> {
        if !self.pack.fits(&blob, self.archive.settings.pack_bytes) {
            self.write().await?;
        }
        self.pack.add(blob);
        Ok(())
    }

    /// Writes what waits; returns when all packs are in the store, with all of them.
    pub(crate) async fn finish(mut self) -> Result<Vec<ObjectId>, Error> {
        if !self.pack.is_empty() {
            self.write().await?;
        }
        while !self.writes.is_empty() {
            self.join_one().await?;
        }
        Ok(self.written)
    }

    async fn write(&mut self) -> Result<(), Error> {
        while self.writes.len() >= PACKS_IN_FLIGHT_MAX {
            self.join_one().await?;
        }
        let (pieces, index) = std::mem::replace(&mut self.pack, PackBuilder::new()).finish();
        let archive = self.archive.clone();
        self.writes.spawn(async move {
            let key = Key::Of(Kind::Pack, index.id);
            archive.store.put_new(key, &pieces).await?;
            // A store that says that it wrote what it did not is caught before a manifest needs the pack.
            let found = archive.store.head(key).await?.bytes;
            if found != index.object_bytes {
                let fault = format!("{} bytes were written, the store has {found}", index.object_bytes);
                return Err(Error::damaged(key.to_string(), fault));
            }
            let id = index.id;
            archive.index.lock().add(index, archive.settings.index_blobs_max);
            Ok(id)
        });
        Ok(())
    }

    async fn join_one(&mut self) -> Result<(), Error> {
        if let Some(joined) = self.writes.join_next().await {
            let written =
                joined.map_err(|fault| Error::Short(format!("a pack's writer ended early: {fault}")))?;
            self.written.push(written?);
        }
        Ok(())
    }
}
