//! Why and how pages go, and what they make room for. Owns: these words. Must not know: which page goes.

use crate::ids::{NONE, Now};

/// Why a page leaves the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    /// Room was needed.
    Evicted,
    /// Lost, corrupt, or by command.
    Dropped,
}

/// How a page gives up its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eviction {
    /// It stays on NVMe.
    Demote,
    /// It was the last copy.
    Drop,
}

/// What room is being made for: it says who need not make way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    /// The page that the room is for, which must not make way itself; `NONE`: no page, or no room is being
    /// made.
    pub(super) page: u32,
    /// When the session returns for which a prefetch makes room: no page makes way that returns sooner.
    pub(super) returns_at: Option<Now>,
}

impl Search {
    /// No room is being made for any page.
    pub(crate) const NONE: Search = Search { page: NONE, returns_at: None };
}
