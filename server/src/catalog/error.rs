//! Why the catalog fails. Owns: which failures are damage, and which pass. Must not know: what is done about them.

use std::io;
use std::path::PathBuf;
use turnkv_tier::nvme::TierId;

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
    /// It says that it is of another tier.
    #[error(
        "it is of the NVMe tier {id} at {}, and nvme.path is {} with the tier {own_id}: no page and nothing in the catalog was changed",
        path.display(), own.display()
    )]
    OtherTier {
        /// Which.
        id: TierId,
        /// Where that was.
        path: PathBuf,
        /// Which it was opened for.
        own_id: TierId,
        /// Where that is.
        own: PathBuf,
    },
}

impl CatalogError {
    /// Is what the file says bad or out of reach for good, so that it has to be set aside?
    pub(super) fn is_damage(&self) -> bool {
        match self {
            CatalogError::Panicked(_) => true,
            CatalogError::Resting(_) | CatalogError::InTheWay(_) | CatalogError::OtherTier { .. } => false,
            CatalogError::Database(redb::Error::Io(error)) => !passes(error),
            CatalogError::Database(redb::Error::DatabaseAlreadyOpen | redb::Error::PreviousIo) => false,
            CatalogError::Database(_) => true,
        }
    }

    /// Is another server at work on it, or is it of another tier?
    pub(super) fn is_anothers(&self) -> bool {
        self.advice().is_some()
    }

    /// What helps where it is another's.
    pub(crate) fn advice(&self) -> Option<&'static str> {
        match self {
            CatalogError::Database(redb::Error::DatabaseAlreadyOpen) => {
                Some("stop the server that has this catalog, or choose another nvme.state_dir")
            }
            CatalogError::OtherTier { .. } => Some(
                "give each nvme.path a nvme.state_dir of its own, or go back to the path that this one is of",
            ),
            _ => None,
        }
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
