//! The named bounds of the archive. Owns: every size, queue, wait and retry of this crate. Must not know: settings files.

use std::time::Duration;

/// Bytes of stored blobs at which a pack is written, unless asked otherwise: a request's cost is nothing beside such an object.
pub const PACK_BYTES_DEFAULT: u64 = 32 << 20;
/// The fewest bytes a pack may be asked to have. Below 16 MiB an object store is asked more often than it likes: for small archives
/// and tests.
pub const PACK_BYTES_MIN: u64 = 16 << 10;
/// The most bytes of stored blobs in a pack.
pub const PACK_BYTES_MAX: u64 = 64 << 20;
/// The most bytes of one blob, decoded: a whole shard of a page.
pub const BLOB_BYTES_MAX: u64 = turnkv_proto::limits::SHARD_BYTES_MAX;
/// Blobs of one pack; their index stays below 4 MiB.
pub const PACK_BLOBS_MAX: usize = 65_536;
/// Bytes read from a pack's end in the hope that all of its index is among them.
pub const PACK_TAIL_BYTES: u64 = 64 << 10;
/// Bytes of a manifest, written or read: a million tokens of small pages.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 20;
/// Pages of one manifest.
pub const MANIFEST_PAGES_MAX: usize = 262_144;
/// Shards of all pages of one manifest.
pub const MANIFEST_POSITIONS_MAX: usize = 1 << 20;
/// Sequences of one manifest.
pub const SEQUENCES_MAX: usize = 4096;
/// Token ids of one manifest, over all its sequences.
pub const TOKENS_MAX: usize = 8 << 20;
/// Bytes of a sequence's id.
pub const SEQUENCE_ID_BYTES_MAX: usize = turnkv_proto::limits::SESSION_ID_BYTES_MAX;
/// Ranges of one shard that are K, and as many that are V: two a layer of the largest model, and some.
pub const SPLIT_RANGES_MAX: usize = 4096;
/// Groups of layers in a manifest.
pub const GROUPS_MAX: usize = turnkv_proto::limits::GROUPS_MAX;
/// Packs that a manifest, or an intent, names.
pub const PACKS_NAMED_MAX: usize = 65_536;
/// Values of a manifest's spec, groups and unknown fields: each takes many times its text in memory.
pub const MANIFEST_FREE_VALUES_MAX: usize = 16_384;
/// Bytes of names and texts in these.
pub const MANIFEST_FREE_TEXT_BYTES_MAX: usize = 256 << 10;
/// Bytes of a bookmark: sixteen digits a page, and the rest.
pub const BOOKMARK_BYTES_MAX: u64 = MANIFEST_PAGES_MAX as u64 * 16 + (64 << 10);
/// Bytes of an intent, and of every other small object.
pub const SMALL_OBJECT_BYTES_MAX: u64 = 4 << 20;

/// How long a capture may take, and what is no longer needed is kept, unless the archive was made with another time.
pub const GRACE_DEFAULT: Duration = Duration::from_secs(3600);
/// The shortest grace time: stores tell times in seconds. Only tests want it so short.
pub const GRACE_MIN: Duration = Duration::from_secs(1);
/// The longest grace time.
pub const GRACE_MAX: Duration = Duration::from_secs(30 * 24 * 3600);
/// A capture must begin to write its manifest within so many quarters of the grace time, a collection must end within as many. The
/// rest is for a request that reaches the store late, and for stores that round times to seconds.
pub const GRACE_QUARTERS: u32 = 3;

/// Requests in flight to a store, unless configured.
pub const STORE_REQUESTS_DEFAULT: usize = 16;
/// Requests in flight to a store.
pub const STORE_REQUESTS_MAX: usize = 256;
/// How long one request to a store may take, unless configured: a whole pack over a slow link.
pub const REQUEST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);
/// How long connecting to a store may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Times that a request is made again after a fault that may pass, unless configured.
pub const RETRIES_DEFAULT: u32 = 4;
/// Times that a request may be made again.
pub const RETRIES_MAX: u32 = 10;
/// How long is waited before a request is made again the first time; each time twice as long,
pub const RETRY_PAUSE_MIN: Duration = Duration::from_millis(50);
/// up to this.
pub const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Objects that one listing may name.
pub const LIST_OBJECTS_MAX: usize = 4 << 20;

/// Folders below a folder that is listed: of bookmarks one, that of a session.
pub const FOLDER_DEPTH_MAX: usize = 2;
/// Names that a directory's list is ahead of its reader.
pub const FOLDER_LIST_AHEAD_MAX: usize = 1024;

/// Threads that hash, encode and decode for one archive.
pub const WORKERS_MAX: usize = 16;
/// Pages that a capture hashes and encodes at once, for each worker: one that is worked on and one that is next.
pub const PAGES_AHEAD_PER_WORKER: usize = 2;
/// Bytes of pages that a capture has taken and not yet put into a pack. One page is always taken.
pub const CAPTURE_BYTES_AHEAD_MAX: u64 = 64 << 20;
/// Packs of a capture that are on their way to the store at once, beside the one being filled.
pub const PACKS_IN_FLIGHT_MAX: usize = 2;
/// Pages that a restore reads ahead of its caller.
pub const READ_AHEAD_PAGES_MAX: usize = 16;
/// Bytes of pages that a restore reads ahead of its caller. One page is always read.
pub const READ_AHEAD_BYTES_MAX: u64 = 128 << 20;
/// Times that a blob is looked up again after the pack that had it was gone: a collection moves it at most once a grace time.
pub const LOOKUPS_MAX: u32 = 3;
/// Times that what comes damaged is read before it counts as damaged: an answer may be, and the object not.
pub const READS_MAX: u32 = 2;
/// Indexes of packs, or manifests, that are read at once.
pub const OBJECTS_AT_ONCE: usize = 8;
/// Blobs of an export that are read or written at once.
pub const EXPORT_BLOBS_AT_ONCE: usize = 4;

/// Blobs that are known by their place in memory (about 90 bytes each). Of the packs beyond, oldest first, nothing is known until a
/// manifest needs it: what they hold is not found again by captures.
pub const INDEX_BLOBS_DEFAULT: usize = 4 << 20;
/// Blobs that a collection can mark as needed (16 bytes each).
pub const MARKS_MAX: usize = 64 << 20;
/// Packs whose blobs a collection moves before it condemns or deletes them: one that is out of time has done something.
pub const COLLECT_BATCH_PACKS: usize = 64;
/// A pack of whose bytes less than one in so many parts is needed is rewritten.
pub const REWRITE_SHARE: u64 = 2;
/// Packs with less than one in so many parts of a full pack's bytes are merged, as soon as together they fill half of one.
pub const SMALL_SHARE: u64 = 4;
/// Faults that a report names; more are counted.
pub const FAULTS_NAMED_MAX: usize = 1000;

/// The level of zstd at which exports are written unless asked otherwise, as in the published format.
pub const EXPORT_LEVEL_DEFAULT: i32 = 19;
/// The quickest level of zstd that is taken.
pub const ZSTD_LEVEL_MIN: i32 = 1;
/// The strongest level of zstd that is taken.
pub const ZSTD_LEVEL_MAX: i32 = 22;
/// A blob is stored as it is unless it shrinks by this part of it: less does not pay for decoding.
pub const GAIN_MIN_SHARE: usize = 32;

const _: () = assert!(
    PACK_BYTES_MIN < PACK_BYTES_DEFAULT && PACK_BYTES_DEFAULT <= PACK_BYTES_MAX,
    "a default is allowed"
);
const _: () =
    assert!(PACK_BYTES_MAX + BLOB_BYTES_MAX <= u32::MAX as u64, "an offset in a pack is a u32 in memory");
const _: () = assert!(PACK_TAIL_BYTES >= 64, "a pack's trailer is among its last bytes");
const _: () = assert!(GRACE_QUARTERS < 4, "a capture ends before its grace time does");
const _: () = assert!(MANIFEST_PAGES_MAX <= MANIFEST_POSITIONS_MAX, "a page has a shard");
