//! Pages back from the archive, for turns that want them. Owns: how many sessions at a time, and what is made of a store that is slow, of
//! snapshots that are damaged, or gone. Must not know: who waits.
//!
//! Pages come parents first, as offloads of the server itself: a turn finds a whole beginning of the session, or less of it, never a
//! page without those before it. Each is compared with its SHA-256 before the pool has it.

use super::run::{Tier, is_of_store};
use crate::engine::archived::{Fetch, SnapshotName};
use crate::limits::{ARCHIVE_FETCHES_MAX, ARCHIVE_SLOW_MIN};
use crate::snapshots::header::namespace_of;
use crate::snapshots::refusal::refuse;
use crate::snapshots::storing::Storing;
use crate::snapshots::write::WrittenPages;
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;
use turnkv_archive::{Error as Fault, ObjectId};
use turnkv_proto::{BlockHash, Error};

/// A fetch under way; it is over when this is dropped.
struct UnderWay {
    tier: Arc<Tier>,
    fetch: Fetch,
    /// Until it is known that it is the store's fault, or nobody's.
    is_avoided: bool,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let now = self.tier.engine().moment_after(Duration::ZERO);
        self.tier.engine().archived.fetch_ended(&self.fetch, self.is_avoided, now);
    }
}

/// Why pages did not come back.
enum FetchFault {
    /// The archive says so.
    Archive(Fault),
    /// The pool does, or the snapshot is of something else.
    Pool(Error),
}

impl From<Fault> for FetchFault {
    fn from(fault: Fault) -> FetchFault {
        FetchFault::Archive(fault)
    }
}

impl From<Error> for FetchFault {
    fn from(error: Error) -> FetchFault {
        FetchFault::Pool(error)
    }
}

impl Tier {
    /// Brings back what turns want, some sessions at a time.
    pub(super) async fn fetch_sessions(self: &Arc<Self>) {
        let mut running = JoinSet::new();
        loop {
            while running.len() < ARCHIVE_FETCHES_MAX
                && let Some(fetch) = self.engine().archived.next_fetch()
            {
                let under_way = UnderWay { tier: Arc::clone(self), fetch, is_avoided: true };
                running.spawn(Arc::clone(self).fetch(under_way));
            }
            tokio::select! {
                () = self.engine().archived.fetch_bell.notified() => {}
                Some(ended) = running.join_next() => {
                    if let Err(error) = ended {
                        tracing::warn!(%error, "a fetch from the archive ended early");
                    }
                }
            }
        }
    }

    async fn fetch(self: Arc<Self>, mut under_way: UnderWay) {
        match self.fetch_pages(&under_way.fetch).await {
            Ok(()) => {
                under_way.is_avoided = false;
                self.counts.fetched_sessions.increment(1);
            }
            Err(fault) => {
                self.counts.failed_fetches.increment(1);
                under_way.is_avoided = !matches!(&fault, FetchFault::Archive(fault) if is_of_store(fault));
                self.fetch_failed(under_way.fetch.snapshot, fault).await;
            }
        }
    }

    async fn fetch_failed(&self, snapshot: SnapshotName, fault: FetchFault) {
        let text = match fault {
            FetchFault::Archive(fault) => {
                if matches!(fault, Fault::NotFound { .. }) {
                    self.look_again(snapshot).await;
                } else if is_of_store(&fault) {
                    self.store_failed(&fault);
                } else {
                    self.snapshots.counts.failed(&fault);
                }
                fault.to_string()
            }
            FetchFault::Pool(error) => error.to_string(),
        };
        let snapshot = ObjectId(snapshot.0);
        tracing::warn!(%snapshot, fault = text, "an archived session did not come back: it is a miss");
    }

    /// Brings back the leading pages of a session that are not here. What takes too long is not waited for by turns any more.
    async fn fetch_pages(&self, fetch: &Fetch) -> Result<(), FetchFault> {
        let landed = AtomicU64::new(0);
        let slow = self.config().wait.max(ARCHIVE_SLOW_MIN);
        let mut work = pin!(self.bring_back(fetch, &landed));
        let (mut before, mut is_slow) = (0, false);
        loop {
            match timeout(slow, &mut work).await {
                Ok(done) => return done,
                Err(_) => {
                    let now = landed.load(Ordering::Relaxed);
                    if now == before {
                        self.store_is_slow(is_slow);
                        is_slow = true;
                    }
                    before = now;
                }
            }
        }
    }

    async fn bring_back(&self, fetch: &Fetch, landed: &AtomicU64) -> Result<(), FetchFault> {
        let spec = self.engine().namespace_spec(&fetch.namespace)?;
        let archive = self.snapshots.archive_of(spec.tenant()).await?;
        let manifest = Arc::new(archive.describe(ObjectId(fetch.snapshot.0)).await?);
        if namespace_of(&manifest.header, spec.tenant())?.id() != spec.id() {
            return Err(Error::invalid("the snapshot is of another namespace than its bookmark says").into());
        }
        let Some(sequence) = manifest.sequences.first() else { return Ok(()) };
        let wanted = sequence.pages.get(..fetch.pages as usize).unwrap_or(&sequence.pages);
        let pages: Vec<usize> = wanted.iter().map(|ix| *ix as usize).collect();
        let hashes: Vec<BlockHash> =
            pages.iter().filter_map(|ix| manifest.pages.get(*ix)).map(|page| page.hash).collect();
        let present = self.engine().present_pages(&fetch.namespace, &hashes)?;
        let missing = pages.get(present..).unwrap_or_default().to_vec();
        let storing = Storing::new(self.engine(), &spec, self.snapshots.config().inflight_bytes)?;
        let archive_fault = Mutex::new(None);
        let refused = |fault: Fault| {
            let error = refuse(fault.clone());
            *archive_fault.lock() = Some(fault);
            error
        };
        let mut told = |pages: u64, _: WrittenPages| {
            landed.fetch_add(pages, Ordering::Relaxed);
            self.distrust.reset();
            self.counts.fetched_pages.increment(pages);
            self.engine().archived.pages_landed();
        };
        let stored = storing.store(&archive, &manifest, missing, &refused, &mut told).await;
        match (stored, archive_fault.into_inner()) {
            (Ok(_), _) => Ok(()),
            (Err(_), Some(fault)) => Err(fault.into()),
            (Err(error), None) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
