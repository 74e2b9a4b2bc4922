//! The catalog: namespaces, sessions and pins across restarts, in an embedded database. Owns: the database and its
//! transactions. Must not know: pages' bytes or places (the segments tell those).
//!
//! - [`place`]: where its bytes are; [`open`]: opening it, setting a damaged one aside
//! - [`namespaces`], [`sessions`], [`lists`] (those of sessions, in pieces that they share), [`pins`]: one table each

mod lists;
mod namespaces;
mod open;
mod pins;
mod place;
mod sessions;

pub(crate) use lists::ListSource;
pub(crate) use pins::LoadedPin;
pub(crate) use place::{CatalogFile, Place, file_bytes};
pub(crate) use sessions::{Change, SavedSession, SavedSessions};

use parking_lot::Mutex;
use redb::{Database, ReadableDatabase, WriteTransaction};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use turnkv_pool::NamespaceIndex;
use turnkv_proto::{CheckedSpec, Error, ErrorKind, SessionId};

/// The database, and the sessions that changed since the last flush.
pub(crate) struct Catalog {
    database: Mutex<Database>,
    /// A set: a session that changes often is written once a flush. Bounded by the pool's bound on sessions.
    marked: Mutex<BTreeSet<(NamespaceIndex, SessionId)>>,
    /// Chunks of sessions' lists that are saved.
    list_chunks: AtomicU64,
}

/// What was saved besides sessions.
pub(crate) struct Loaded {
    /// Specs that still check.
    pub(crate) namespaces: Vec<CheckedSpec>,
    /// Pins, of those namespaces or of others.
    pub(crate) pins: Vec<LoadedPin>,
}

impl Catalog {
    /// Opens or creates the catalog in a directory.
    pub(crate) fn open(directory: &Path) -> Result<Catalog, redb::Error> {
        Catalog::open_with(Box::new(CatalogFile::in_directory(directory)))
    }

    /// Opens or creates the catalog at a place.
    pub(crate) fn open_with(place: Box<dyn Place>) -> Result<Catalog, redb::Error> {
        Ok(Catalog {
            database: Mutex::new(open::open(place.as_ref())?),
            marked: Mutex::default(),
            list_chunks: AtomicU64::new(0),
        })
    }

    /// The namespaces and pins saved. Rows that do not check are skipped and said.
    pub(crate) fn load(&self) -> Result<Loaded, redb::Error> {
        let read = self.database.lock().begin_read()?;
        Ok(Loaded { namespaces: namespaces::load(&read)?, pins: pins::load(&read)? })
    }

    /// Runs a change as one durable transaction: the whole of it is saved, or nothing. Blocking: it waits for the disk, so
    /// never call it on an async worker or under the pool's lock.
    fn write<T>(
        &self,
        change: impl Fn(&WriteTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, redb::Error> {
        let database = self.database.lock();
        let write = database.begin_write()?;
        let done = change(&write)?;
        write.commit()?;
        Ok(done)
    }
}

/// What a caller is told whose change is not saved.
fn unwritable(error: redb::Error) -> Error {
    Error::new(ErrorKind::Internal, format!("the catalog cannot be written: {error}"))
}

#[cfg(test)]
mod tests;
