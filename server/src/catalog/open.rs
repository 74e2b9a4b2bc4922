//! The catalog's database: opening it, setting a damaged one aside, reopening one that failed. Owns: the one place where a
//! transaction is made. Must not know: what is in the tables.
//!
//! ```text
//!            a write fails                    reopened, at most so often
//! OPEN ------------------------> CLOSED --------------------------------> OPEN
//!   ^                              | what is there is damaged: set aside
//!   \------- an empty one ---------/
//! ```
//! The database takes no write after an I/O error, so one that failed is dropped and opened again: what was committed is there.

use super::guard::guarded;
use super::waiting::WaitingRows;
use super::{CatalogError, CatalogPlace, Owner, tables};
use crate::clock::Clock;
use crate::limits::{CATALOG_CACHE_BYTES, CATALOG_RETRY_MS};
use parking_lot::Mutex;
use redb::{Builder, Database, Durability, WriteTransaction};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use turnkv_pool::NamespaceIndex;
use turnkv_proto::{BlockHash, SessionId};

/// The database, and what is to be written to it.
pub(crate) struct Catalog {
    place: Box<dyn CatalogPlace>,
    owner: Owner,
    pub(super) clock: Clock,
    /// Held while the disk works.
    store: Mutex<Store>,
    trouble: Mutex<Option<Trouble>>,
    /// Damaged ones since start.
    set_aside: AtomicU64,
    /// What is in it was read.
    pub(super) is_loaded: AtomicBool,
    /// It was begun anew while the server ran: sessions and pins have to be written again.
    pub(super) is_rebuilt: AtomicBool,
    pub(super) waiting: Mutex<WaitingRows>,
    /// Held while rows of namespaces are removed and written: one after the other.
    pub(super) flushing: Mutex<()>,
    /// Sessions that changed since the last flush. A set: one that changes often is written once a flush. Bounded by the pool's
    /// bound on sessions.
    pub(super) marked: Mutex<BTreeSet<(NamespaceIndex, SessionId)>>,
    /// Pins that changed since they were written; the same of these, and bounded by their own limit.
    pub(super) marked_pins: Mutex<BTreeSet<(NamespaceIndex, BlockHash)>>,
    /// Sessions taken from `marked` that are being written.
    pub(super) saving: AtomicUsize,
    /// Chunks of lists that are saved.
    pub(super) list_chunks: AtomicU64,
}

/// The database, if it works.
enum Store {
    Open(Database),
    /// It failed, for this reason; not tried again before then.
    Closed {
        retry_at: Duration,
        why: String,
    },
}

/// What is said of a catalog that does not work.
struct Trouble {
    since: Duration,
    why: String,
}

impl Catalog {
    /// Opens or creates the catalog of a tier at a place. What cannot be read is set aside and begun anew; one that cannot be reached now
    /// is tried again later. An error: another server has it, or it is another tier's.
    pub(crate) fn open_with(
        place: Box<dyn CatalogPlace>,
        owner: Owner,
        clock: Clock,
    ) -> Result<Catalog, CatalogError> {
        let closed = Store::Closed { retry_at: Duration::ZERO, why: String::new() };
        let catalog = Catalog {
            place,
            owner,
            clock,
            store: Mutex::new(closed),
            trouble: Default::default(),
            set_aside: Default::default(),
            is_loaded: Default::default(),
            is_rebuilt: Default::default(),
            waiting: Default::default(),
            flushing: Default::default(),
            marked: Default::default(),
            marked_pins: Default::default(),
            saving: Default::default(),
            list_chunks: Default::default(),
        };
        match catalog.ready(&mut catalog.store.lock()) {
            Err(error) if error.is_anothers() => return Err(error),
            Err(error) => catalog.failed(&error),
            Ok(_) => {}
        }
        Ok(catalog)
    }

    /// Runs a change as one durable transaction: the whole of it is saved, or nothing. One that fails is tried once more on a
    /// database that was opened anew. Blocking: it waits for the disk, so never call it on an async worker or under the pool's
    /// lock.
    pub(super) fn write<T>(
        &self,
        change: impl Fn(&WriteTransaction) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        let mut store = self.store.lock();
        let tries = if matches!(*store, Store::Open(_)) { 2 } else { 1 };
        for left in (0..tries).rev() {
            match self.attempt(&mut store, &change) {
                Ok(done) => {
                    self.works_again();
                    return Ok(done);
                }
                Err(error) if left == 0 => {
                    self.failed(&error);
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        Err(CatalogError::Resting(String::new()))
    }

    fn attempt<T>(
        &self,
        store: &mut Store,
        change: &impl Fn(&WriteTransaction) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        let database = self.ready(store)?;
        let written = guarded(|| {
            let write = begin(database)?;
            let done = change(&write)?;
            write.commit()?;
            Ok(done)
        });
        written.inspect_err(|error| self.close(store, error))
    }

    /// Reads from the database, if it works.
    pub(super) fn read<T>(
        &self,
        look: impl FnOnce(&redb::ReadTransaction) -> Result<T, CatalogError>,
    ) -> Result<T, CatalogError> {
        use redb::ReadableDatabase;
        let mut store = self.store.lock();
        let database = self.ready(&mut store)?;
        let found = guarded(|| look(&database.begin_read()?));
        found.inspect_err(|error| self.close(&mut store, error))
    }

    /// The database, opened if need be and not tried too often.
    fn ready<'a>(&self, store: &'a mut Store) -> Result<&'a Database, CatalogError> {
        if let Store::Closed { retry_at, why } = store {
            if self.clock.now() < *retry_at {
                return Err(CatalogError::Resting(why.clone()));
            }
            match self.reopen() {
                Ok(database) => *store = Store::Open(database),
                Err(error) => {
                    self.close(store, &error);
                    return Err(error);
                }
            }
        }
        match store {
            Store::Open(database) => Ok(database),
            Store::Closed { why, .. } => Err(CatalogError::Resting(why.clone())),
        }
    }

    fn reopen(&self) -> Result<Database, CatalogError> {
        match open_tables(self.place.as_ref(), &self.owner) {
            Err(error) if error.is_damage() => {
                self.put_aside(&error)?;
                open_tables(self.place.as_ref(), &self.owner)
            }
            opened => opened,
        }
    }

    /// Sets aside what cannot be read: all that is known goes into the one that takes its place.
    pub(super) fn put_aside(&self, error: &CatalogError) -> Result<(), CatalogError> {
        let aside = self.place.set_aside().map_err(CatalogError::InTheWay)?;
        tracing::error!(
            "the catalog cannot be read ({error}) and was set aside as {aside}: sessions and pins of before are forgotten, \
             pages are served once their namespace is opened"
        );
        self.set_aside.fetch_add(1, Ordering::Relaxed);
        self.is_rebuilt.store(true, Ordering::Relaxed);
        self.waiting.lock().write_all_again();
        Ok(())
    }

    fn failed(&self, error: &CatalogError) {
        let mut trouble = self.trouble.lock();
        if trouble.is_none() {
            tracing::error!(
                "the catalog cannot be written ({error}): serving goes on, it is tried again every {CATALOG_RETRY_MS} ms"
            );
        }
        let since = trouble.as_ref().map_or_else(|| self.clock.now(), |trouble| trouble.since);
        *trouble = Some(Trouble { since, why: error.to_string() });
    }

    fn works_again(&self) {
        if let Some(trouble) = self.trouble.lock().take() {
            let ms = self.clock.now().saturating_sub(trouble.since).as_millis() as u64;
            tracing::info!(ms, "the catalog is written again");
        }
    }

    /// Whether it was begun anew since the last call: all sessions and pins are to be written.
    pub(crate) fn take_rebuilt(&self) -> bool {
        self.is_rebuilt.swap(false, Ordering::Relaxed)
    }

    /// Bytes that its file takes.
    pub(crate) fn bytes(&self) -> u64 {
        self.place.bytes()
    }

    /// Damaged ones that were set aside since start.
    pub(crate) fn set_aside(&self) -> u64 {
        self.set_aside.load(Ordering::Relaxed)
    }

    /// Changes that wait to be written.
    pub(crate) fn waiting_len(&self) -> usize {
        let pins = self.marked_pins.lock().len();
        self.marked.lock().len() + self.saving.load(Ordering::Relaxed) + pins + self.waiting.lock().len()
    }

    /// What is wrong with the catalog, for an operator. None: it works.
    pub(crate) fn trouble(&self) -> Option<String> {
        let trouble = self.trouble.lock();
        let Trouble { since, why } = trouble.as_ref()?;
        Some(format!(
            "the catalog of namespaces, sessions and pins cannot be written for {} s ({why}): what changes is forgotten at a \
             restart; make room where nvme.state_dir is, or see to its disk",
            self.clock.now().saturating_sub(*since).as_secs()
        ))
    }

    /// Lets go of a database that failed. Dropping it may fail as well, which says nothing new.
    fn close(&self, store: &mut Store, error: &CatalogError) {
        if matches!(error, CatalogError::Resting(_)) {
            return;
        }
        // One that was open may be opened anew at once.
        let pause = if matches!(store, Store::Open(_)) { 0 } else { CATALOG_RETRY_MS };
        let retry_at = self.clock.now() + Duration::from_millis(pause);
        let failed = std::mem::replace(store, Store::Closed { retry_at, why: error.to_string() });
        let dropped = guarded(|| {
            drop(failed);
            Ok(())
        });
        if let Err(error) = dropped {
            tracing::debug!(%error, "while the catalog was closed");
        }
    }
}

/// A transaction that is durable, and committed in two phases: the last commit is whole whenever the power went, so if it does
/// not check it was damaged since. In one phase the database would take the one before it, and not say so.
fn begin(database: &Database) -> Result<WriteTransaction, CatalogError> {
    let mut write = database.begin_write()?;
    write.set_durability(Durability::Immediate).map_err(redb::Error::from)?;
    write.set_two_phase_commit(true);
    Ok(write)
}

fn open_tables(place: &dyn CatalogPlace, owner: &Owner) -> Result<Database, CatalogError> {
    guarded(|| {
        let mut builder = Builder::new();
        builder.set_cache_size(CATALOG_CACHE_BYTES).set_check_integrity_on_open(true);
        let database = place.open(&builder)?;
        let write = begin(&database)?;
        owner.take(&write)?;
        tables::create(&write)?;
        write.commit()?;
        Ok(database)
    })
}

#[cfg(test)]
mod tests;
