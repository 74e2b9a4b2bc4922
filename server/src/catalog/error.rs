//! Why the catalog fails. Owns: which failures are damage, and which pass. Must not know: what is done about them.

use std::io;

/// A failed step of the catalog.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CatalogError {
    /// The database says so: damage of its file, or an I/O error.
    #[error("{0}")]
    Database(#[from] redb::Error),
    /// The database gave up over what it read.
    #[error("what is in its file makes no sense ({0})")]
    Panicked(String),
    /// It failed a moment ago: the next attempt comes after a pause.
    #[error("{0}")]
    Resting(String),
    /// It was damaged, and could not be put out of the way.
    #[error("it cannot be read, and cannot be moved out of the way: {0}")]
    InTheWay(io::Error),
}

impl CatalogError {
    /// Is what the file says bad or out of reach for good, so that it has to be set aside?
    pub(super) fn is_damage(&self) -> bool {
        match self {
            CatalogError::Panicked(_) => true,
            CatalogError::Resting(_) | CatalogError::InTheWay(_) => false,
            CatalogError::Database(redb::Error::Io(error)) => !passes(error),
            CatalogError::Database(redb::Error::DatabaseAlreadyOpen | redb::Error::PreviousIo) => false,
            CatalogError::Database(_) => true,
        }
    }

    /// Is another server at work on it?
    pub(crate) fn is_taken(&self) -> bool {
        matches!(self, CatalogError::Database(redb::Error::DatabaseAlreadyOpen))
    }
}

/// Is it an error of the machine's that may be over later, and says nothing about the file?
fn passes(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let Some(errno) = Errno::from_io_error(error) else {
        return matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::StorageFull);
    };
    let room = matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::ROFS);
    let short = matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN | Errno::INTR);
    room || short || matches!(errno, Errno::BUSY | Errno::ACCESS | Errno::PERM)
}

macro_rules! from_database {
    ($($error:ident),*) => {
        $(impl From<redb::$error> for CatalogError {
            fn from(error: redb::$error) -> CatalogError {
                CatalogError::Database(error.into())
            }
        })*
    };
}

from_database!(DatabaseError, TransactionError, TableError, StorageError, CommitError);
