//! The small handles that the pool and its callers exchange.
//! Owns: keys of pages, slots, leases, clients, places. Must not know: what the pool does with them.

/// A moment in milliseconds on the caller's monotonic clock.
pub type Now = u64;

/// A namespace that was opened in this pool: its place in the pool's tables, and which life of that place it
/// is. Once the namespace is retired the index is stale and names nothing, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NamespaceIndex(pub u16, pub u32);

impl NamespaceIndex {
    /// The place and its life in one number, which no other namespace of this pool ever has.
    #[must_use]
    pub fn number(self) -> u64 {
        u64::from(self.0) << 48 | u64::from(self.1)
    }
}

/// A stable handle to a page. Once the page is gone the handle is stale and names nothing, ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey {
    /// Which entry of the index.
    pub index: u32,
    /// Which use of that entry.
    pub generation: u32,
}

/// A slot of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotKey {
    /// Which slab.
    pub slab: u32,
    /// Which slot of the slab as it is cut now.
    pub slot: u32,
}

/// Where a slot's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotPlace {
    /// Which slab.
    pub slab: u32,
    /// Which memory file of the slab: it changes with the tenant.
    pub generation: u32,
    /// Bytes from the start of the slab.
    pub offset: u64,
    /// Bytes of one shard of a page (the slot itself is rounded up to 4 KiB).
    pub bytes: u64,
}

/// Where an extent is on NVMe; the tier gives these out and the pool only remembers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NvmePlace {
    /// Which segment.
    pub segment: u16,
    /// Which use of the segment.
    pub generation: u16,
    /// Which 4 KiB block of the segment.
    pub block: u32,
}

/// A client process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// Whose processes clients are: a user of this host, or of elsewhere. The default: nobody said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserId(pub u64);

/// A lease; never 0 and never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId(pub u64);

/// Why a page is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MissCause {
    /// Never offloaded, or evicted.
    Absent,
    /// Its bytes did not verify.
    Checksum,
    /// Its device failed.
    Io,
    /// No slot, or no turn in a queue, in time: the page itself is well.
    Busy,
    /// Another shard of it is missing.
    Incomplete,
}

/// What became of an extent, for whoever keeps the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceNote {
    /// Nobody needs it any more: so many bytes.
    Dead(u64),
    /// Its bytes have another place now: so many.
    Moved(u64),
    /// Its page goes before others (`true`), or does not any more. To be kept across restarts.
    Leaving(bool),
}

/// No entry, slot or slab.
pub(crate) const NONE: u32 = u32::MAX;
