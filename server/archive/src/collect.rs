//! Collect: what no snapshot needs goes. Owns: the order of its steps, and why nothing that is needed goes with it.
//!
//! - `mark`: which snapshots stay, and the blobs that these need
//! - `sweep`: packs that are condemned, rewritten, or go
//!
//! A pack is deleted in two steps. First it is condemned: an object says so, for good, and nothing new may need it. A grace time later
//! it goes, if everything in it that is needed then is in packs that were not condemned; what is not, is moved there before.
//!
//! Why that is safe. Let a collection list the condemned packs at time a, then the manifests, and delete a pack P that was condemned
//! at c, with c + grace < a. A capture that reuses a blob of P listed the condemned packs before c, so it began before c, and wrote
//! its manifest before c + grace: the collection saw it. Whatever it needs of P is in a pack that was not condemned at a; that one goes
//! after a + grace at the soonest, and by then another collection has looked at everything again. A collection that is not done with
//! deleting after three quarters of the grace time stops: two of them never take each other's packs as the ones that stay. Condemning
//! is never undone, so nobody acts on an old answer. All times are the store's own: clocks of hosts do not matter, only that they run
//! equally fast.
//!
//! A pack of which less than half is needed is rewritten: what is needed is moved, then the pack is condemned. So are small packs that
//! together fill half of one. Manifests name digests,
//! and digests are found through the packs' indexes, so that no manifest changes.
//!
//! An archived session's bookmark is written before its manifest, and goes after it. One that has no manifest a grace time later is of a
//! capture that never ended. Of several bookmarks of one session the newest that has a manifest counts: the snapshots of the others go.
//!
//! An unreadable manifest stops a collection before anything is deleted, because what it needs can not be known; so does anything else
//! among the manifests, which may be one. A pack whose index is
//! damaged stays as long as any blob is missing. After a crash at any point the next collection goes on.

mod mark;
mod sweep;

use crate::archive::Archive;
use crate::error::Error;
use crate::id::{ObjectId, SessionName};
use crate::intent;
use crate::store::{Key, Kind, Listed};
use crate::term::Term;
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// What a collection may delete beside what nothing needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CollectLimits {
    /// Snapshots older than this are deleted.
    pub snapshot_age_max: Option<Duration>,
    /// While the blobs that snapshots need have more bytes than this, as stored, the oldest snapshot is deleted.
    pub stored_bytes_max: Option<u64>,
    /// Only snapshots of archived sessions are deleted; others count.
    pub sessions_only: bool,
}

/// What a collection did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectReport {
    /// Snapshots that stay.
    pub snapshots: u64,
    /// Snapshots that were too old, or too much.
    pub snapshots_deleted: u64,
    /// Packs that will go, in a grace time.
    pub packs_condemned: u64,
    /// Of these, those that less than half was needed of, or that were small; what was needed was moved to other packs.
    pub packs_rewritten: u64,
    /// Packs that went.
    pub packs_deleted: u64,
    /// Bytes of these.
    pub bytes_deleted: u64,
    /// Bytes that were moved.
    pub bytes_moved: u64,
    /// Bytes of stored blobs that snapshots need.
    pub bytes_needed: u64,
    /// Blobs that a snapshot needs and no pack has; also those of a snapshot that was deleted, and collected, while this was running.
    pub blobs_missing: u64,
    /// Packs that can not be read, or from which something could not be moved. `verify` says what it means.
    pub packs_damaged: Vec<ObjectId>,
    /// Unfinished files and forgotten intents that went.
    pub litter_deleted: u64,
}

/// A collection under way.
struct Collection<'a> {
    archive: &'a Archive,
    term: Term,
    /// The store's time when it began, in milliseconds since 1970.
    began_unix_ms: i64,
    /// When packs were condemned.
    condemned: HashMap<ObjectId, i64>,
    /// Packs that captures under way reuse.
    intended: HashSet<ObjectId>,
    /// Bookmarks by their snapshots, listed before the manifests were.
    bookmarks: HashMap<ObjectId, (SessionName, Listed)>,
    report: CollectReport,
}

impl Archive {
    /// Deletes what no snapshot needs, and snapshots beyond the limits, oldest first. May run beside anything else, other
    /// collections included.
    pub async fn collect(&self, limits: CollectLimits) -> Result<CollectReport, Error> {
        // Of an archive that is not there nothing can go, and nothing is made.
        let Some(grace) = self.settled().await? else { return Ok(CollectReport::default()) };
        let mark = Key::Of(Kind::Collection, ObjectId::new());
        self.store.put(mark, Bytes::from_static(b"{}")).await?;
        let collected = self.collect_at(limits, grace, mark).await;
        if let Err(fault) = self.store.delete(mark).await {
            tracing::warn!(%fault, "a collection's mark stays until the next one finds it too old");
        }
        collected
    }

    async fn collect_at(
        &self,
        limits: CollectLimits,
        grace: Duration,
        mark: Key,
    ) -> Result<CollectReport, Error> {
        let term = Term::begin("a collection", grace);
        let began_unix_ms = self.store.head(mark).await?.stored_unix_ms;
        // The order of these three is what the module's text rests on.
        let condemned = self.store.list(Kind::Condemned).await?;
        let condemned = condemned.iter().map(|pack| (pack.id, pack.stored_unix_ms)).collect();
        let bookmarks = self.store.list_bookmarks(None).await?;
        let bookmarks = bookmarks.into_iter().map(|(name, one)| (one.id, (name, one))).collect();
        let (intended, report) = (HashSet::new(), CollectReport::default());
        let mut collection =
            Collection { archive: self, term, began_unix_ms, condemned, intended, bookmarks, report };
        collection.read_intents().await?;
        let marks = collection.mark(limits).await?;
        collection.sweep(marks).await?;
        collection.sweep_litter().await?;
        Ok(collection.report)
    }
}

impl Collection<'_> {
    /// Whether something was stored longer than a grace time ago.
    fn is_old(&self, stored_unix_ms: i64) -> bool {
        let passed = i64::try_from(self.term.elapsed().as_millis()).unwrap_or(0);
        let grace = i64::try_from(self.archive.grace().as_millis()).unwrap_or(i64::MAX);
        (self.began_unix_ms + passed).saturating_sub(stored_unix_ms) > grace
    }

    /// Learns what captures under way reuse. Intents of captures that can not finish any more go.
    async fn read_intents(&mut self) -> Result<(), Error> {
        for Listed { id, stored_unix_ms, .. } in self.archive.store.list(Kind::Intent).await? {
            if self.is_old(stored_unix_ms) {
                self.archive.store.delete(Key::Of(Kind::Intent, id)).await?;
                self.report.litter_deleted += 1;
            } else {
                self.intended.extend(intent::read(self.archive, id).await?);
            }
        }
        Ok(())
    }

    async fn sweep_litter(&mut self) -> Result<(), Error> {
        for Listed { id, stored_unix_ms, .. } in self.archive.store.list(Kind::Collection).await? {
            if self.is_old(stored_unix_ms) {
                self.archive.store.delete(Key::Of(Kind::Collection, id)).await?;
                self.report.litter_deleted += 1;
            }
        }
        let grace = i64::try_from(self.archive.grace().as_millis()).unwrap_or(i64::MAX);
        let before = self.began_unix_ms.saturating_sub(grace);
        self.report.litter_deleted += self.archive.store.sweep_litter(before).await?;
        Ok(())
    }
}
