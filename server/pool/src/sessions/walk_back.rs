//! How far a walk over the pages of a session is. Owns: that. Must not know: pages.

/// A walk over the present pages of a session, from the last one back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WalkBack {
    /// Pages from the root that it has still to pass; none: it has not begun.
    pub(super) left: Option<u32>,
}
