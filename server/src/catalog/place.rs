//! Where a catalog's bytes are. Owns: the file's name, and what becomes of one that cannot be read. Must not know: what is
//! in it.

use redb::{Builder, Database, DatabaseError};
use std::path::{Path, PathBuf};

/// What a catalog is opened on, as often as need be: a file, or whatever a test puts under it.
pub(crate) trait Place: Send + Sync {
    /// Opens the database, or makes an empty one where there is none (`Builder::create`, `Builder::create_with_backend`).
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError>;

    /// Puts what is there out of the way, so that the next `open` makes an empty database; says where to.
    fn set_aside(&self) -> std::io::Result<String>;
}

const FILE: &str = "catalog.redb";

/// Bytes of the catalog's file in a directory; 0: there is none.
pub(crate) fn file_bytes(directory: &Path) -> u64 {
    std::fs::metadata(directory.join(FILE)).map_or(0, |file| file.len())
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
}

impl Place for CatalogFile {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        builder.create(&self.path)
    }

    fn set_aside(&self) -> std::io::Result<String> {
        let aside = self.path.with_extension("redb.damaged");
        std::fs::rename(&self.path, &aside)?;
        Ok(aside.display().to_string())
    }
}
