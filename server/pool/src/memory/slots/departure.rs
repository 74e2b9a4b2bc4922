//! A slab on its way out. Owns: what is known of that. Must not know: how it is emptied.

use crate::ids::Now;

/// What keeps a slab that is to leave, in slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Under leases: being read or written, mapped, or in quarantine.
    pub(crate) leased: u32,
    /// Being written to NVMe, read from it, or waiting for that.
    pub(crate) moving: u32,
    /// Protected, and nowhere else.
    pub(crate) protected: u32,
}

/// A slab on its way out.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    pub(crate) slab: u32,
    /// Slots before this one were looked at in this round.
    pub(crate) at: u32,
    /// What kept them.
    pub(crate) seen: Kept,
    /// What kept the slab in the round before.
    pub(crate) kept: Kept,
    /// Since when nothing but leases keeps it; 0: that is not so.
    pub(crate) leased_since: Now,
}
