//! The catalog: namespaces, sessions and pins across restarts, in an embedded database. Owns: what is in it, and what waits to
//! be. Must not know: pages' bytes or places (the segments tell those).
//!
//! Nothing depends on it but what only it knows: pages whose namespace it has lost wait on NVMe until that is opened again, and
//! the server serves without it.
//!
//! - [`place`]: where its bytes are; [`open`]: opening it, reopening it, setting a damaged one aside; [`owner`]: which tier it is
//!   of; [`guard`]: panics over a damaged file; [`error`]: which failures pass
//! - [`namespaces`], [`sessions`], [`pins`], [`lists`] (those of both, in pieces that they share), [`segments`]: one table each;
//!   [`rows`]: those that have lists; [`waiting`]: what is to be written

mod error;
mod guard;
mod lists;
mod namespaces;
mod open;
mod owner;
mod pins;
mod place;
mod rows;
mod segments;
mod sessions;
mod waiting;

pub(crate) use error::CatalogError;
pub(crate) use lists::ListSource;
pub(crate) use owner::Owner;
pub(crate) use pins::SavedPin;
pub(crate) use place::{CatalogFile, CatalogPlace, file_bytes};
pub(crate) use rows::Written;
pub(crate) use sessions::{SavedRows, SavedSession};

use crate::clock::Clock;
use open::{Store, Trouble};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use turnkv_pool::NamespaceIndex;
use turnkv_proto::{BlockHash, CheckedSpec, NamespaceId, SessionId};
use waiting::WaitingRows;

/// The database, and what is to be written to it.
pub(crate) struct Catalog {
    place: Box<dyn CatalogPlace>,
    owner: Owner,
    clock: Clock,
    /// Held while the disk works.
    store: Mutex<Store>,
    trouble: Mutex<Option<Trouble>>,
    /// Damaged ones since start.
    set_aside: AtomicU64,
    /// What is in it was read.
    is_loaded: AtomicBool,
    /// It was begun anew while the server ran: sessions and pins have to be written again.
    is_rebuilt: AtomicBool,
    waiting: Mutex<WaitingRows>,
    /// Held while rows of namespaces are removed and written: one after the other.
    flushing: Mutex<()>,
    /// Sessions that changed since the last flush. A set: one that changes often is written once a flush. Bounded by the pool's
    /// bound on sessions.
    marked: Mutex<BTreeSet<(NamespaceIndex, SessionId)>>,
    /// Pins that changed since they were written; the same of these, and bounded by their own limit.
    marked_pins: Mutex<BTreeSet<(NamespaceIndex, BlockHash)>>,
    /// Sessions taken from `marked` that are being written.
    saving: AtomicUsize,
    /// Chunks of lists that are saved.
    list_chunks: AtomicU64,
}

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

    /// Whether it was begun anew since the last call: all sessions and pins are to be written.
    pub(crate) fn take_rebuilt(&self) -> bool {
        self.is_rebuilt.swap(false, Ordering::Relaxed)
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
}

#[cfg(test)]
pub(crate) mod tests;
