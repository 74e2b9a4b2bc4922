//! What is said between a tier behind DRAM and its owner: places, extents' meta data, outcomes, gauges.
//! Owns: this vocabulary. Must not know: which tiers exist, the pool, sessions, gRPC.

use turnkv_proto::{BlockHash, NamespaceId};

/// Where an extent is: a segment, which use of it, and its header's place in units of 4 KiB from the segment's start.
/// A location of an earlier use names nothing: reading it is stale, forgetting it does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// The segment.
    pub segment: u16,
    /// Which use of the segment, in this process's time.
    pub generation: u16,
    /// The block of the extent's header.
    pub block: u32,
}

/// What an extent says about its payload: one shard of one page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentMeta {
    /// The page's namespace.
    pub namespace: NamespaceId,
    /// The page's block hash.
    pub hash: BlockHash,
    /// The page before it; none at the root.
    pub parent: Option<BlockHash>,
    /// Which shard of the page.
    pub shard: u16,
    /// How many shards the page has.
    pub shards: u16,
    /// Above 0: the page is a partial tail of so many tokens.
    pub tail_tokens: u32,
    /// Length of the payload.
    pub payload_bytes: u32,
    /// CRC-64/NVME of the payload.
    pub checksum: u64,
}

/// Called exactly once with an operation's outcome: on a thread of the tier, where it must be quick; or, when the
/// tier refuses at the door (busy, poisoned, closed, full, stale, invalid), on the caller's thread before the
/// call returns. So never call a tier while holding a lock that the call-back takes.
pub type Done<T> = Box<dyn FnOnce(Result<T, TierError>) + Send>;

/// Why an operation failed, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TierError {
    /// The queue is full, or the system is short of memory or descriptors: try later.
    #[error("the tier cannot take this now: try later")]
    Busy,
    /// The bytes given to be written are not those of their checksum: drop the page; nothing of it was kept.
    #[error("the bytes to be written do not match their checksum")]
    Changed,
    /// The bytes read are not those that were written: drop the page.
    #[error("the bytes at segment {} block {} do not match their checksum", .0.segment, .0.block)]
    Checksum(Location),
    /// The device cannot read the extent: drop the page. The device stays in service.
    #[error("segment {} block {} cannot be read from the device", .0.segment, .0.block)]
    Unreadable(Location),
    /// The extent is gone: its segment was released, or it was forgotten.
    #[error("no extent at segment {} block {}", .0.segment, .0.block)]
    Stale(Location),
    /// No segment is free: reclaim, then write again.
    #[error("no free segment: reclaim first")]
    Full,
    /// The device failed in this write or flush; it is poisoned from now on.
    #[error("I/O error: {0}")]
    Io(String),
    /// The device failed earlier and is out of service: nothing on it can be trusted to be kept.
    #[error("the device is out of service after an earlier I/O error")]
    Poisoned,
    /// The tier is shutting down.
    #[error("the tier is closed")]
    Closed,
    /// The request breaks a rule of this interface; the text names it.
    #[error("invalid request: {0}")]
    Invalid(&'static str),
}

/// A tier's gauges and counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The most it may hold. Shrinks when the disk has less than was configured.
    pub capacity_bytes: u64,
    /// What is taken from it: segments in use, whole.
    pub used_bytes: u64,
    /// Bytes of live extents, headers and padding included.
    pub live_bytes: u64,
    /// Live extents.
    pub live_extents: u64,
    /// Segments that new extents could still take.
    pub free_segments: u64,
    /// Payload bytes read and verified since start.
    pub read_bytes: u64,
    /// Payload bytes written since start.
    pub written_bytes: u64,
    /// The same as they were stored: fewer where pages were packed.
    pub stored_bytes: u64,
    /// Bytes written to the device since start: payload, headers, footers and padding.
    pub device_written_bytes: u64,
    /// Reads that completed.
    pub reads: u64,
    /// Writes that completed.
    pub writes: u64,
    /// fdatasync calls made for flushes and for released segments: fewer than flushes when they share.
    pub syncs: u64,
    /// Rounds of fdatasync made so that released segments could be used again.
    pub release_syncs: u64,
    /// Released segments that wait for such a round.
    pub waiting_segments: u64,
    /// Extents that the device could not read.
    pub unreadable_extents: u64,
    /// Segments that are not written again, because several extents, or what they say of themselves, could not be read.
    pub retired_segments: u64,
    /// Segments that were not as they had been written when the tier was opened, in their headers or lengths.
    pub damaged_segments: u64,
    /// Reads whose bytes did not verify.
    pub checksum_failures: u64,
    /// Writes whose source did not verify when it had been written.
    pub changed_writes: u64,
    /// Times the system was short of memory or descriptors for the tier.
    pub shortages: u64,
    /// It is so now: what waits is tried again after a pause.
    pub short: bool,
    /// Segments beyond a capacity that was lowered, which are still to be emptied.
    pub surplus_segments: u64,
    /// Bytes of operations given to the device and not finished.
    pub inflight_bytes: u64,
    /// Operations accepted and not finished.
    pub queued_ops: u64,
    /// The device is out of service.
    pub poisoned: bool,
    /// The disk refused a new segment: it is full.
    pub disk_full: bool,
}
