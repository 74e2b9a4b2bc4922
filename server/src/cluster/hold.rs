//! What a member is to hold of another one's. Owns: the words for it. Must not know: how it travels, who is asked.

use turnkv_proto::{BlockHash, CheckedSpec};

/// A prefix that a member is to hold.
#[derive(Debug, Clone)]
pub(crate) struct PrefixHold {
    /// What its namespace is: that member may not have it open.
    pub(crate) spec: CheckedSpec,
    /// Its last page.
    pub(crate) last: BlockHash,
    /// For how long; 0: no longer.
    pub(crate) ttl_ms: u64,
}

/// Why a member does not hold one.
#[derive(Debug, Clone)]
pub(crate) struct NotHeld {
    pub(crate) why: String,
    /// It says so itself, or was never asked; where it does not answer it may hold it all the same.
    pub(crate) is_sure: bool,
}
