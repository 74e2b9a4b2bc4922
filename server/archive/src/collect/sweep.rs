//! Packs that are condemned, rewritten, or go. Owns: what is decided about each pack. Must not know: manifests.

use super::Collection;
use super::mark::Marks;
use crate::error::Error;
use crate::fill::Filler;
use crate::id::ObjectId;
use crate::limits::{COLLECT_BATCH_PACKS, OBJECTS_AT_ONCE, REWRITE_SHARE, SMALL_SHARE};
use crate::moving::move_blobs;
use crate::pack::format::{Entry, PackIndex};
use crate::store::{Key, Kind, Listed};
use bytes::Bytes;
use futures_util::StreamExt;
use std::pin::pin;

/// A pack that is needed so little that what is needed is moved.
struct Sparse {
    pack: ObjectId,
    needed: Vec<Entry>,
}

/// What is done about a pack that is not condemned.
enum Fate {
    Stays,
    Useless,
    Sparse,
    Small,
}

/// By what is needed of it, what it has, and what a full one has, in bytes.
fn fate(needed_bytes: u64, stored_bytes: u64, full_bytes: u64) -> Fate {
    if needed_bytes == 0 {
        Fate::Useless
    } else if needed_bytes * REWRITE_SHARE < stored_bytes {
        Fate::Sparse
    } else if stored_bytes * SMALL_SHARE < full_bytes {
        Fate::Small
    } else {
        Fate::Stays
    }
}

impl Collection<'_> {
    /// Looks at all packs: first those that stay, then those that are condemned, last those that can not be read.
    pub(super) async fn sweep(&mut self, mut marks: Marks) -> Result<(), Error> {
        let listed = self.archive.store.list(Kind::Pack).await?;
        let (going, staying): (Vec<Listed>, Vec<Listed>) =
            listed.iter().copied().partition(|pack| self.condemned.contains_key(&pack.id));
        let mut unread = Vec::new();
        self.thin(&staying, &mut marks, &mut unread).await?;
        self.finish_condemned(&going, &mut marks, &mut unread).await?;
        if marks.unheld() > 0 {
            self.hold_what_came(&listed, &mut marks).await?;
        }
        self.report.blobs_missing = marks.unheld();
        for pack in unread {
            self.sweep_unread(pack).await?;
        }
        // What went before its condemnation did, when a collection died between the two.
        let gone =
            self.condemned.keys().filter(|id| listed.binary_search_by_key(*id, |pack| pack.id).is_err());
        for pack in gone.copied().collect::<Vec<_>>() {
            if self.is_old(self.condemned[&pack]) {
                self.archive.store.delete(Key::Of(Kind::Condemned, pack)).await?;
            }
        }
        Ok(())
    }

    /// Another collection may have moved blobs to packs that were not there when these were listed.
    async fn hold_what_came(&self, listed: &[Listed], marks: &mut Marks) -> Result<(), Error> {
        let now = self.archive.store.list(Kind::Pack).await?;
        for pack in now.iter().filter(|pack| listed.binary_search_by_key(&pack.id, |one| one.id).is_err()) {
            match self.archive.read_index(pack.id).await {
                Ok(index) => index.entries.iter().for_each(|entry| marks.hold(&entry.digest)),
                Err(Error::NotFound { .. } | Error::Damaged { .. }) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(())
    }

    /// Of packs that are not condemned: condemns those that nothing needs, rewrites those that little is needed of, or that are small.
    /// Of a blob that is in several, the newest pack is the one that has it.
    async fn thin(
        &mut self,
        packs: &[Listed],
        marks: &mut Marks,
        unread: &mut Vec<Listed>,
    ) -> Result<(), Error> {
        let (mut useless, mut sparse, mut small) = (Vec::new(), Vec::new(), Vec::new());
        let full_bytes = self.archive.settings.pack_bytes;
        let archive = self.archive.clone();
        let reads = futures_util::stream::iter(packs.iter().copied().rev()).map(move |pack| {
            let archive = archive.clone();
            async move { (pack, archive.read_index(pack.id).await) }
        });
        let mut reads = pin!(reads.buffered(OBJECTS_AT_ONCE));
        while let Some((pack, read)) = reads.next().await {
            let Some(index) = self.readable(pack, read, unread)? else { continue };
            let mut needed = index.entries.clone();
            needed.retain(|entry| marks.wants(&entry.digest));
            let needed_bytes = stored_bytes(&needed);
            self.report.bytes_needed += needed_bytes;
            needed.iter().for_each(|entry| marks.hold(&entry.digest));
            if self.is_young_or_intended(&pack) {
                continue;
            }
            match fate(needed_bytes, stored_bytes(&index.entries), full_bytes) {
                Fate::Stays => {}
                Fate::Useless => useless.push(pack.id),
                Fate::Sparse => sparse.push(Sparse { pack: pack.id, needed }),
                Fate::Small => small.push(Sparse { pack: pack.id, needed }),
            }
        }
        // Captures of a few pages leave small packs. What is merged fills packs, so that no blob is moved again and again.
        let small_bytes: u64 = small.iter().map(|one| stored_bytes(&one.needed)).sum();
        if small_bytes * 2 >= full_bytes {
            sparse.append(&mut small);
        }
        for pack in useless {
            self.condemn(pack).await?;
        }
        self.rewrite(&sparse).await
    }

    /// Moves what is needed, then condemns. What can not be moved stays where it is.
    async fn rewrite(&mut self, sparse: &[Sparse]) -> Result<(), Error> {
        for batch in sparse.chunks(COLLECT_BATCH_PACKS) {
            let mut filler = Filler::new(self.archive);
            let mut moved = Vec::new();
            for Sparse { pack, needed } in batch {
                self.term.left()?;
                match move_blobs(self.archive, &mut filler, *pack, needed).await {
                    Ok(bytes) => {
                        self.report.bytes_moved += bytes;
                        moved.push(*pack);
                    }
                    Err(Error::NotFound { .. }) => {}
                    Err(Error::Damaged { .. }) => self.report.packs_damaged.push(*pack),
                    Err(fault) => return Err(fault),
                }
            }
            filler.finish().await?;
            for pack in moved {
                self.condemn(pack).await?;
                self.report.packs_rewritten += 1;
            }
        }
        Ok(())
    }

    /// Deletes packs that were condemned a grace time ago, after what is needed of them and nothing that stays has was moved.
    async fn finish_condemned(
        &mut self,
        packs: &[Listed],
        marks: &mut Marks,
        unread: &mut Vec<Listed>,
    ) -> Result<(), Error> {
        let mut kept = Vec::new();
        for batch in packs.chunks(COLLECT_BATCH_PACKS) {
            let mut filler = Filler::new(self.archive);
            let mut ready = Vec::new();
            for pack in batch {
                let read = self.archive.read_index(pack.id).await;
                let Some(index) = self.readable(*pack, read, unread)? else { continue };
                let mut needed = index.entries;
                needed.retain(|entry| marks.wants(&entry.digest));
                let is_due = self.condemned.get(&pack.id).is_some_and(|since| self.is_old(*since));
                if !is_due || self.intended.contains(&pack.id) {
                    kept.append(&mut needed);
                    continue;
                }
                self.term.left()?;
                match move_blobs(self.archive, &mut filler, pack.id, &needed).await {
                    Ok(bytes) => {
                        self.report.bytes_moved += bytes;
                        self.report.bytes_needed += stored_bytes(&needed);
                        needed.iter().for_each(|entry| marks.hold(&entry.digest));
                        ready.push(*pack);
                    }
                    Err(Error::NotFound { .. }) => {}
                    Err(Error::Damaged { .. }) => {
                        self.report.packs_damaged.push(pack.id);
                        kept.append(&mut needed);
                    }
                    Err(fault) => return Err(fault),
                }
            }
            filler.finish().await?;
            for pack in ready {
                self.delete(pack).await?;
            }
        }
        // Only now: what packs have that do not stay for long is no reason not to move it from another.
        kept.iter().for_each(|entry| marks.hold(&entry.digest));
        Ok(())
    }

    /// A pack whose index is damaged: nothing can be found in it, but as long as a blob is missing it may have to be searched by hand.
    async fn sweep_unread(&mut self, pack: Listed) -> Result<(), Error> {
        if self.report.blobs_missing > 0 || self.is_young_or_intended(&pack) {
            self.report.packs_damaged.push(pack.id);
            return Ok(());
        }
        match self.condemned.get(&pack.id) {
            Some(since) if self.is_old(*since) => self.delete(pack).await,
            Some(_) => Ok(()),
            None => self.condemn(pack.id).await,
        }
    }

    /// The index; none if the pack went meanwhile or can not be read, which is remembered.
    fn readable(
        &self,
        pack: Listed,
        read: Result<PackIndex, Error>,
        unread: &mut Vec<Listed>,
    ) -> Result<Option<PackIndex>, Error> {
        match read {
            Ok(index) => Ok(Some(index)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(Error::Damaged { .. }) => {
                unread.push(pack);
                Ok(None)
            }
            Err(fault) => Err(fault),
        }
    }

    /// A capture under way may have written it, or reuses it. To condemn it would do no harm, but cost moving.
    fn is_young_or_intended(&self, pack: &Listed) -> bool {
        !self.is_old(pack.stored_unix_ms) || self.intended.contains(&pack.id)
    }

    async fn condemn(&mut self, pack: ObjectId) -> Result<(), Error> {
        match self.archive.store.put_new(Key::Of(Kind::Condemned, pack), &[Bytes::from_static(b"{}")]).await {
            // Another collection did, in its own words.
            Ok(()) | Err(Error::Exists { .. }) => {}
            Err(fault) => return Err(fault),
        }
        self.archive.index.lock().condemn(pack);
        self.report.packs_condemned += 1;
        Ok(())
    }

    /// The pack first, so that a pack that is there without being condemned never was.
    async fn delete(&mut self, pack: Listed) -> Result<(), Error> {
        self.term.left()?;
        self.archive.store.delete(Key::Of(Kind::Pack, pack.id)).await?;
        self.archive.index.lock().remove(&pack.id);
        self.report.packs_deleted += 1;
        self.report.bytes_deleted += pack.bytes;
        self.archive.store.delete(Key::Of(Kind::Condemned, pack.id)).await
    }
}

fn stored_bytes(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| u64::from(entry.stored_bytes)).sum()
}

#[cfg(test)]
mod tests;
