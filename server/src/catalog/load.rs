//! Reading the catalog at a start. Owns: what is read first, and once. Must not know: sessions and pins, which come back one
//! after the other.

use super::place::CatalogFile;
use super::{Catalog, CatalogError, Owner, namespaces};
use crate::clock::Clock;
use std::path::Path;
use std::sync::atomic::Ordering;
use turnkv_proto::{CheckedSpec, NamespaceId};

/// What was saved of namespaces.
#[derive(Default)]
pub(crate) struct Loaded {
    /// Specs that still check.
    pub(crate) namespaces: Vec<CheckedSpec>,
    /// Every namespace that something is saved of.
    pub(crate) ids: Vec<NamespaceId>,
}

impl Catalog {
    /// Opens or creates the catalog of a tier in a directory.
    pub(crate) fn open(directory: &Path, owner: Owner, clock: Clock) -> Result<Catalog, CatalogError> {
        Catalog::open_with(Box::new(CatalogFile::in_directory(directory)), owner, clock)
    }

    /// What is saved of namespaces, once: as soon as the catalog can be read. Rows that do not check are skipped and said; what
    /// cannot be read at all is set aside. Blocking.
    pub(crate) fn load(&self) -> Option<Loaded> {
        if self.is_loaded.load(Ordering::Relaxed) {
            return None;
        }
        let load = || {
            self.read(|read| Ok(Loaded { namespaces: namespaces::load(read)?, ids: namespaces::ids(read)? }))
        };
        let loaded = match load() {
            Err(error) if error.is_damage() => {
                let set_aside = self.put_aside(&error).and_then(|()| load());
                set_aside.ok()?
            }
            loaded => loaded.ok()?,
        };
        self.is_loaded.store(true, Ordering::Relaxed);
        self.is_rebuilt.store(false, Ordering::Relaxed);
        Some(loaded)
    }
}
