//! What the catalog has still to write of namespaces. Owns: those that are open, and what of them is not saved. Must not know:
//! how it is written.

use std::collections::{BTreeMap, BTreeSet};
use turnkv_proto::NamespaceId;

/// What waits to be written. Bounded by the pool's limit on namespaces.
#[derive(Default)]
pub(super) struct WaitingRows {
    /// The rows of all namespaces that are open: a catalog that was lost is written again.
    specs: BTreeMap<NamespaceId, Vec<u8>>,
    unsaved: BTreeSet<NamespaceId>,
    gone: BTreeSet<NamespaceId>,
}

impl WaitingRows {
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
        self.gone.insert(id);
    }

    /// The catalog is empty: all that is known is to be written.
    pub(super) fn write_all_again(&mut self) {
        self.unsaved = self.specs.keys().copied().collect();
        self.gone.clear();
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

    pub(super) fn len(&self) -> usize {
        self.unsaved.len() + self.gone.len()
    }
}
