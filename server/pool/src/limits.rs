//! The named bounds of the pool's own work. Owns: constants. Must not know: configuration (config.rs has what an operator sets).

/// Slots are cut in multiples of this, so that O_DIRECT can read and write them in place.
pub const SLOT_ALIGN_BYTES: u64 = 4096;
/// Bytes of the smallest slab.
pub const SLAB_BYTES_MIN: u64 = 64 << 10;
/// Bytes of the largest slab.
pub const SLAB_BYTES_MAX: u64 = 1 << 40;
/// Shards of a page (tensor-parallel ranks).
pub const SHARDS_MAX: u16 = 256;
/// Tokens of a page: a partial tail is shorter.
pub const PAGE_TOKENS_MAX: u32 = 4096;
/// Bytes of a tenant's name.
pub const TENANT_BYTES_MAX: usize = 128;
/// Hashes in one call.
pub const HASHES_PER_CALL_MAX: usize = turnkv_proto::limits::HASHES_PER_CALL_MAX;
/// Pages that cannot go which one search for a victim takes out of the way; the next search goes on behind them.
pub const VICTIM_SCAN_MAX: u32 = 1 << 16;
/// Pages looked at for an entry to give up before the search gives up for this time.
pub const ENTRY_SCAN_MAX: u32 = 256;
/// A day.
pub const DAY_MS: u64 = 24 * 3600 * 1000;
/// The write budget of so long may be spent at once.
pub const BUDGET_BURST_MS: u64 = 3600 * 1000;
/// What waits to be written is at most NVMe divided by this.
pub const BACKLOG_SHARE: u64 = 8;
/// Runs of pages whose age may reach its next bucket in one call.
pub const RUN_CHANGES_PER_TICK_MAX: usize = 1024;
/// Evicted pages that a policy remembers at least; else as many as are listed.
pub const GHOSTS_MIN: usize = 1024;
/// Reads that `s3fifo` counts.
pub const POLICY_READS_MAX: u16 = 3;
/// Counters of `tinylfu`, at least and at most (a byte each).
pub const SKETCH_COUNTERS_MIN: usize = 1 << 12;
/// See above.
pub const SKETCH_COUNTERS_MAX: usize = 1 << 24;
/// A turn protects its session's pages for so long.
pub const IN_TURN_MS_MAX: u64 = 600_000;
/// Turns of a session that the learned policy tells apart, in doublings.
pub const SESSION_CLASSES_TURN_MAX: u32 = 5;
/// Pages evicted in one call to empty a slab for another namespace.
pub const DRAIN_PAGES_PER_CALL_MAX: u32 = 512;
/// Evictions in its own slabs after which a namespace compares itself with the coldest slab of the others.
pub const REBALANCE_EVERY_EVICTIONS: u32 = 64;
/// Pages demoted by one call of `maintain`.
pub const MAINTAIN_PAGES_PER_CALL_MAX: u32 = 1024;
/// Pages one prefetch call promotes.
pub const PROMOTIONS_PER_CALL_MAX: usize = 1024;
/// Ancestors marked as used by one reload.
pub const TOUCH_ANCESTORS_MAX: u32 = 1024;
/// Siblings looked at to decide whether a superseded page still has a use.
pub const VICTIM_CHILDREN_MAX: u32 = 16;
/// Sessions whose return is announced by one call of `take_returning`.
pub const RETURNS_PER_CALL_MAX: usize = 64;
/// Sessions in one list answer.
pub const SESSION_LIST_MAX: usize = 10_000;
/// From so many percent of NVMe full of live pages, only what is also in DRAM is worth writing again.
pub const HOT_DRAM_PERCENT: u128 = 75;
/// From so many percent, nothing is.
pub const HOT_NONE_PERCENT: u128 = 90;
/// Forgotten sessions remembered until they are asked for.
pub const FORGOTTEN_MAX: usize = 10_000;
/// Pages in one chunk of the arena.
pub(crate) const CHUNK_PAGES: usize = 1024;
/// Rows in one chunk of a sharded namespace's side table.
pub(crate) const CHUNK_ROWS: usize = 256;
/// Stale keys the write queue tolerates beyond the dirty pages before it is compacted.
pub(crate) const WRITE_QUEUE_SLACK: usize = 1024;

const _: () = assert!(SLAB_BYTES_MIN.is_multiple_of(SLOT_ALIGN_BYTES));
const _: () = assert!(HOT_DRAM_PERCENT < HOT_NONE_PERCENT);
const _: () = assert!(PAGE_TOKENS_MAX <= u16::MAX as u32, "entries keep tail tokens in 16 bits");
