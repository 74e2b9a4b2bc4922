//! Memory that operations are on, which the kernel may be told of once and for all. Owns: the list. Must not know: who registers it.

use std::sync::Arc;
use turnkv_transfer::Region;

/// The regions.
pub(crate) struct Fixed {
    /// In the order of their numbers.
    pub(crate) slabs: Vec<Arc<Region>>,
    /// What packed bytes pass through.
    pub(crate) bounces: Option<Arc<Region>>,
}
