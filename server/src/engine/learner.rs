//! What was learned, on its way to the catalog. Owns: what is saved already, and what is to be next. Must not know: what a save does.

use std::collections::BTreeMap;
use turnkv_proto::NamespaceId;

/// What is saved, and what comes next.
#[derive(Default)]
pub(super) struct LearnedSaves {
    /// What was learned before was read, or nothing is: from then on it may be written over.
    pub(super) loaded: bool,
    /// Flushes since the last save.
    pub(super) flushes: u32,
    /// Of the open namespaces, the one that comes next.
    pub(super) next: usize,
    /// Checksums of what is saved: what did not change is not written. Bounded by
    /// `LEARNED_NAMESPACES_MAX`, and one more.
    pub(super) saved: BTreeMap<Option<NamespaceId>, u64>,
}
