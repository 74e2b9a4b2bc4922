//! The named bounds of the pool's own work. Owns: constants. Must not know: configuration (config.rs has what
//! an operator sets).

use turnkv_proto::limits::SHARDS_MAX;

/// Steps after which a call that can be cut returns, to go on in its next one. A step is a page, a slot or a
/// list entry that is looked at or changed: whoever holds a lock around the pool lets go of it between two
/// calls.
pub const STEPS_PER_SLICE: u64 = 2048;
/// Steps that no call takes more of, however much it was asked: what others wait for at most. The last page
/// of a slice may still search for its room.
pub const STEPS_PER_CALL_MAX: u64 = 24 * 1024;
/// Steps that the work for one page may take: unfinished pages that are dropped for it (half a slice, and a
/// walk down), the search for a victim and for a deferred one, a slab drained for it, and the page itself.
pub const STEPS_PER_PAGE_MAX: u64 =
    6 * VICTIM_SCAN_MAX as u64 + VICTIM_MOVES_MAX + 2 * DRAIN_STEPS_PER_CALL_MAX + 1024;
/// Steps of one call that empties slabs.
pub const DRAIN_STEPS_PER_CALL_MAX: u64 = 4096;
/// Rows of a table, or pages of a path, that count as one step when they are only passed.
pub(crate) const PASSED_PER_STEP: u64 = 16;
/// Pages of a path that are looked for at a time.
pub(crate) const FIND_PAGES_AT_ONCE: usize = 256;
/// Rows of the leases' table passed at a time in search of those of a client that is gone.
pub(crate) const GONE_ROWS_PER_LOOK_MAX: usize = 1024;
/// Pages of one lease: what ends a lease is done in one call.
pub const LEASE_PAGES_MAX: u32 = turnkv_proto::limits::LEASE_PAGES_MAX as u32;
/// Pages whose removal, with all that hangs on them, is not finished; beyond it a page that does not verify
/// stays, and is found again by its next reader.
pub const CONDEMNED_MAX: usize = 1 << 16;
/// How long a page waits at most for shards that did not come, unless a lease is longer.
pub const UNFINISHED_MS_MAX: u64 = 60_000;
/// Rows of pages that wait for more of their shards, some of which are whole by now; beyond it the first of
/// them go.
pub const UNFINISHED_MAX: usize = 1 << 20;
/// Branches that sessions left and whose pages are not marked yet; beyond it they go by age.
pub const LEFT_BRANCHES_MAX: usize = 1 << 16;
/// Entries of the write queue that are looked at for each one that comes, while many of them are stale.
pub(crate) const SIFTED_PER_WRITE_MAX: u64 = 2;
/// The same each time the pool looks after itself.
pub(crate) const SIFTED_PER_LOOK_MAX: u64 = 8192;
/// Pages below one that is on NVMe now which are found to be durable with it; others are when somebody asks.
pub const DURABLE_PAGES_PER_WRITE_MAX: usize = 256;
/// Pages read lately that one look for a victim lets go round once more; where all of them were, the first
/// goes all the same.
pub const VICTIM_MOVES_MAX: u64 = 256;
/// Pins that ended and whose owner was not told yet; beyond it they are found at the next start.
pub const ENDED_PINS_MAX: usize = 4096;
/// What held leases may take of a client's share and of DRAM: the rest is for pages that are only copied.
pub const HELD_PERCENT_MAX: u64 = 75;
/// Slabs that are emptied at a time while DRAM shrinks: those that follow are chosen by what was used meanwhile.
pub const LEAVING_SLABS_MAX: usize = 16;
/// How long a slab that is to leave may be kept by nothing but leases before another one leaves instead, where one can.
pub const LEAVING_PATIENCE_MS: u64 = 1_000;
/// Slots are cut in multiples of this, so that O_DIRECT can read and write them in place.
pub const SLOT_ALIGN_BYTES: u64 = 4096;
/// Bytes of the smallest slab.
pub const SLAB_BYTES_MIN: u64 = 64 << 10;
/// Bytes of the largest slab.
pub const SLAB_BYTES_MAX: u64 = 1 << 40;
/// Tokens of a page: a partial tail is shorter.
pub const PAGE_TOKENS_MAX: u32 = 4096;
/// Bytes of a tenant's name.
pub const TENANT_BYTES_MAX: usize = 128;
/// Namespaces that may be open.
pub const NAMESPACES_MAX: u16 = 65_000;
/// Namespaces that retire at one time: until one is gone no other one makes way.
pub const NAMESPACES_RETIRING_MAX: usize = 256;
/// A namespace that holds something is not retired so soon after it was used: no turn is silent for longer.
pub const NAMESPACE_SPARED_MS: u64 = SILENT_TURN_MS;
/// Pages, sessions and pins looked at or dropped in one call for namespaces that retire.
pub const RETIRE_STEPS_PER_CALL: u32 = 1024;
/// Tenants whose names are remembered although they have neither a namespace nor memory that was theirs.
pub const TENANTS_KEPT: usize = 1024;
/// Shards of pages that one call takes into the index for a namespace that was opened.
pub const ADOPT_SHARDS_PER_CALL: usize = 512;
/// Pages whose order of use from before a start one call restores.
pub const USES_PER_CALL_MAX: usize = 512;
/// How long extents of a namespace that nobody opens are kept after a start.
pub const STRANGERS_MS_MAX: u64 = 24 * 3600 * 1000;
/// Extents of strangers that one call forgets.
pub const STRANGERS_PER_CALL: usize = 4096;
/// Hashes in one call.
pub const HASHES_PER_CALL_MAX: usize = turnkv_proto::limits::HASHES_PER_CALL_MAX;
/// Hashes that are looked up in one go where others wait.
pub const HASHES_PER_LOOK_MAX: usize = 2048;
/// Tokens after which a namespace's older prefill reports count half.
pub const PREFILL_WINDOW_TOKENS: u64 = 4 << 20;
/// Steps in which a session's protection decays: its tails are let go first.
pub const DECAY_STEPS: u64 = 8;
/// Share of DRAM that the protected pages of all tenants together may weigh, percent: the rest always gives
/// way.
pub const PROTECTED_ALL_PERCENT: u8 = 50;
/// Pins and protected sessions of one tenant.
pub const PROTECTIONS_PER_TENANT_MAX: usize = 4096;
/// Pages of one protection that are let go of at a time.
pub const LET_GO_PAGES_AT_ONCE: u32 = 256;
/// The longest time for which anything is protected without being renewed.
pub const PROTECTION_MS_MAX: u64 = 24 * 3600 * 1000;
/// How long a pin holds whose owner named no time.
pub const PIN_MS_DEFAULT: u64 = 3600 * 1000;
/// How long a session with a priority is protected whose owner named no time.
pub const RETENTION_MS_DEFAULT: u64 = 600 * 1000;
/// A turn of which nothing was heard for so long no longer keeps its session from being forgotten for another
/// one of its tenant.
pub const SILENT_TURN_MS: u64 = 600 * 1000;
/// Sessions that were used since they took their place in the order of those that make way, and that one
/// search puts back.
pub const LATE_SESSIONS_PER_PICK_MAX: u64 = 64;
/// Pages that cannot go which one search for a victim parks; the next search goes on behind them.
pub const VICTIM_SCAN_MAX: u32 = 1 << 11;
/// Pages looked at for an entry to give up before the search gives up for this time.
pub const ENTRY_SCAN_MAX: u32 = 256;
/// Pages that hang on one another which a search for a victim goes down.
pub const TAIL_WALK_MAX: u32 = 256;
/// Pages that one search for a prefetch's room passes.
pub const PREFETCH_SCAN_MAX: u32 = 256;
/// Pages that one namespace defers; beyond it pages that should go last go like any other.
pub const DEFERRED_VICTIMS_MAX: usize = 1 << 16;
/// Deferred pages that one call of `maintain` looks at again, of each namespace.
pub const DEFERRED_REVIEWED_PER_CALL: usize = 256;
/// A day.
pub const DAY_MS: u64 = 24 * 3600 * 1000;
/// The write budget of so long may be spent at once.
pub const BUDGET_BURST_MS: u64 = 3600 * 1000;
/// Bytes that wait to be written are at most the bytes of NVMe divided by this.
pub const BACKLOG_SHARE: u64 = 8;
/// Runs of pages whose age may reach its next bucket in one call.
pub const RUN_CHANGES_PER_TICK_MAX: usize = 1024;
/// Evicted pages that a policy remembers at least; else as many as are listed.
pub const GHOSTS_MIN: usize = 1024;
/// Reads that `s3fifo` counts.
pub const POLICY_READS_MAX: u8 = 3;
/// Counters of `tinylfu` at least, a byte each.
pub const SKETCH_COUNTERS_MIN: usize = 1 << 12;
/// Counters of `tinylfu` at most.
pub const SKETCH_COUNTERS_MAX: usize = 1 << 24;
/// Milliseconds for which a turn that does not end keeps its session's pages from being evicted.
pub const IN_TURN_MS_MAX: u64 = 600_000;
/// Pages of a turn that are counted when it asks for room: larger turns are of one class.
pub const NEWCOMER_PAGES_MAX: u32 = 256;
/// Lead, in eighths of an octave of return rate, that a resident page needs before a newcomer is declined:
/// chances that differ by less are one chance, learned at two moments.
pub const OUTRANK_MARGIN: u32 = 2;
/// Returns of sessions that must have been seen before any newcomer is declined: from those who stay away
/// alone, ages that nobody has reached yet seem better than those that are known.
pub const OUTRANK_RETURNS_MIN: u32 = 32;
/// Pages evicted in one call to empty slabs for another namespace.
pub const DRAIN_PAGES_PER_CALL_MAX: u32 = 512;
/// Evictions in its own slabs after which a namespace compares itself with the coldest slab of the others.
pub const REBALANCE_EVERY_EVICTIONS: u32 = 64;
/// Links that one look for a leaf goes down to drain a slab.
pub const LEAF_WALK_MAX: u64 = 1 << 14;
/// Pages one prefetch call promotes.
pub const PROMOTIONS_PER_CALL_MAX: usize = 1024;
/// Ancestors marked as used by one reload, or by one lease that keeps a slab from being emptied.
pub const TOUCH_ANCESTORS_MAX: u32 = 1024;
/// Siblings looked at to decide whether a superseded page still has a use.
pub const VICTIM_CHILDREN_MAX: u32 = 16;
/// Sessions whose prefetch is looked at until some reads have landed.
pub const RETURNS_UNTIL_LANDED_MAX: usize = 64;
/// How long before its return, at least, a session's pages are read into DRAM; for so long they go last
/// there.
pub const PREFETCH_AHEAD_MS: u64 = 2_000;
/// What a prefetch counts on being read in a millisecond beside other work: large sessions are begun earlier.
pub const PREFETCH_BYTES_PER_MS: u64 = 256 << 10;
/// When a prefetch that found no slot is tried again.
pub const PREFETCH_RETRY_MS: u64 = 200;
/// How long a session that is late is still expected.
pub const RETURN_GRACE_MS: u64 = 5_000;
/// Slots note when their page is needed in this unit.
pub(crate) const RETURN_UNIT_MS: u64 = 100;
/// Places of the sessions' table that one call reads names from.
pub const NAMES_PER_CALL: u32 = 1024;
/// Pages of a session that one step of the end of its turn goes over.
pub const TURN_PAGES_PER_STEP: usize = 1024;
/// Sessions that one call of `expire` forgets, or puts back because they were used since.
pub const SESSIONS_LATE_PER_CALL_MAX: usize = 256;
/// Sessions in one list answer.
pub const SESSION_LIST_MAX: usize = 10_000;
/// Pages that are chosen to leave NVMe for each one that comes.
pub const LEAVING_PER_WRITE_MAX: u32 = 4;
/// Pages that are chosen to leave NVMe each time the pool looks after itself: only a tier that became smaller
/// has so many.
pub const LEAVING_PER_LOOK_MAX: u32 = 256;
/// Pages that give up their place on NVMe in one call.
pub const LEAVE_PAGES_PER_CALL_MAX: u32 = 1024;
/// Pages of one pass of reclaim that are on their way elsewhere at a time.
pub const PASS_MOVES_INFLIGHT_MAX: usize = 8;
/// Share of a segment that one pass of reclaim may write again, percent: a pass always wins space.
pub const PASS_MOVES_PERCENT_MAX: u64 = 85;
/// How long one pass may take before it is given up, and tried again another time.
pub const PASS_MS_MAX: u64 = 20_000;
/// How long a page that is to stay waits for a slot to be read into, while the pass moves nothing else, before
/// it goes.
pub const PASS_SLOT_WAIT_MS: u64 = 500;
/// Percent of NVMe that pages keep however few its segments are.
pub const KEPT_PERCENT_MIN: u64 = 20;
/// NVMe is taken for a copy of DRAM where pages may keep fewer bytes of it than DRAM has, divided by this.
pub const NVME_BESIDE_DRAM_SHARE: u64 = 4;
/// NVMe is large where pages may keep more bytes of it than DRAM has, divided by this; a smaller one takes
/// pages that were left off it only into room that it has.
pub const NVME_LARGE_SHARE: u64 = 2;
/// Bytes that may be written again on NVMe, in percent of the bytes that come to it.
pub const REWRITE_PERCENT_MAX: u64 = 50;
/// Bytes that stay in a segment are written again, whatever came before, if they are no more than the segment
/// divided by this: that frees twice what moves.
pub const REWRITE_CHEAP_SHARE: u64 = 3;
/// Bytes that stay are written again, whatever came before, if those of all segments are no more than NVMe
/// divided by this.
pub const REWRITE_ROOMY_SHARE: u64 = 2;
/// Percent of the bytes that pages may keep on NVMe below which NVMe has room again for pages that it let go
/// of while DRAM kept them.
pub const ROOM_AGAIN_PERCENT: u64 = 85;
/// Bytes that may be written again at once: NVMe divided by this.
pub const REWRITE_BURST_SHARE: u64 = 16;
/// Percent of NVMe that pages keep unless the tier's geometry asks for less: the rest is free, or leaves
/// first.
pub const NVME_KEPT_PERCENT: u8 = 85;
/// Bytes that a session takes in one of the orders of sessions, about: a key, and its share of a node that is
/// two thirds full.
pub(crate) const ORDER_BYTES: usize = 40;
/// Forgotten sessions remembered until they are asked for.
pub const FORGOTTEN_MAX: usize = 10_000;
/// Pages that one miss-ratio curve follows: a working set of fewer is followed whole.
pub const CURVE_SAMPLES_MAX: u32 = 4096;
/// Pages that a curve may follow however many namespaces there are.
pub const CURVE_SAMPLES_MIN: usize = 64;
/// Pages that all curves follow together, as long as each has more than the least.
pub const CURVE_SAMPLES_TOTAL_MAX: usize = 1 << 18;
/// Pages that a curve follows by themselves, for the share of references that goes to them.
pub const CURVE_HOT_PAGES_MAX: usize = 16;
/// Pages that might become such.
pub const CURVE_HOT_CANDIDATES_MAX: usize = 128;
/// Bits of the number of a 4 KiB block in a segment of NVMe: segments are of 16 GiB at most.
pub const NVME_BLOCK_BITS: u32 = 22;
/// Pages in one chunk of the arena.
pub(crate) const CHUNK_PAGES: usize = 256;
/// Rows in one chunk of a sharded namespace's side table.
pub(crate) const CHUNK_ROWS: usize = 256;
/// Stale keys the write queue tolerates beyond the dirty pages before it is compacted.
pub(crate) const WRITE_QUEUE_SLACK: usize = 1024;

const _: () = assert!(STEPS_PER_SLICE + STEPS_PER_PAGE_MAX <= STEPS_PER_CALL_MAX, "a slice ends with a page");
const _: () =
    assert!(LEASE_PAGES_MAX as u64 * 16 <= STEPS_PER_CALL_MAX, "a lease's pages are seen to in one call");
const _: () =
    assert!(LEAF_WALK_MAX / PASSED_PER_STEP <= DRAIN_STEPS_PER_CALL_MAX / 2, "a walk ends within a call");
const _: () = assert!(SLAB_BYTES_MIN.is_multiple_of(SLOT_ALIGN_BYTES));
const _: () = assert!(NVME_KEPT_PERCENT <= 100);
const _: () = assert!(
    NAMESPACES_MAX as usize + NAMESPACES_RETIRING_MAX < u16::MAX as usize,
    "places of namespaces are numbered in 16 bits"
);
const _: () = assert!(ADOPT_SHARDS_PER_CALL >= SHARDS_MAX as usize, "a call takes in at least one page");
const _: () = assert!(RETIRE_STEPS_PER_CALL > SHARDS_MAX);
const _: () = assert!(CURVE_SAMPLES_MAX <= u16::MAX as u32, "a curve counts its samples in 16 bits");
const _: () = assert!(PAGE_TOKENS_MAX <= u16::MAX as u32, "entries keep tail tokens in 16 bits");
