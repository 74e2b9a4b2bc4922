//! What open namespaces are, in their owners' words: the pool knows no more of one than it needs. Owns: the specs of those that are
//! open. Must not know: rows of the catalog, what a spec is wanted for.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use turnkv_proto::{CheckedSpec, NamespaceId};

/// Specs by namespace.
#[derive(Default)]
pub(super) struct Specs(Mutex<BTreeMap<NamespaceId, CheckedSpec>>);

impl Specs {
    /// A namespace was opened. Beyond so many, those that have retired make way.
    pub(super) fn note(&self, spec: &CheckedSpec, specs_max: usize, is_open: impl Fn(&NamespaceId) -> bool) {
        let mut specs = self.0.lock();
        specs.insert(spec.id(), spec.clone());
        if specs.len() > specs_max {
            specs.retain(|id, _| is_open(id));
        }
    }

    /// Whose those are that are open.
    pub(super) fn tenants(&self, is_open: impl Fn(&NamespaceId) -> bool) -> BTreeSet<String> {
        let specs: Vec<(NamespaceId, String)> =
            self.0.lock().iter().map(|(id, spec)| (*id, spec.tenant().to_owned())).collect();
        specs.into_iter().filter(|(id, _)| is_open(id)).map(|(_, tenant)| tenant).collect()
    }

    /// What a namespace is that was opened.
    pub(super) fn find(&self, id: &NamespaceId) -> Option<CheckedSpec> {
        self.0.lock().get(id).cloned()
    }
}
