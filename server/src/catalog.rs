//! The catalog: namespaces, sessions and pins across restarts, in an embedded database. Owns: the database and its
//! transactions. Must not know: pages' bytes or places (the segments tell those).
//!
//! - [`place`]: where its bytes are; [`open`]: opening it, setting a damaged one aside
//! - [`namespaces`], [`sessions`], [`pins`]: one table each

mod namespaces;
mod open;
mod pins;
mod place;
mod sessions;

pub(crate) use pins::LoadedPin;
pub(crate) use place::{CatalogFile, Place};
pub(crate) use sessions::SavedSession;

use parking_lot::Mutex;
use redb::{Database, ReadableDatabase, WriteTransaction};
use std::collections::BTreeSet;
use std::path::Path;
use turnkv_pool::NamespaceIndex;
use turnkv_proto::{CheckedSpec, Error, ErrorKind, SessionId};

/// The database, and the sessions that changed since the last flush.
pub(crate) struct Catalog {
    database: Mutex<Database>,
    /// A set: a session that changes often is written once a flush. Bounded by the pool's bound on sessions.
    marked: Mutex<BTreeSet<(NamespaceIndex, SessionId)>>,
}

/// What was saved: the namespaces, and the sessions with the namespace of each.
pub(crate) struct Loaded {
    /// Specs that still check.
    pub(crate) namespaces: Vec<CheckedSpec>,
    /// Sessions, of those namespaces or of others.
    pub(crate) sessions: Vec<SavedSession>,
    /// Pins, likewise.
    pub(crate) pins: Vec<LoadedPin>,
}

impl Catalog {
    /// Opens or creates the catalog in a directory.
    pub(crate) fn open(directory: &Path) -> Result<Catalog, redb::Error> {
        Catalog::open_with(Box::new(CatalogFile::in_directory(directory)))
    }

    /// Opens or creates the catalog at a place.
    pub(crate) fn open_with(place: Box<dyn Place>) -> Result<Catalog, redb::Error> {
        Ok(Catalog { database: Mutex::new(open::open(place.as_ref())?), marked: Mutex::default() })
    }

    /// Everything saved. Rows that do not check are skipped and said.
    pub(crate) fn load(&self) -> Result<Loaded, redb::Error> {
        let read = self.database.lock().begin_read()?;
        Ok(Loaded {
            namespaces: namespaces::load(&read)?,
            sessions: sessions::load(&read)?,
            pins: pins::load(&read)?,
        })
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
