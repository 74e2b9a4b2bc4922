//! The named bounds of the simulator. Owns: how large a trace and a simulated pool may be. Must not know: what is in them.

/// Bytes of one line of a trace, decompressed: a request of a million blocks fits.
pub const LINE_BYTES_MAX: u64 = 32 << 20;
/// Bytes of a trace, decompressed: the largest that the other bounds allow is read, and what a small file unpacks to ends.
pub const TRACE_BYTES_MAX: u64 = 64 << 30;
/// Lines without a request in a trace.
pub const EMPTY_LINES_MAX: usize = 1_000_000;
/// Requests of a trace.
pub const REQUESTS_MAX: usize = 20_000_000;
/// Blocks of all requests of a trace together (4 bytes each in memory).
pub const TOUCHES_MAX: usize = 1 << 30;
/// Blocks of one request: as many as one call to the pool may name.
pub const REQUEST_BLOCKS_MAX: usize = turnkv_proto::limits::HASHES_PER_CALL_MAX;
/// Tokens of a block.
pub const BLOCK_TOKENS_MAX: u32 = turnkv_proto::limits::PAGE_TOKENS_MAX;
/// Seconds that a trace may last: a hundred years.
pub const TRACE_SECONDS_MAX: f64 = 3.2e9;
/// Pages of one simulated tier.
pub const TIER_PAGES_MAX: u64 = 1 << 27;
/// Pages of the pool that a trace is played against for its miss-ratio curve, which does not depend on them.
pub const CURVE_POOL_PAGES_MAX: u64 = 1 << 22;
/// A recorded request that no call came for in so long is over.
pub const ASSEMBLE_IDLE_MS: u64 = 10_000;
/// Recorded requests that more calls may belong to.
pub const ASSEMBLE_OPEN_MAX: usize = 4096;
/// Blocks of a recording whose parent is remembered.
pub const ASSEMBLE_PARENTS_MAX: usize = 1 << 23;
/// Private pools in one simulation.
pub const PRIVATE_POOLS_MAX: u32 = 4096;
/// Pages in one call of an offload, as an engine flushes blocks while they fill.
pub const OFFLOAD_CALL_PAGES_MAX: usize = 4096;
/// Times one request asks again for slots that were busy.
pub const RETRIES_MAX: usize = 64;
/// Messages that one request of a simulated cluster may lead to.
pub const CLUSTER_STEPS_MAX: usize = 1 << 16;
/// A request belongs to the session of the last block it found only if it found more than so many: fewer are what a
/// shared system prompt gives to everybody.
pub const SHARED_HEAD_BLOCKS_MAX: usize = 2;

const _: () =
    assert!(TIER_PAGES_MAX <= u32::MAX as u64 / 16, "slot numbers are 32 bits, with room for rounding");
