//! The named bounds of the client. Owns: every limit, wait and retry of it. Must not know: configuration.

use std::time::Duration;
pub use turnkv_proto::limits::{GRPC_ANSWER_BYTES_MAX, GRPC_STREAM_WINDOW_BYTES, INLINE_PIECE_BYTES};

/// Local connections one client opens, so operations of it that run at once.
pub const CONNECTIONS_MAX: usize = 16;
/// How long the account of writes of all clients of a process is waited for: longer only where the process was forked meanwhile.
pub const ACCOUNTS_WAIT: Duration = Duration::from_millis(100);
/// Framed data rails to one server.
pub const RAILS_MAX: usize = turnkv_proto::limits::RAILS_MAX;
/// Bytes of a call for which each rail is of use.
pub const STRIPED_BYTES_MIN: usize = 2 << 20;
/// The first pause after a data rail that failed or ended, before another one is opened beside those that are left; it
/// doubles with each that follows soon.
pub const RAIL_PAUSE_MIN: Duration = Duration::from_millis(100);
/// The longest of them.
pub const RAIL_PAUSE_MAX: Duration = Duration::from_secs(10);
/// How often rails over NICs are compared with those that the server has: neither end sees there that the other one left.
pub const RAIL_LOOK_PAUSE: Duration = Duration::from_secs(2);
/// Steps that one call takes to get to a rail: over a NIC, framed, and over a NIC that was being opened.
pub const RAIL_STEPS_MAX: usize = 3;
/// NICs that may be named.
pub const NICS_MAX: usize = 8;
/// The first pause after a NIC that could not be opened; it doubles.
pub const NIC_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest of them.
pub const NIC_PAUSE_MAX: Duration = Duration::from_secs(300);
/// Memory of dropped calls that a NIC's library may keep; then its rails are ended, which frees it.
pub const QUARANTINED_BYTES_MAX: usize = 64 << 20;
/// Memory that all calls of one client lend to servers together. A page whose shards of one call are more is refused.
pub const STAGING_BYTES_MAX: usize = 256 << 20;
/// It is lent in multiples of this.
pub const STAGING_BYTES_STEP: usize = 1 << 20;
/// How long a call waits for memory of a device that is being made known to NICs; then it goes through memory of this host.
pub const DEVICE_MEMORY_WAIT: Duration = Duration::from_millis(100);
/// The first pause after a call that failed with memory of a device lent, before such memory is lent again; it doubles with each that
/// follows soon.
pub const DEVICE_MEMORY_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest of them.
pub const DEVICE_MEMORY_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Pieces of it that are kept for later calls.
pub const STAGING_KEPT_MAX: usize = CONNECTIONS_MAX;
/// Bytes of these together; where a NIC or a device knows some of it, as much as may be lent.
pub const STAGING_KEPT_BYTES_MAX: usize = 128 << 20;
/// Bytes of a window over a network from which on the server is asked which pages it has before any are copied.
pub const ASK_FIRST_BYTES_MIN: usize = 4 << 20;
/// How long a server that spoke no frames is left alone with them.
pub const NO_FRAMES_PAUSE: Duration = Duration::from_secs(60);
/// Slabs kept mapped; more are mapped again when needed.
pub const SLABS_MAX: usize = 4096;
/// Bytes of a new mapping that are faulted in at a time, beside the operations that use it.
pub const PREFAULT_PIECE_BYTES: usize = 4 << 20;
/// Bytes that one window moves: what one call asks the server to lease. A page is never cut, so it may be
/// more of one page.
pub const WINDOW_BYTES_MAX: u64 = 64 << 20;
/// Bytes of pages that are copied and sent at a time over a network: two pieces of a few calls fit a processor's last cache.
pub const FRAMED_PIECE_BYTES_MAX: u64 = 4 << 20;
/// Bytes of pages that are lent where they are and sent at a time: each piece costs a round trip in which rails idle, and nothing is
/// copied that should still be in a cache.
pub const OWN_PIECE_BYTES_MAX: u64 = 16 << 20;
/// Pages of one window, each counted for every shard of it that is moved: as many slots as one lease holds.
/// Their hashes fit a socket's buffer, so that sending them never waits for the server.
pub const WINDOW_PAGES_MAX: usize = turnkv_proto::limits::LEASE_PAGES_MAX;
/// How long an operation waits for an answer on the calling thread before it goes on in the reactor.
pub const SPIN: Duration = Duration::from_micros(60);
/// Bytes copied before other tasks of the thread get a turn.
pub const YIELD_BYTES: usize = 8 << 20;
/// Leases of mapped pages that one call renews: what a server takes.
pub const RENEW_LEASES_MAX: usize = turnkv_proto::limits::RENEW_LEASES_MAX;
/// How long one renewal may wait for an answer; the next one tries again.
pub const RENEW_WAIT: Duration = Duration::from_secs(2);
/// Renewals within the time that the server allows: one that fails leaves room for the next.
pub const RENEWALS_PER_LEASE: u64 = 4;
/// The shortest and longest pause between renewals; within it, the server's time by [`RENEWALS_PER_LEASE`].
pub const RENEW_PAUSE_MIN: Duration = Duration::from_millis(20);
/// See [`RENEW_PAUSE_MIN`].
pub const RENEW_PAUSE_MAX: Duration = Duration::from_secs(30);
/// For how long a server that is gone is waited for, to be told of what a client gave up: then it stays in quarantine until the
/// process ends.
pub const GIVEN_UP_TOLD_WAIT: Duration = Duration::from_secs(600);
/// The same of an offload from a device. A window's pages are committed before the next one begins, and a
/// device idles in between: the time of some round trips, which larger windows make a small part.
pub const DEVICE_WINDOW_BYTES_MAX: u64 = 256 << 20;
/// Bytes of pages that a device puts into memory for a network at a time: it fills one piece while the one before is read.
pub const DEVICE_PIECE_BYTES_MAX: u64 = 16 << 20;
/// How long a server compares the bytes that it sends with their checksums, after a page that it sent did not verify on a device.
pub const SUSPICION: Duration = Duration::from_secs(60);
/// Windows of one reload whose copies to a device may be under way before another is leased.
pub const DEVICE_WINDOWS_AHEAD_MAX: usize = 4;
/// The same over a network, the one that is on its way with them: half of what a client may lend. Pages that are to be copied in layers
/// go together up to as many.
pub const DEVICE_LENT_WINDOWS_MAX: usize = 2;
/// How long pages that are to be copied in layers wait for those that are leased after them: then these are waiting for room, or for NVMe,
/// and an engine's first layer would wait with them.
pub const DEVICE_LAYERS_TOGETHER_MAX: Duration = Duration::from_millis(50);
/// Pages of one GPU page pool.
pub const GPU_PAGES_MAX: usize = 1 << 24;
/// Hashes of one round of a lookup: two rounds settle 9,408.
pub const LOOKUP_SAMPLE_MAX: usize = 96;
/// How long an abandoned operation's connection may wait for the answer whose lease must be ended.
pub const SETTLE_WAIT: Duration = Duration::from_secs(10);
/// Frames of one answer that an abandoned operation reads; a page may have a frame of its own.
pub const ANSWER_FRAMES_MAX: usize = WINDOW_PAGES_MAX + 2;
/// Finished leases whose end waits for a free connection; the oldest beyond end by time.
pub const ENDS_MAX: usize = 256;
/// How often a call whose connection is lost is made once more, as long as nothing of it is served: a server that gives way to another
/// ends its connections one after the other.
pub(crate) const RECONNECTS_MAX: u32 = 4;
/// The shortest and longest pause before a busy server is asked again, or offered a page that it declined;
/// within it, what the server said, doubled with each attempt.
pub const RETRY_PAUSE_MIN: Duration = Duration::from_millis(1);
/// See [`RETRY_PAUSE_MIN`].
pub const RETRY_PAUSE_MAX: Duration = Duration::from_millis(250);
/// Members that an address may name.
pub const MEMBERS_LISTED_MAX: usize = 16;
/// Members of a cluster that a client remembers; those beyond are met only where one names them.
pub const MEMBERS_KNOWN_MAX: usize = 1024;
/// Members beyond those of its address that a client has connections to.
pub const MEMBER_LINKS_MAX: usize = 64;
/// Sessions of which a client remembers at which member their turns began.
pub const SESSION_PLACES_MAX: usize = 16_384;
/// Members that one call asks, where those before did not answer.
pub const TRIES_MAX: usize = 4;
/// How often the begin of a turn follows a member that says NOT_HOME; then the one that it is at pulls the session's pages.
pub const REDIRECTS_MAX: u32 = 2;
/// The least time for an answer of one member, where a call leaves time for another one.
pub const MEMBER_WAIT_MIN: Duration = Duration::from_secs(1);
/// The pause before another member is asked who there is, after one that told of it has ended or did not answer.
pub const MEMBERS_PAUSE: Duration = Duration::from_secs(1);
/// The same after a pool that answers and tells nothing: it is in no cluster, or does not tell this caller.
pub const UNTOLD_PAUSE: Duration = Duration::from_secs(30);
/// How often it is looked whether a member that is sick may be asked again.
pub const SICK_PAUSE: Duration = Duration::from_millis(250);
/// The first pause between attempts to connect; it doubles.
pub const CONNECT_PAUSE_MIN: Duration = Duration::from_millis(5);
/// The longest pause between attempts to connect.
pub const CONNECT_PAUSE_MAX: Duration = Duration::from_millis(200);
/// How long one attempt to connect may hold the calling thread (a stopped server with a full backlog).
pub const CONNECT_BLOCK: Duration = Duration::from_millis(1);
/// Inline pieces that wait to be sent; more would leave the cache before they are.
pub const INLINE_PIECES_MAX: usize = 2;
/// How often an idle gRPC connection is probed, so that a host that vanished is noticed, and how long the
/// answer may take.
pub const GRPC_KEEP_ALIVE: Duration = Duration::from_secs(10);
/// HTTP/2 window of a connection.
pub const GRPC_CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// Bytes of one HTTP/2 frame.
pub const GRPC_FRAME_BYTES_MAX: u32 = 4 << 20;
/// Bytes of a Unix socket's path, without its end.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Calls in a row that may fail before the breaker opens: the most that a configuration may say.
pub const BREAKER_FAILURES_MAX: u32 = 1000;
/// How long an embedded server may take to start.
pub const EMBEDDED_START_WAIT: Duration = Duration::from_secs(20);
/// How often a starting embedded server is looked for.
pub const EMBEDDED_POLL: Duration = Duration::from_millis(10);
/// Bytes of a failed embedded server's log that an error quotes.
pub const EMBEDDED_LOG_BYTES_MAX: usize = 600;
/// The least DRAM of an embedded pool.
pub const EMBEDDED_DRAM_BYTES_MIN: u64 = 16 << 20;

const _: () =
    assert!(WINDOW_BYTES_MAX >= turnkv_proto::limits::SHARD_BYTES_MAX, "a window holds at least one page");
const _: () = assert!(STAGING_BYTES_MAX as u64 >= 2 * WINDOW_BYTES_MAX, "a window fits what may be lent");
const _: () = assert!(
    DEVICE_LENT_WINDOWS_MAX as u64 * WINDOW_BYTES_MAX * 2 <= STAGING_BYTES_MAX as u64,
    "a device's reload leaves room to other calls"
);
const _: () = assert!(
    turnkv_transfer::limits::EXPORT_STEP_BYTES.is_multiple_of(STAGING_BYTES_STEP),
    "a device's memory takes whole steps of room"
);
const _: () = assert!(QUARANTINED_BYTES_MAX * 2 <= STAGING_BYTES_MAX, "there is room beside it");
const _: () = assert!(
    (STAGING_BYTES_MAX / STAGING_BYTES_STEP).is_power_of_two(),
    "the largest piece is a power of two"
);
const _: () = assert!(
    2 * NICS_MAX <= turnkv_proto::limits::RAIL_OFFERS_MAX,
    "one request offers them all, by either library"
);
const _: () = assert!(WINDOW_PAGES_MAX <= turnkv_proto::limits::HASHES_PER_CALL_MAX, "a window is one call");
const _: () = assert!(LOOKUP_SAMPLE_MAX <= WINDOW_PAGES_MAX, "a sample is sent like a window");
const _: () = assert!(WINDOW_PAGES_MAX * 32 <= 64 << 10, "a window's hashes fit a socket's buffer");
