//! Reading blobs and pages, verified. Owns: looking a blob up again when its pack was rewritten, and reading again what came damaged.
//! Must not know: who wants them.

use crate::archive::Archive;
use crate::error::Error;
use crate::id::{Digest, ObjectId};
use crate::index::Found;
use crate::limits::{LOOKUPS_MAX, MANIFEST_BYTES_MAX, READS_MAX};
use crate::manifest::{Header, Manifest, ManifestPage};
use crate::store::{Key, Kind};
use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Where the blobs of one manifest are.
#[derive(Clone)]
pub(crate) struct Places {
    archive: Archive,
    found: Arc<RwLock<HashMap<Digest, Found>>>,
    /// Packs that the manifest names.
    packs: Arc<Vec<ObjectId>>,
}

/// Reads what can be verified, again if it is damaged: an answer may be, and the object not.
pub(crate) async fn read_again<T, F: Future<Output = Result<T, Error>>>(
    read: impl Fn() -> F,
) -> Result<T, Error> {
    for _ in 1..READS_MAX {
        match read().await {
            Err(fault @ Error::Damaged { .. }) => {
                tracing::warn!(%fault, "came from the store; it is read again");
            }
            other => return other,
        }
    }
    read().await
}

impl Archive {
    /// Reads a manifest and checks it.
    pub(crate) async fn manifest(&self, id: ObjectId) -> Result<Manifest, Error> {
        read_again(|| self.read_manifest(id)).await
    }

    async fn read_manifest(&self, id: ObjectId) -> Result<Manifest, Error> {
        let key = Key::Of(Kind::Manifest, id);
        let text = self.store.get(key, MANIFEST_BYTES_MAX).await?;
        // A large one takes long to read: not on an async thread.
        let parsed = self.workers.run(move |_| Manifest::parse(&text)).await?;
        let manifest = parsed.map_err(|fault| Error::damaged(key.to_string(), fault.to_string()))?;
        if manifest.id != id {
            return Err(Error::damaged(
                key.to_string(),
                format!("turnkv.id: it is manifest {}", manifest.id),
            ));
        }
        Ok(manifest)
    }
}

impl Places {
    /// Looks up all blobs of a manifest. One that is not found is an error only when it is read.
    pub(crate) async fn of(archive: &Archive, manifest: &Manifest) -> Result<Places, Error> {
        let found = archive.locate(&manifest.digests().collect()).await?;
        let (found, packs) = (Arc::new(RwLock::new(found)), Arc::new(manifest.packs.clone()));
        Ok(Places { archive: archive.clone(), found, packs })
    }

    /// The packs that have the blobs that were found.
    pub(crate) fn packs(&self) -> HashSet<ObjectId> {
        self.found.read().values().map(|found| found.pack).collect()
    }

    /// A blob's bytes, verified. The error names the pack and what differed, and the blob where no pack has it.
    pub(crate) async fn read(&self, digest: Digest) -> Result<Bytes, Error> {
        for _ in 0..LOOKUPS_MAX {
            let found = self.found.read().get(&digest).copied();
            let Some(found) = found else { break };
            match read_again(|| self.read_at(found)).await {
                // A collection moved its blobs to another pack.
                Err(Error::NotFound { .. }) => {
                    self.archive.index.lock().remove(&found.pack);
                    let moved = self.archive.locate(&HashSet::from([digest])).await?;
                    match moved.get(&digest) {
                        Some(found) => drop(self.found.write().insert(digest, *found)),
                        None => drop(self.found.write().remove(&digest)),
                    }
                }
                read => return read,
            }
        }
        Err(Error::NotFound { object: format!("blob {digest}") })
    }

    async fn read_at(&self, found: Found) -> Result<Bytes, Error> {
        let key = Key::Of(Kind::Pack, found.pack);
        let range = found.entry.offset..found.entry.offset + u64::from(found.entry.stored_bytes);
        let bytes = self.archive.store.get_range(key, range).await?;
        let blob = found.entry.blob(bytes);
        let decoded = self.archive.workers.run(move |coder| coder.decode(&blob)).await?;
        decoded.map_err(|fault| Error::damaged(key.to_string(), fault))
    }

    /// A blob that is in no pack that can be read: the pack that may have had it, if there is one.
    pub(crate) fn missing(&self, blob: String, place: &str) -> Error {
        match self.archive.index.lock().damaged_of(&self.packs) {
            Some(pack) => Error::damaged(
                Key::Of(Kind::Pack, pack).to_string(),
                format!("{place}: its index can not be read, and no other pack has {blob}"),
            ),
            None => Error::damaged(blob, format!("{place}: no pack has it")),
        }
    }

    /// All shards of a page, verified. The error names the page and the part of it.
    pub(crate) async fn page(
        &self,
        header: &Header,
        ix: usize,
        page: &ManifestPage,
    ) -> Result<Vec<Bytes>, Error> {
        let wanted = header.split.parts(header.shard_bytes);
        let mut shards = Vec::with_capacity(page.shards.len());
        for (shard, digests) in page.shards.iter().enumerate() {
            let mut parts = Vec::with_capacity(wanted.len());
            for ((part, digest), (_, bytes)) in digests.each().zip(&wanted) {
                let place = || format!("page {ix}, shard {shard}, {}", part.name());
                let read = match self.read(digest).await {
                    Err(Error::Damaged { object, fault }) => {
                        Err(Error::damaged(object, format!("{}: {fault}", place())))
                    }
                    Err(Error::NotFound { object }) => Err(self.missing(object, &place())),
                    read => read,
                }?;
                if read.len() != *bytes as usize {
                    let fault = format!("{}: it has {} bytes, not {bytes}", place(), read.len());
                    return Err(Error::damaged(format!("blob {digest}"), fault));
                }
                parts.push(read);
            }
            shards.push(header.split.join(header.shard_bytes, parts));
        }
        Ok(shards)
    }
}
