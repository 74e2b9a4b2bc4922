//! The named bounds of the tiers. Owns: every queue, table, retry and wait of this crate.
//! Must not know: configuration files, the pool.

use std::time::Duration;

/// Unit of everything on NVMe: O_DIRECT is aligned to it in memory, in the file and in length.
pub const BLOCK_BYTES: u64 = 4096;
/// The same as a length in memory.
pub const BLOCK: usize = BLOCK_BYTES as usize;
/// Bytes of one extent's payload.
pub const PAYLOAD_BYTES_MAX: u32 = 64 << 20;
/// The segment size used when nothing else is asked for.
pub const SEGMENT_BYTES_DEFAULT: u64 = 256 << 20;
/// The smallest segment: a few small extents and their footer.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;
/// The largest segment: its block numbers stay far below 2^32.
pub const SEGMENT_BYTES_MAX: u64 = 16 << 30;
/// A tier needs one open segment, one being reclaimed and room to move between them.
pub const SEGMENTS_MIN: u64 = 4;
/// Segments of one tier (16 TiB at the default size); each is one open file of a directory.
pub const SEGMENTS_MAX: u64 = 65_536;
/// Segments kept prepared ahead of the open one, so that no write waits for a file to be created.
pub const SEGMENTS_READY: usize = 2;
/// Segments only [`crate::nvme::NvmeTier::rewrite`] may take, so that reclaim can always move what is hot.
pub const SEGMENTS_RESERVED: u64 = 1;
/// Reclaim is due when no more than one in so many segments is free,
pub const RECLAIM_FREE_SHARE: u64 = 64;
/// or when no more than this many are.
pub const RECLAIM_FREE_MIN: u64 = 2;
/// Released segments that wait for a sync before it is made for them alone, when others are free;
pub const RELEASES_PER_SYNC: u64 = 4;
/// and how long they wait for such company.
pub const RELEASE_WAIT: Duration = Duration::from_millis(100);
/// Extents of a segment that could not be read before it is never written again.
pub const UNREADABLE_EXTENTS_MAX: u32 = 4;
/// Unreadable blocks that recovery steps over in one segment before it leaves the rest of that segment.
pub const UNREADABLE_BLOCKS_MAX: u32 = 1024;
/// Sequence numbers left out at a start at which something could not be read, so that what is written from
/// then on is the newer one, should that be read again: more than any segment can hold.
pub const UNREADABLE_SEQUENCES: u64 = 1 << 32;
/// Bytes in which a rotten superblock may differ from its copy: with more it may be somebody else's data.
pub const SUPERBLOCK_ROT_BYTES_MAX: usize = 16;
/// Things in a directory that are not the tier's, named in a warning.
pub const STRAYS_NAMED_MAX: usize = 8;
/// Bytes in flight to a device unless configured: several large pages, or hundreds of small ones.
pub const INFLIGHT_BYTES_DEFAULT: u64 = 16 << 20;
/// Operations queued and in flight, unless configured.
pub const QUEUE_OPS_DEFAULT: usize = 16_384;
/// Operations in flight at once, whatever their size. Each may be two submissions of the ring.
pub const INFLIGHT_OPS_MAX: usize = 256;
/// Entries of the ring: both parts of every operation in flight and the wake-up poll fit.
pub const RING_ENTRIES: u32 = 1024;
/// Reads that may start while a write waits before that write starts.
pub const READS_PER_WRITE: u32 = 16;
/// Flush requests waiting for an fdatasync.
pub const FLUSHES_MAX: usize = 65_536;
/// Threads of the blocking engine.
pub const BLOCKING_THREADS: usize = 8;
/// Cores for each thread that decodes and verifies what was read and calls back.
pub const CORES_PER_FINISHER: usize = 4;
/// Threads that decode and verify what was read and call back, at least,
pub const FINISHERS_MIN: usize = 2;
/// and at most.
pub const FINISHERS_MAX: usize = 8;
/// Cores for each thread that packs pages.
pub const CORES_PER_PACKER: usize = 4;
/// Threads that pack pages, at least,
pub const PACKERS_MIN: usize = 2;
/// and at most.
pub const PACKERS_MAX: usize = 8;
/// Share of a processor that a thread which packs or decodes is expected to get.
pub const BUSY_SHARE: f64 = 0.5;
/// Memory for packed pages on their way, in multiples of what is in flight to the device.
pub const BOUNCE_INFLIGHT: u64 = 4;
/// Namespaces whose codec is known; with more, all are measured again.
pub const CHOICES_MAX: usize = 4096;
/// Pages of a namespace on which every codec is measured before one is settled on,
pub const CHOICE_MEASURED: usize = 4;
/// and one of so many from then on.
pub const CHOICE_AGAIN_PAGES: u64 = 1024;
/// Bytes a second of a device of which nothing is known yet.
pub const DEVICE_RATE_DEFAULT: f64 = 2e9;
/// Bytes after which a device's rate is looked at again.
pub const RATE_WINDOW_BYTES: u64 = 64 << 20;
/// Threads that read segments at start.
pub const RECOVERY_THREADS: usize = 4;
/// Bytes recovery reads at a time.
pub const RECOVERY_WINDOW: usize = 4 << 20;
/// Times one part of an operation is tried again after a transient errno, or resumed after a short transfer.
pub const RETRIES_MAX: u32 = 64;
/// Times a read that the device failed (EIO) is made again before its bytes count as unreadable: what is on
/// the way fails now and then, while the bytes are well. Each takes as long as the device needs to say so.
pub const REREADS_MAX: u32 = 2;
/// How long the ring waits before it enters the kernel again after it said EAGAIN or EBUSY with nothing to
/// reap.
pub const RING_BACKOFF: Duration = Duration::from_micros(200);
/// How often a ring that failed looks for operations to refuse.
pub const REFUSE_PAUSE: Duration = Duration::from_millis(10);
/// How often closing looks whether they have ended.
pub const CLOSE_POLL: Duration = Duration::from_millis(1);
/// How long closing waits for operations in flight; after that their thread keeps what they use, forever.
pub const CLOSE_WAIT: Duration = Duration::from_secs(30);
/// How long opening asks for a place's lock: the kernel closes a killed process's files with some delay.
pub const LOCK_WAIT: Duration = Duration::from_secs(1);
/// How often it asks.
pub const LOCK_RETRY: Duration = Duration::from_millis(20);
/// How soon a disk that had no space for a segment is asked again: it may have been full for a moment, and
/// writes wait;
pub const DISK_FULL_RETRY_MIN: Duration = Duration::from_secs(1);
/// each time without success twice as late, up to this: a disk that stays full is not kept busy by being
/// asked.
pub const DISK_FULL_RETRY_MAX: Duration = Duration::from_secs(8);
/// Registered buffers of a ring: what the kernel allows.
pub const RING_BUFFERS_MAX: usize = 16_384;
/// Bytes of one registered buffer: what the kernel allows.
pub const RING_BUFFER_BYTES_MAX: usize = 1 << 30;
/// How long a call waits before it is made again when the system was short of memory or descriptors.
pub const SHORT_PAUSE: Duration = Duration::from_millis(1);
/// How long the keeper waits before a chore that the system was short of something for is tried again.
pub const SHORT_RETRY: Duration = Duration::from_millis(500);
/// File descriptors left to the rest of the process when segments take theirs.
pub const SPARE_FDS: u64 = 256;
/// File descriptors of a tier beside its segments: the place, its lock, the ring, its wake-up, and room for
/// two more.
pub const TIER_FDS: u64 = 6;
/// Slabs of the DRAM tier.
pub const SLABS_MAX: u32 = 65_536;
/// Places of slabs that are made at a time.
pub(crate) const SLAB_PLACES_AT_ONCE: usize = 64;
/// Threads that create slabs at start: touching memory for the first time is slow.
pub const SLAB_THREADS_MAX: usize = 8;
/// How long a start puts kept memory that lies scattered on huge pages again: its pages are to be served soon.
pub const KEPT_COLLAPSE_MAX: Duration = Duration::from_millis(100);
/// Bytes of memory left to the rest of the host when the DRAM budget is checked.
pub const HOST_SPARE_BYTES: u64 = 64 << 20;

const _: () = assert!(2 * INFLIGHT_OPS_MAX < RING_ENTRIES as usize, "every part in flight has a ring entry");
const _: () = assert!(SEGMENT_BYTES_MAX / BLOCK_BYTES <= u32::MAX as u64, "a block number is a u32");
const _: () = assert!(SEGMENTS_RESERVED < SEGMENTS_MIN, "a reserve leaves room for ordinary writes");
const _: () = assert!(SEGMENTS_RESERVED < RECLAIM_FREE_MIN, "reclaim starts before only the reserve is left");
const _: () =
    assert!(PAYLOAD_BYTES_MAX as u64 == turnkv_proto::limits::SHARD_BYTES_MAX, "any shard fits an extent");
const _: () = assert!(
    (SHORT_PAUSE.as_millis() as u32 * RETRIES_MAX) < CLOSE_WAIT.as_millis() as u32,
    "a call that is tried again ends before closing gives up"
);
const _: () =
    assert!(REREADS_MAX < RETRIES_MAX, "a device that fails is asked less often than one that is busy");
const _: () = assert!(
    DISK_FULL_RETRY_MIN.as_millis() <= DISK_FULL_RETRY_MAX.as_millis(),
    "a disk is asked ever more rarely"
);
const _: () = assert!(RECOVERY_WINDOW.is_multiple_of(BLOCK), "recovery reads whole blocks");
const _: () =
    assert!(UNREADABLE_SEQUENCES > SEGMENT_BYTES_MAX / BLOCK_BYTES, "more than a segment's extents");
const _: () = assert!(SEGMENTS_MAX <= 1 << u16::BITS, "a segment's number is a u16");
