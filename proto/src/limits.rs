//! The named bounds of the wire. Owns: limits, names and the version that both sides must agree on. Must not know: configuration.

/// The version of the frames on the local socket, as Hello says it; another one is refused.
pub const LOCAL_PROTOCOL: u32 = 1;
/// What is appended to the path of the gRPC socket for that of the local one beside it.
pub const LOCAL_SOCKET_SUFFIX: &str = ".local";
/// Bytes of one gRPC answer: a server sends no longer ones, a client takes none.
pub const GRPC_ANSWER_BYTES_MAX: usize = 8 << 20;
/// Hashes one call may carry, and positions of one call (pages times the shards that it moves of each): 1 M
/// tokens of 16-token pages.
pub const HASHES_PER_CALL_MAX: usize = 65_536;
/// Every so many pages of a prompt one is a signpost: in a large cluster it is known who holds what ends there.
pub const SIGNPOST_EVERY: usize = 64;
/// Slots of one lease, each a shard of a page, so positions that one call may name: whoever wants more slots
/// takes another lease.
pub const LEASE_PAGES_MAX: usize = 1024;
/// Slots that one Reserve may ask for; it gets no more than a lease has.
pub const RESERVE_PAGES_MAX: u32 = 4096;
/// Leases that one Renew may name.
pub const RENEW_LEASES_MAX: usize = 4096;
/// Bytes of a session id.
pub const SESSION_ID_BYTES_MAX: usize = 128;
/// Bytes of one shard of a page.
pub const SHARD_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a model's fingerprint.
pub const MODEL_BYTES_MAX: usize = 256;
/// Bytes of a tenant's name.
pub const TENANT_BYTES_MAX: usize = 128;
/// Bytes of a namespace's salt.
pub const SALT_BYTES_MAX: usize = 64;
/// Tokens of a page.
pub const PAGE_TOKENS_MAX: u32 = 4096;
/// Shards of a page (tensor-parallel ranks, or the canonical parts of its KV heads). The formats number shards in
/// 16 bits; this is what a namespace may have, at every door and in the pool.
pub const SHARDS_MAX: u32 = 64;
/// Attention groups of a namespace.
pub const GROUPS_MAX: usize = 64;
/// Layers of one attention group.
pub const LAYERS_MAX: u32 = 1024;
/// KV heads of one attention group, over all ranks.
pub const KV_HEADS_MAX: u32 = 65_536;
/// Elements of one head's vector.
pub const HEAD_DIM_MAX: u32 = 65_536;
/// Bytes of an error's text on the wire; longer texts are cut.
pub const ERROR_TEXT_BYTES_MAX: usize = 1024;
/// The longest wait the server may ask for before a retry.
pub const RETRY_AFTER_MS_MAX: u32 = 60_000;
/// Bytes of one message of an inline stream.
pub const INLINE_MESSAGE_BYTES_MAX: usize = 8 << 20;
/// Bytes of payload in one message of an inline stream, either way: small enough to stay in a core's own
/// cache, large enough that what every HTTP/2 frame costs does not count. Of 64 KiB to 1 MiB this took the
/// least CPU time.
pub const INLINE_PIECE_BYTES: usize = 512 << 10;
/// HTTP/2 window of one stream, at either end: what a sender may be ahead. More would leave the cache, and
/// cost fresh memory, before it is read; less would be filled before a network's round trip is over.
pub const GRPC_STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Regions of a client's memory that one call over a network may name.
pub const REMOTE_REGIONS_MAX: usize = 64;
/// Spans of them that one call may name, over all its positions: whoever has more gathers pages before.
pub const REMOTE_SPANS_MAX: usize = 65_536;
/// Bytes of pages that one call may carry, in its request or its answers, where they would not pay for a transfer.
pub const CARRIED_BYTES_MAX: u32 = 512 << 10;
/// Framed data rails of one client.
pub const RAILS_MAX: usize = 4;
/// Rails over NICs of one client: one a NIC, and those that its other end does not know of yet.
pub const NIC_RAILS_MAX: usize = 16;
/// Rails that one OpenRail may offer.
pub const RAIL_OFFERS_MAX: usize = 16;
/// Rails that one OpenRail may name as held.
pub const RAILS_HELD_MAX: usize = 32;
/// Domains with which a region of a client's memory may be registered.
pub const REGION_KEYS_MAX: usize = 16;

const _: () = assert!(HASHES_PER_CALL_MAX * 32 <= 4 << 20, "a packed list must fit one message");
const _: () =
    assert!(INLINE_PIECE_BYTES * 2 <= INLINE_MESSAGE_BYTES_MAX, "a piece and its header fit a message");
const _: () =
    assert!(INLINE_PIECE_BYTES * 2 <= GRPC_STREAM_WINDOW_BYTES as usize, "one is sent while one is read");
const _: () = assert!(RAILS_HELD_MAX >= NIC_RAILS_MAX, "all rails of a client can be named");
const _: () = assert!(SHARDS_MAX <= u16::MAX as u32, "a shard's number is a u16");
const _: () = assert!(SHARD_BYTES_MAX <= u32::MAX as u64, "an extent's payload length is a u32 on NVMe");
