//! Where a catalog's bytes are. Owns: the file's name, and what becomes of one that cannot be read. Must not know: what is
//! in it.

use crate::limits::CATALOGS_ASIDE_MAX;
use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, StorageError};
use std::fs::OpenOptions;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a catalog is opened on, as often as need be: a file, or whatever a test puts under it.
pub(crate) trait CatalogPlace: Send + Sync {
    /// Opens the database, or makes an empty one where there is none (`Builder::create`, `Builder::create_with_backend`).
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError>;

    /// Puts what is there out of the way, so that the next `open` makes an empty database; says where to.
    fn set_aside(&self) -> std::io::Result<String>;

    /// Bytes that it takes; 0: it cannot be looked at.
    fn bytes(&self) -> u64;
}

const FILE: &str = "catalog.redb";
/// What the system counts a file's blocks in, whatever those of its file system are.
const STAT_BLOCK_BYTES: u64 = 512;

/// A memory file, which outlives this process as long as somebody else holds it too. Nothing of it is on a disk.
pub(crate) struct CatalogMemory {
    memory: OwnedFd,
}

impl CatalogMemory {
    /// A catalog in a memory file; an empty one is made into one.
    pub(crate) fn new(memory: OwnedFd) -> CatalogMemory {
        CatalogMemory { memory }
    }
}

impl CatalogPlace for CatalogMemory {
    /// Opened anew: whoever holds the file on must not hold the database's lock of it too.
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        let path = format!("/proc/self/fd/{}", self.memory.as_raw_fd());
        builder.create_with_backend(FileBackend::new(OpenOptions::new().read(true).write(true).open(path)?)?)
    }

    /// There is no other name for it: it is emptied.
    fn set_aside(&self) -> std::io::Result<String> {
        rustix::fs::ftruncate(&self.memory, 0)?;
        Ok("nothing: it was in memory, and is emptied".to_owned())
    }

    fn bytes(&self) -> u64 {
        rustix::fs::fstat(&self.memory).map_or(0, |file| file.st_blocks as u64 * STAT_BLOCK_BYTES)
    }
}

/// A file in the directory of the tier's state.
pub(crate) struct CatalogFile {
    path: PathBuf,
}

impl CatalogFile {
    /// The catalog's file in a directory.
    pub(crate) fn in_directory(directory: &Path) -> CatalogFile {
        CatalogFile { path: directory.join(FILE) }
    }

    /// The name of one that was set aside: the latest, and those before it.
    fn aside(&self, age: usize) -> PathBuf {
        match age {
            0 => self.path.with_extension("redb.damaged"),
            age => self.path.with_extension(format!("redb.damaged.{age}")),
        }
    }

    fn sync_directory(&self) -> std::io::Result<()> {
        self.path.parent().map_or(Ok(()), |directory| std::fs::File::open(directory)?.sync_all())
    }
}

impl CatalogPlace for CatalogFile {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        let made = !self.path.exists();
        if made {
            // Like all else here it is nobody else's to read: who talked about what lies in it.
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.path)?;
        }
        if !made && std::fs::metadata(&self.path)?.len() == 0 {
            // A database would be begun in it as if there had been none: whoever cut it off is to hear of it.
            return Err(StorageError::Corrupted("its file is empty".to_owned()).into());
        }
        let database = builder.create(&self.path)?;
        if made {
            self.sync_directory()?; // what is committed to a file without a name is lost with the power
        }
        Ok(database)
    }

    /// A few are kept for whoever wants to look at them; the oldest of more is overwritten.
    fn set_aside(&self) -> std::io::Result<String> {
        for age in (1..CATALOGS_ASIDE_MAX).rev() {
            match std::fs::rename(self.aside(age - 1), self.aside(age)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(name(error, &self.aside(age)));
                }
                _ => {}
            }
        }
        let aside = self.aside(0);
        std::fs::rename(&self.path, &aside).map_err(|error| name(error, &aside))?;
        self.sync_directory()?;
        Ok(aside.display().to_string())
    }

    /// The file is longer: it has holes.
    fn bytes(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |file| file.blocks() * STAT_BLOCK_BYTES)
    }
}

fn name(error: Error, path: &Path) -> Error {
    Error::new(error.kind(), format!("{}: {error}", path.display()))
}
