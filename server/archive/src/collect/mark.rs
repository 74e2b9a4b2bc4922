//! Which snapshots stay, and the blobs that these need. Owns: [`Marks`], and deleting snapshots beyond the limits. Must not know: packs.

use super::{CollectLimits, Collection};
use crate::error::Error;
use crate::id::{Digest, ObjectId, SessionName};
use crate::limits::{MARKS_MAX, OBJECTS_AT_ONCE};
use crate::manifest::Manifest;
use crate::store::{Key, Kind, Listed};
use futures_util::StreamExt;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

/// Blobs that are needed. Half a digest names one: two blobs that agree in it would be a collision of 128 bits, and are not found by
/// chance.
#[derive(Default)]
pub(super) struct Marks(HashMap<u128, bool>);

impl Marks {
    fn key(digest: &Digest) -> u128 {
        let mut half = [0; 16];
        half.copy_from_slice(&digest.0[..16]);
        u128::from_le_bytes(half)
    }

    /// A blob is needed. Whether that is new.
    fn add(&mut self, digest: &Digest) -> Result<bool, Error> {
        let count = self.0.len() as u64;
        match self.0.entry(Marks::key(digest)) {
            Entry::Occupied(_) => Ok(false),
            Entry::Vacant(place) => {
                Error::bound("blobs that a collection marks", count + 1, MARKS_MAX as u64)?;
                place.insert(false);
                Ok(true)
            }
        }
    }

    /// Whether a blob is needed, and nothing that stays is known to have it.
    pub(super) fn wants(&self, digest: &Digest) -> bool {
        self.0.get(&Marks::key(digest)) == Some(&false)
    }

    /// Something that stays has this blob.
    pub(super) fn hold(&mut self, digest: &Digest) {
        if let Some(held) = self.0.get_mut(&Marks::key(digest)) {
            *held = true;
        }
    }

    /// Blobs that nothing is known to have.
    pub(super) fn unheld(&self) -> u64 {
        self.0.values().filter(|held| !**held).count() as u64
    }
}

impl Collection<'_> {
    /// Reads all manifests, newest first, and marks what those need that stay. Then deletes the others.
    pub(super) async fn mark(&mut self, limits: CollectLimits) -> Result<Marks, Error> {
        let mut listed = self.archive.store.list_strictly(Kind::Manifest).await?;
        self.sweep_bookmarks(&listed).await?;
        let superseded = self.superseded(&listed);
        // What stays whatever the limits say comes last here, and so is counted first.
        listed.sort_unstable_by_key(|one| (self.outlasts(one, limits), one.stored_unix_ms, one.id));
        let sizes = match limits.stored_bytes_max {
            Some(_) => self.stored_bytes().await?,
            None => HashMap::new(),
        };
        let archive = self.archive.clone();
        let reads = futures_util::stream::iter(listed.into_iter().rev()).map(move |one| {
            let archive = archive.clone();
            async move { (one, archive.manifest(one.id).await) }
        });
        let mut reads = std::pin::pin!(reads.buffered(OBJECTS_AT_ONCE));
        let (mut marks, mut bytes, mut surplus, mut is_full) = (Marks::default(), 0, Vec::new(), false);
        while let Some((one, read)) = reads.next().await {
            let manifest = match read {
                Ok(manifest) => manifest,
                // Deleted since it was listed.
                Err(Error::NotFound { .. }) => continue,
                Err(fault) => return Err(fault),
            };
            let new_bytes = new_bytes(&manifest, &marks, &sizes);
            if superseded.contains(&one.id) {
                surplus.push(one.id);
                continue;
            }
            if !self.outlasts(&one, limits) {
                is_full |= limits.stored_bytes_max.is_some_and(|max| bytes + new_bytes > max);
                if is_full || self.is_too_old(&one, limits) {
                    surplus.push(one.id);
                    continue;
                }
            }
            bytes += new_bytes;
            self.report.snapshots += 1;
            for digest in manifest.digests() {
                marks.add(&digest)?;
            }
        }
        for id in surplus.into_iter().rev() {
            self.archive.store.delete(Key::Of(Kind::Manifest, id)).await?;
            self.report.snapshots_deleted += 1;
            if let Some((name, _)) = self.bookmarks.get(&id) {
                self.archive.store.delete(Key::Bookmark(*name, id)).await?;
            }
        }
        Ok(marks)
    }

    /// Removes bookmarks of captures that never ended, or whose snapshots were deleted.
    async fn sweep_bookmarks(&mut self, manifests: &[Listed]) -> Result<(), Error> {
        let there: HashSet<ObjectId> = manifests.iter().map(|one| one.id).collect();
        let is_idle = |id: &ObjectId, one: &Listed| !there.contains(id) && self.is_old(one.stored_unix_ms);
        let idle = self.bookmarks.iter().filter(|(id, (_, one))| is_idle(id, one));
        for (id, name) in idle.map(|(id, (name, _))| (*id, *name)).collect::<Vec<_>>() {
            self.archive.store.delete(Key::Bookmark(name, id)).await?;
            self.bookmarks.remove(&id);
            self.report.litter_deleted += 1;
        }
        Ok(())
    }

    /// Snapshots of archived sessions that have a newer one.
    fn superseded(&self, manifests: &[Listed]) -> HashSet<ObjectId> {
        let mut newest: HashMap<SessionName, ObjectId> = HashMap::new();
        let kept = |one: &Listed| self.bookmarks.get(&one.id).map(|(name, _)| (*name, one.id));
        let kept: Vec<(SessionName, ObjectId)> = manifests.iter().filter_map(kept).collect();
        for (name, id) in &kept {
            let newest = newest.entry(*name).or_insert(*id);
            *newest = (*newest).max(*id);
        }
        kept.into_iter().filter(|(name, id)| newest[name] != *id).map(|(_, id)| id).collect()
    }

    /// Whether a snapshot stays whatever its age, and however much there is.
    fn outlasts(&self, one: &Listed, limits: CollectLimits) -> bool {
        limits.sessions_only && !self.bookmarks.contains_key(&one.id)
    }

    fn is_too_old(&self, one: &Listed, limits: CollectLimits) -> bool {
        let age = u64::try_from(self.began_unix_ms - one.stored_unix_ms).unwrap_or(0);
        limits.snapshot_age_max.is_some_and(|max| u128::from(age) > max.as_millis())
    }

    /// How many bytes each blob has, as stored.
    async fn stored_bytes(&self) -> Result<HashMap<u128, u32>, Error> {
        let mut sizes = HashMap::new();
        for pack in self.archive.store.list(Kind::Pack).await? {
            match self.archive.read_index(pack.id).await {
                Ok(index) => {
                    sizes.extend(
                        index.entries.iter().map(|entry| (Marks::key(&entry.digest), entry.stored_bytes)),
                    );
                    Error::bound("blobs that a collection weighs", sizes.len() as u64, MARKS_MAX as u64)?;
                }
                Err(Error::NotFound { .. } | Error::Damaged { .. }) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(sizes)
    }
}

/// Bytes of the blobs that only this manifest needs, of those that were marked.
fn new_bytes(manifest: &Manifest, marks: &Marks, sizes: &HashMap<u128, u32>) -> u64 {
    if sizes.is_empty() {
        return 0;
    }
    let mut keys: Vec<u128> = manifest.digests().map(|digest| Marks::key(&digest)).collect();
    keys.sort_unstable();
    keys.dedup();
    let new = keys.iter().filter(|key| !marks.0.contains_key(key));
    new.map(|key| sizes.get(key).map_or(0, |bytes| u64::from(*bytes))).sum()
}
