//! What the catalog has still to write. Owns: the namespaces that are open, and what of them and of pins is not saved. Must not
//! know: how it is written.

use super::pins::SavedPin;
use crate::limits::CATALOG_PINS_WAITING_MAX;
use std::collections::{BTreeMap, BTreeSet};
use turnkv_proto::{BlockHash, NamespaceId};

/// A pin by its namespace and its last page.
pub(super) type PinKey = (NamespaceId, BlockHash);

/// What waits to be written. Bounded: namespaces by the pool's limit on them, pins by their own.
#[derive(Default)]
pub(super) struct Waiting {
    /// The rows of all namespaces that are open: a catalog that was lost is written again.
    specs: BTreeMap<NamespaceId, Vec<u8>>,
    unsaved: BTreeSet<NamespaceId>,
    gone: BTreeSet<NamespaceId>,
    /// None: the pin ended.
    pins: BTreeMap<PinKey, Option<SavedPin>>,
}

impl Waiting {
    /// The row of a namespace that is open. `saved`: the catalog has it.
    pub(super) fn note(&mut self, id: NamespaceId, row: Vec<u8>, saved: bool) {
        self.specs.insert(id, row);
        if !saved {
            self.unsaved.insert(id);
        }
    }

    /// A namespace is not to be kept: all rows of it are to go, before one of the same id is written again.
    pub(super) fn forget(&mut self, id: NamespaceId) {
        self.specs.remove(&id);
        self.unsaved.remove(&id);
        self.pins.retain(|(of, _), _| *of != id);
        self.gone.insert(id);
    }

    /// The catalog is empty: all that is known is to be written.
    pub(super) fn write_all_again(&mut self) {
        self.unsaved = self.specs.keys().copied().collect();
        self.gone.clear();
    }

    /// Adds a change of a pin. False: too many wait already.
    pub(super) fn put_pin(&mut self, key: PinKey, pin: Option<SavedPin>) -> bool {
        let room = self.pins.len() < CATALOG_PINS_WAITING_MAX || self.pins.contains_key(&key);
        if room {
            self.pins.insert(key, pin);
        }
        room
    }

    /// Namespaces of which all rows are to go.
    pub(super) fn gone(&self) -> Vec<NamespaceId> {
        self.gone.iter().copied().collect()
    }

    pub(super) fn is_gone(&self, id: &NamespaceId) -> bool {
        self.gone.contains(id)
    }

    pub(super) fn forgotten(&mut self, id: &NamespaceId) {
        self.gone.remove(id);
    }

    /// Rows of namespaces to write: not those whose old rows are to go first.
    pub(super) fn take_unsaved(&mut self) -> Vec<(NamespaceId, Vec<u8>)> {
        let now = |id: &NamespaceId| !self.gone.contains(id);
        let ids: Vec<NamespaceId> = self.unsaved.extract_if(.., now).collect();
        ids.into_iter().filter_map(|id| Some((id, self.specs.get(&id)?.clone()))).collect()
    }

    pub(super) fn unsaved_again(&mut self, rows: Vec<(NamespaceId, Vec<u8>)>) {
        self.unsaved.extend(rows.into_iter().map(|(id, _)| id).filter(|id| self.specs.contains_key(id)));
    }

    pub(super) fn take_pins(&mut self) -> Vec<(PinKey, Option<SavedPin>)> {
        std::mem::take(&mut self.pins).into_iter().collect()
    }

    /// Pins that were not written; one that changed meanwhile stays as it is now.
    pub(super) fn pins_again(&mut self, pins: Vec<(PinKey, Option<SavedPin>)>) {
        for (key, pin) in pins {
            self.pins.entry(key).or_insert(pin);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.unsaved.len() + self.gone.len() + self.pins.len()
    }
}
