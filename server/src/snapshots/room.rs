//! What all snapshot operations share. Owns: turns, of which there are few, and what an operation is counted as. Must not know: what
//! they do.

use super::archives::Archives;
use super::counts::{SnapshotCounts, SnapshotVerb};
use super::refusal::refuse;
use crate::config::ArchiveConfig;
use crate::engine::Engine;
use crate::limits::{SNAPSHOT_LOOKS_MAX, SNAPSHOT_RETRY_MS};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use turnkv_archive::{Archive, Directory, Error as Fault};
use turnkv_proto::{Error, ErrorKind};

/// The server's snapshots.
pub(crate) struct Snapshots {
    pub(super) engine: Arc<Engine>,
    pub(super) counts: SnapshotCounts,
    archives: Option<Archives>,
    operations: Arc<Semaphore>,
    looks: Arc<Semaphore>,
}

/// An operation under way. Dropped without [`Operation::done`], it is not counted as done.
pub(super) struct Operation<'a> {
    snapshots: &'a Snapshots,
    verb: SnapshotVerb,
    began: Instant,
    turn: Arc<OwnedSemaphorePermit>,
}

impl Snapshots {
    /// Of this engine, at the place that its settings name.
    pub(crate) fn new(engine: &Arc<Engine>) -> Arc<Snapshots> {
        let config = &engine.settings.archive;
        Arc::new(Snapshots {
            counts: SnapshotCounts::new(config.operations_max),
            archives: config.place.as_ref().map(|place| Archives::new(place.place(), config)),
            operations: Arc::new(Semaphore::new(config.operations_max)),
            looks: Arc::new(Semaphore::new(SNAPSHOT_LOOKS_MAX)),
            engine: Arc::clone(engine),
        })
    }

    /// A tenant's archive, for what the server does by itself.
    pub(super) async fn archive_of(&self, tenant: &str) -> Result<Archive, Fault> {
        self.archives.as_ref().ok_or_else(no_place)?.of(tenant).await
    }

    /// The directory of a tenant's archived sessions.
    pub(super) fn directory_of(&self, tenant: &str) -> Result<Directory, Fault> {
        self.archives.as_ref().ok_or_else(no_place)?.directory_of(tenant)
    }

    pub(super) fn config(&self) -> &ArchiveConfig {
        &self.engine.settings.archive
    }

    /// A turn for what takes long; refused where as many are taken as may be.
    pub(super) fn begin(&self, verb: SnapshotVerb) -> Result<Operation<'_>, Error> {
        let (turns, most, what) = match verb.is_look() {
            true => (&self.looks, SNAPSHOT_LOOKS_MAX, "looks at snapshots (SNAPSHOT_LOOKS_MAX)"),
            false => {
                let most = self.config().operations_max;
                (&self.operations, most, "snapshot operations (archive.operations_max)")
            }
        };
        self.archives()?;
        let Ok(turn) = Arc::clone(turns).try_acquire_owned() else {
            self.counts.refused.increment(1);
            return Err(Error::busy(
                SNAPSHOT_RETRY_MS,
                format!("{most} {what} are under way: try again later"),
            ));
        };
        if !verb.is_look() {
            self.counts.begun();
        }
        Ok(Operation { snapshots: self, verb, began: Instant::now(), turn: Arc::new(turn) })
    }

    fn archives(&self) -> Result<&Archives, Error> {
        let none =
            || Error::invalid("this server keeps no snapshots: set archive.place in its configuration");
        self.archives.as_ref().ok_or_else(none)
    }
}

/// There is no place to ask.
fn no_place() -> Fault {
    Fault::NotFound { object: "the archive".to_owned() }
}

impl Operation<'_> {
    /// A tenant's archive.
    pub(super) async fn archive(&self, tenant: &str) -> Result<Archive, Error> {
        let opened = self.snapshots.archives()?.of(tenant).await;
        opened.map_err(|fault| self.refuse(fault))
    }

    /// Runs what blocks, not on an async thread. It keeps the operation's turn until it ends, also when its caller has left.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let turn = Arc::clone(&self.turn);
        let work = tokio::task::spawn_blocking(move || {
            let done = job();
            drop(turn);
            done
        });
        work.await.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))
    }

    /// What an archive refuses of what its caller gave: what is damaged there is the caller's to mend.
    pub(super) fn refuse_given(&self, fault: Fault) -> Error {
        let is_given = matches!(fault, Fault::Damaged { .. } | Fault::TooLarge { .. });
        let error = self.refuse(fault);
        if is_given { Error::invalid(error.message) } else { error }
    }

    /// What an archive refuses, counted.
    pub(super) fn refuse(&self, fault: Fault) -> Error {
        self.snapshots.counts.failed(&fault);
        let error = refuse(fault);
        if error.kind == ErrorKind::Internal {
            tracing::warn!(verb = self.verb.name(), %error, "the archive is not as it should be");
        }
        error
    }

    /// It is done: how long it took is counted.
    pub(super) fn done(self) {
        let took = self.began.elapsed();
        self.snapshots.counts.took(self.verb, took);
        if !self.verb.is_look() {
            tracing::info!(
                verb = self.verb.name(),
                ms = took.as_millis() as u64,
                "a snapshot operation is done"
            );
        }
    }
}

impl Drop for Operation<'_> {
    fn drop(&mut self) {
        if !self.verb.is_look() {
            self.snapshots.counts.ended();
        }
    }
}
