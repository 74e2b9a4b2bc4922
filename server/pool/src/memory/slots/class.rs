//! How slabs are cut for one namespace. Owns: what is known of that. Must not know: which slot is whose.

/// How slabs are cut for one namespace.
pub(crate) struct SlotClass {
    pub(super) shard_bytes: u64,
    pub(crate) slot_bytes: u64,
    pub(crate) per_slab: u32,
    pub(in crate::memory) tenant: u32,
    /// First slab with a free slot.
    pub(super) partial: u32,
    /// Slabs with pages of this namespace.
    pub(crate) slabs: u32,
    pub(crate) used: u64,
    /// Slots that are free in slabs on their way out: none of them is given out.
    pub(crate) idle: u64,
    /// Slots under leases.
    pub(crate) leased: u64,
    pub(super) evictions: u32,
}
