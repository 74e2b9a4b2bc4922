//! Verify: reads everything of one snapshot, or of all, and the bookmarks by which archived sessions are found. Owns: the report. Must
//! not know: what to do about faults.

use crate::again::read_again;
use crate::archive::Archive;
use crate::bookmark::{Bookmark, PageMark};
use crate::directory::{Directory, ListedBookmark};
use crate::error::Error;
use crate::id::{Digest, ObjectId, SessionName};
use crate::limits::{FAULTS_NAMED_MAX, MARKS_MAX};
use crate::manifest::Manifest;
use crate::read::Places;
use crate::restore::read_pages;
use crate::store::{Key, Kind};
use futures_util::StreamExt;
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;

/// How far a verification is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyProgress {
    /// Snapshots that were read.
    pub snapshots_done: u64,
    /// Snapshots in all.
    pub snapshots: u64,
    /// Pages that were read, or were seen to have nothing that was not read before.
    pub pages_done: u64,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyFault {
    /// In which snapshot.
    pub snapshot: ObjectId,
    /// In which page; none if it is the manifest, the snapshot's bookmark, or the index of a pack that it needs.
    pub page: Option<u32>,
    /// What.
    pub error: Error,
}

/// What was read already, and is not read again.
#[derive(Default)]
struct Seen {
    blobs: HashSet<Digest>,
    packs: HashSet<ObjectId>,
}

/// What a verification found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Snapshots that were read.
    pub snapshots: u64,
    /// Pages of these.
    pub pages: u64,
    /// Faults, up to a thousand.
    pub faults: Vec<VerifyFault>,
    /// How many there are in all.
    pub faults_found: u64,
}

impl VerifyReport {
    fn add(&mut self, snapshot: ObjectId, page: Option<u32>, error: Error) {
        self.faults_found += 1;
        if self.faults.len() < FAULTS_NAMED_MAX {
            self.faults.push(VerifyFault { snapshot, page, error });
        }
    }
}

impl Archive {
    /// Reads all bytes of one snapshot, or of all, and reports each fault. Fails only if the store can not be asked.
    pub async fn verify(
        &self,
        snapshot: Option<ObjectId>,
        mut progress: impl FnMut(VerifyProgress),
    ) -> Result<VerifyReport, Error> {
        let snapshots = match snapshot {
            Some(id) => vec![id],
            None => self.list().await?.into_iter().map(|one| one.id).collect(),
        };
        let (mut report, mut seen) = (VerifyReport::default(), Seen::default());
        let bookmarks = self.store.list_bookmarks(None).await?;
        let bookmarks: HashMap<ObjectId, SessionName> =
            bookmarks.into_iter().map(|(name, one)| (one.id, name)).collect();
        let count = snapshots.len() as u64;
        for id in snapshots {
            let manifest = match self.manifest(id).await {
                Ok(manifest) => Arc::new(manifest),
                // Deleted since it was listed.
                Err(Error::NotFound { .. }) if snapshot.is_none() => continue,
                Err(fault) if fault.may_pass() => return Err(fault),
                Err(fault) => {
                    report.add(id, None, fault);
                    continue;
                }
            };
            let (before, snapshots_done) = (report.pages, report.snapshots);
            let pages_done =
                |pages| VerifyProgress { snapshots_done, snapshots: count, pages_done: before + pages };
            match bookmarks.get(&id).copied() {
                Some(name) => {
                    let at = ListedBookmark { name, snapshot: id };
                    self.verify_bookmark(&manifest, at, &mut report).await?;
                }
                // A bookmark goes after its manifest, which was read later than the bookmarks were listed.
                None if manifest.is_bookmarked() => report.add(id, None, bookmark_gone(id)),
                None => {}
            }
            self.verify_pages(&manifest, &mut seen, &mut report, |pages| progress(pages_done(pages))).await?;
            report.snapshots += 1;
            report.pages += manifest.pages.len() as u64;
            progress(VerifyProgress {
                snapshots_done: report.snapshots,
                snapshots: count,
                pages_done: report.pages,
            });
        }
        Ok(report)
    }

    async fn verify_pages(
        &self,
        manifest: &Arc<Manifest>,
        seen: &mut Seen,
        report: &mut VerifyReport,
        mut progress: impl FnMut(u64),
    ) -> Result<(), Error> {
        let digests = |ix: usize| manifest.pages[ix].shards.iter().flat_map(|shard| shard.each());
        let is_new = |ix: &usize| digests(*ix).any(|(_, digest)| !seen.blobs.contains(&digest));
        // What an earlier snapshot was seen to have is not read again.
        let new: Vec<usize> = (0..manifest.pages.len()).filter(is_new).collect();
        let known = (manifest.pages.len() - new.len()) as u64;
        let places = Places::of(self, manifest).await?;
        self.verify_indexes(manifest.id, &places, &mut seen.packs, report).await?;
        let mut reads = pin!(read_pages(places, Arc::clone(manifest), new.clone()).enumerate());
        while let Some((at, read)) = reads.next().await {
            let ix = new[at];
            match read {
                Ok(_) if seen.blobs.len() < MARKS_MAX => {
                    seen.blobs.extend(digests(ix).map(|(_, digest)| digest))
                }
                Ok(_) => {}
                Err(fault) if fault.may_pass() => return Err(fault),
                Err(fault) => report.add(manifest.id, Some(ix as u32), fault),
            }
            progress(known + at as u64 + 1);
        }
        Ok(())
    }

    /// An archived session is found by its bookmark alone: one that says other pages than the snapshot has makes it a miss.
    async fn verify_bookmark(
        &self,
        manifest: &Manifest,
        at: ListedBookmark,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        let directory = Directory::of(&self.store);
        match read_again(|| directory.read(at)).await {
            Ok(bookmark) if is_of(&bookmark, manifest) => {}
            Ok(_) => {
                let fault = "the session or the pages that it names are not this snapshot's";
                report.add(
                    manifest.id,
                    None,
                    Error::damaged(Key::Bookmark(at.name, at.snapshot).to_string(), fault),
                );
            }
            // Taken back since it was listed, unless its snapshot stays.
            Err(Error::NotFound { .. }) => {
                match self.store.head(Key::Of(Kind::Manifest, manifest.id)).await {
                    Err(Error::NotFound { .. }) => {}
                    Err(fault) => return Err(fault),
                    Ok(_) => report.add(manifest.id, None, bookmark_gone(manifest.id)),
                }
            }
            Err(fault) if fault.may_pass() => return Err(fault),
            Err(fault) => report.add(manifest.id, None, fault),
        }
        Ok(())
    }

    /// Blobs are found by what this process remembers of indexes: a restore elsewhere needs the indexes themselves.
    async fn verify_indexes(
        &self,
        snapshot: ObjectId,
        places: &Places,
        seen: &mut HashSet<ObjectId>,
        report: &mut VerifyReport,
    ) -> Result<(), Error> {
        for pack in places.packs() {
            if !seen.insert(pack) {
                continue;
            }
            match self.read_index(pack).await {
                // One that is not there was rewritten: its blobs are found elsewhere, or missed by their readers.
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(fault) if fault.may_pass() => return Err(fault),
                Err(fault) => {
                    self.index.lock().condemn(pack);
                    report.add(snapshot, None, fault);
                }
            }
        }
        Ok(())
    }
}

/// Turns do not find the session any more.
fn bookmark_gone(snapshot: ObjectId) -> Error {
    let fault = "it is gone: turns do not find the archived session, a restore brings it back";
    Error::damaged(format!("bookmark of snapshot {snapshot}"), fault)
}

/// Whether a bookmark tells of a snapshot what it has.
fn is_of(bookmark: &Bookmark, manifest: &Manifest) -> bool {
    let hash = |page: &u32| manifest.pages.get(*page as usize).map(|page| PageMark::of(&page.hash));
    bookmark.namespace == manifest.header.namespace
        && manifest.sequences.iter().any(|sequence| {
            sequence.id == bookmark.session
                && sequence.pages.iter().map(hash).eq(bookmark.pages.iter().copied().map(Some))
        })
}
