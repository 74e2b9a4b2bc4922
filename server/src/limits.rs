//! The server's named bounds. Owns: every bound that is not the operator's to set. Must not know: configuration.
//!
//! - `cluster`: those of what joins a cluster; `pulls`: those of pages that come from its other pools; `moves`: those of sessions that
//!   go there
//! - `keep`: those of memory that outlives the process

mod cluster;
mod events;
mod keep;
mod moves;
mod pulls;

pub(crate) use cluster::*;
pub(crate) use events::*;
pub(crate) use keep::*;
pub(crate) use moves::*;
pub(crate) use pulls::*;
use std::time::Duration;
use turnkv_proto::limits::{
    GRPC_ANSWER_BYTES_MAX, HASHES_PER_CALL_MAX, INLINE_MESSAGE_BYTES_MAX, LOCAL_SOCKET_SUFFIX,
};
pub(crate) use turnkv_proto::limits::{GRPC_STREAM_WINDOW_BYTES, INLINE_PIECE_BYTES as INLINE_CHUNK_BYTES};
use turnkv_tier::limits::DISK_FULL_RETRY_MIN;

/// The version of the local protocol that this server speaks.
pub(crate) const SPOKEN_PROTOCOL: u32 =
    turnkv_proto::limits::LOCAL_PROTOCOL + cfg!(feature = "next-protocol") as u32;
/// Bytes of a configuration file.
pub(crate) const CONFIG_BYTES_MAX: u64 = 1 << 20;
/// Bytes of the gRPC socket's path.
pub(crate) const SOCKET_PATH_BYTES_MAX: usize = 100;
/// Ending of the path of the file whose lock a living server has, beside the gRPC socket.
pub(crate) const PLACE_SUFFIX: &str = ".serving";
/// How long another program may take to say what it is, and what it makes of the configuration, before it takes this one's place.
pub(crate) const UPGRADE_CHECK_MAX: Duration = Duration::from_secs(10);
/// Pause between two looks whether it has.
pub(crate) const UPGRADE_CHECK_PAUSE: Duration = Duration::from_millis(5);
/// When who asks for an upgrade in the middle of another one is to ask again.
pub(crate) const UPGRADE_UNDER_WAY_MS: u32 = 1_000;
/// Bytes that are told of why it did not take the place.
pub(crate) const UPGRADE_FAILED_BYTES_MAX: usize = 1024;
/// Bytes that are read of what it says.
pub(crate) const UPGRADE_SAID_BYTES_MAX: u64 = 64 << 10;
/// How long calls under way may take to end before an upgrade, and connections with them.
pub(crate) const UPGRADE_FINISH_MAX: Duration = Duration::from_secs(2);
/// Pause between two looks whether they have.
pub(crate) const UPGRADE_FINISH_PAUSE: Duration = Duration::from_millis(1);
/// How long `turnkv upgrade` waits for an answer of the server before it asks again.
pub(crate) const UPGRADE_ANSWER_MAX: Duration = Duration::from_secs(15);
/// The longest time, in seconds, that it may be told to wait for the new program.
pub(crate) const UPGRADE_WAIT_S_MAX: u64 = 24 * 3600;
/// Pause between two questions of it.
pub(crate) const UPGRADE_ASK: Duration = Duration::from_millis(50);
/// Connections on the local socket; each costs one thread.
pub(crate) const LOCAL_CONNECTIONS_MAX: usize = 512;
/// Pause between two looks at slabs that cannot leave yet, and at one that cannot come.
pub(crate) const RESIZE_LOOK: Duration = Duration::from_millis(10);
/// Pause between two questions of `turnkv resize`.
pub(crate) const RESIZE_ASK: Duration = Duration::from_millis(200);
/// Slabs that one local client was sent and has not read yet: a client of ours has one connection to attach by.
pub(crate) const UNREAD_SLABS_PER_CLIENT_MAX: usize = 8;
/// Local connections for each slab that all clients together may leave unread; of these, one user has half.
pub(crate) const LOCAL_CONNECTIONS_PER_UNREAD_SLAB: usize = 4;
/// Connections of frames on TCP, control connections and data rails; each costs one thread.
pub(crate) const FRAMED_CONNECTIONS_MAX: usize = 512;
/// Connections for /metrics and /healthz: scrapers and probes.
pub(crate) const HTTP_CONNECTIONS_MAX: usize = 32;
/// Connections of all doors together where the operator says nothing.
pub(crate) const CONNECTIONS_USUAL: u32 = 4096;
/// The fewest: every door has some.
pub(crate) const CONNECTIONS_MIN: u64 = 16;
/// The most that may be asked for.
pub(crate) const CONNECTIONS_MAX: u32 = 1 << 20;
/// Share that one peer may have (a user on Unix sockets, an address on TCP) of a door's connections, and of what all connections
/// share: memory for requests, answers and large frames, inline streams, bytes of pages in flight over data rails, rails
/// that were offered and are not open yet.
pub(crate) const PEER_PERCENT_MAX: usize = 75;
/// Descriptors kept for the rest of the process: runtime, listeners, logs, what is read of /proc, connections to be refused.
pub(crate) const PROCESS_DESCRIPTORS_RESERVED: u64 = 64;
/// How long a connection may take to its first request: preface, settings, header or Hello included.
pub(crate) const FIRST_REQUEST_MS_MAX: u64 = 10_000;
/// Pause before another look at a TCP connection of which fewer bytes came than tell what it speaks.
pub(crate) const FIRST_BYTES_PAUSE: Duration = Duration::from_millis(5);
/// Bytes of all frames over networks together that are larger than a socket's read buffer, while they arrive and are served.
pub(crate) const FRAMED_LARGE_BYTES_MAX: usize = 64 << 20;
/// How long a frame may take from its first byte to its last.
pub(crate) const FRAME_MS_MAX: u64 = 10_000;
/// How long a gRPC connection may be open without a request.
pub(crate) const GRPC_IDLE_MS_MAX: u64 = 15 * 60_000;
/// The same of a control connection: the client's rails go with its last one.
pub(crate) const FRAMED_IDLE_MS_MAX: u64 = 15 * 60_000;
/// The same over HTTP: longer than scrapes are apart.
pub(crate) const HTTP_IDLE_MS_MAX: u64 = 120_000;
/// How long a connection that never asked is safe from making room: its first request may be on its way.
pub(crate) const ROOM_SILENT_MS_MIN: u64 = 1_000;
/// How long one between two requests is.
pub(crate) const ROOM_IDLE_MS_MIN: u64 = 10_000;
/// Pause between two looks for room at a door: each one goes over all connections.
pub(crate) const ROOM_PAUSE_MS: u64 = 10;
/// Connections that were told to end and have not yet; no other makes room before.
pub(crate) const LEAVING_MAX: usize = 64;
/// How often connections are swept for deadlines.
pub(crate) const SWEEP_MS: u64 = 500;
/// Connections that may wait to be accepted on a TCP door.
pub(crate) const TCP_BACKLOG: u32 = 4096;
/// The shortest and longest pause after an accept that failed.
pub(crate) const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(10);
/// See [`ACCEPT_PAUSE_MIN`].
pub(crate) const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a private pool looks whether anybody is left.
pub(crate) const EMBEDDED_LOOK_MS: u64 = 200;
/// Endings of vital threads and tasks that wait to be heard: the first one ends the process.
pub(crate) const ENDINGS_MAX: usize = 16;
/// How long the runtime's blocking threads may take at the end of the process.
pub(crate) const RUNTIME_END_MS_MAX: u64 = 2_000;
/// How long a refusal may take to leave, where a thread sends it.
pub(crate) const REFUSAL_MS_MAX: u64 = 20;
/// Clients (processes) known at a time.
pub(crate) const CLIENTS_MAX: usize = 1_024;
/// Copies of a client library in one process that are clients of their own.
pub(crate) const LIBRARIES_MAX: usize = 8;
/// Callers (processes over the Unix socket, hosts over TCP) with inline calls in service.
pub(crate) const CALLERS_MAX: usize = 4_096;
/// How often the peer of a gRPC connection is asked whether it is still there.
pub(crate) const GRPC_KEEP_ALIVE: Duration = Duration::from_secs(30);
/// How long it may take to say so.
pub(crate) const GRPC_KEEP_ALIVE_WAIT_MAX: Duration = Duration::from_secs(20);
/// How long open connections may go on once the server leaves.
pub(crate) const DOORS_END_MAX: Duration = Duration::from_secs(2);
/// How long an operator's command waits for a server to be reached.
pub(crate) const COMMAND_CONNECT_MAX: Duration = Duration::from_secs(2);
/// The same for an answer.
pub(crate) const COMMAND_ANSWER_MAX: Duration = Duration::from_secs(5);
/// Requests in service at a time on one gRPC connection.
pub(crate) const GRPC_STREAMS_PER_CONNECTION_MAX: u32 = 256;
/// HTTP/2 window of a connection: what all its senders may be ahead together, so what one connection may leave unread here.
pub(crate) const GRPC_CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// Bytes of one HTTP/2 frame: a piece of a page and its fields.
pub(crate) const GRPC_FRAME_BYTES_MAX: u32 = 1 << 20;
/// Bytes of HTTP/2 frames of all connections together that are larger than what is not counted, from their headers on until
/// they are whole.
pub(crate) const GRPC_FRAMES_BYTES_MAX: usize = 64 << 20;
/// Bytes of one unit in which room for them is counted: a semaphore counts in 32 bits.
pub(crate) const FRAME_UNIT_BYTES: usize = 1 << 10;
/// Bytes of a frame that needs no room of its own, so what any connection may leave half sent.
pub(crate) const FRAME_UNCOUNTED_BYTES_MAX: usize = 32 << 10;
/// Bytes of a request to the Pool service: its longest list of hashes, or of positions with checksums, and the rest.
pub(crate) const POOL_REQUEST_BYTES_MAX: usize = HASHES_PER_CALL_MAX * 32 + SMALL_REQUEST_BYTES_MAX;
/// Bytes of a request to the Sessions service: likewise, or the most engines of a route.
pub(crate) const SESSIONS_REQUEST_BYTES_MAX: usize = HASHES_PER_CALL_MAX * 32 + SMALL_REQUEST_BYTES_MAX;
/// Bytes of a request that carries no list: Admin, health, reflection.
pub(crate) const SMALL_REQUEST_BYTES_MAX: usize = 256 << 10;
/// Bytes of a request to the Snapshots service: the longest prefix, the most token ids (five bytes each), and the rest.
pub(crate) const SNAPSHOTS_REQUEST_BYTES_MAX: usize =
    HASHES_PER_CALL_MAX * 32 + SNAPSHOT_TOKENS_MAX * 5 + SMALL_REQUEST_BYTES_MAX;
/// Token ids of one call that makes a snapshot, or tells of one.
pub(crate) const SNAPSHOT_TOKENS_MAX: usize = 1 << 20;
/// Snapshot operations at a time that may be asked for.
pub(crate) const SNAPSHOT_OPERATIONS_MAX: usize = 16;
/// Calls at a time that read a few small objects of an archive: lists, what a snapshot has, deletions.
pub(crate) const SNAPSHOT_LOOKS_MAX: usize = 2;
/// When it makes sense to ask again for what found no room among these, or a store that did not answer.
pub(crate) const SNAPSHOT_RETRY_MS: u32 = 1_000;
/// The fewest bytes of pages that one operation may be given between the pool and the archive.
pub(crate) const SNAPSHOT_BYTES_IN_FLIGHT_MIN: u64 = 1 << 20;
/// The most.
pub(crate) const SNAPSHOT_BYTES_IN_FLIGHT_MAX: u64 = 1 << 30;
/// The longest time that one request to a store may be given.
pub(crate) const SNAPSHOT_REQUEST_MS_MAX: u64 = 600_000;
/// Pages that one operation has between the pool and the archive.
pub(crate) const SNAPSHOT_PAGES_IN_FLIGHT_MAX: usize = 64;
/// How long a snapshot's call waits for slots and reads before it looks again.
pub(crate) const SNAPSHOT_WAIT_MS: u32 = 2_000;
/// How long an operation goes on without a page that finds its slot.
pub(crate) const SNAPSHOT_STALL_MS_MAX: u64 = 20_000;
/// Pause before it tries again.
pub(crate) const SNAPSHOT_PAUSE: Duration = Duration::from_millis(20);
/// Messages on the progress of an operation that wait to be taken; more are left out.
pub(crate) const SNAPSHOT_PROGRESS_QUEUE_MAX: usize = 4;
/// Snapshots that one List tells of: the manifest of each is read.
pub(crate) const SNAPSHOT_LIST_MAX: usize = 100;
/// Manifests that are read at once for it.
pub(crate) const SNAPSHOT_MANIFESTS_AT_ONCE: usize = 2;
/// Pages whose hashes and token ids one Describe tells.
pub(crate) const SNAPSHOT_PAGES_TOLD_MAX: usize = 16_384;
/// Tenants whose archives are open: beyond, the one that was not used for longest is closed.
pub(crate) const ARCHIVES_OPEN_MAX: usize = 4;
/// Sessions that the archive has and that are known in memory.
pub(crate) const ARCHIVED_SESSIONS_MAX: usize = 1 << 18;
/// Pages of these (about 30 bytes each); sessions beyond, those archived first, are not found by turns.
pub(crate) const ARCHIVED_PAGES_MAX: usize = 2 << 20;
/// Sessions of which pages are brought back from the archive at a time.
pub(crate) const ARCHIVE_FETCHES_MAX: usize = 4;
/// Sessions of which pages are to be brought back, and wait.
pub(crate) const ARCHIVE_FETCHES_WAITING_MAX: usize = 256;
/// How long nobody tries again to bring pages back that could not be.
pub(crate) const ARCHIVE_AVOID_MS: u64 = 30_000;
/// Archived sessions that are avoided so at a time.
pub(crate) const ARCHIVE_AVOIDED_MAX: usize = 4_096;
/// The first pause after a store did not answer; each time twice as long,
pub(crate) const ARCHIVE_PAUSE_MS_MIN: u64 = 1_000;
/// up to this.
pub(crate) const ARCHIVE_PAUSE_MS_MAX: u64 = 60_000;
/// Sessions for which the store did not answer, and that wait behind others; with more, no others are begun.
pub(crate) const ARCHIVE_LATE_MAX: usize = 64;
/// Times that the store is asked for one of them, where others are archived meanwhile.
pub(crate) const ARCHIVE_TRIES_MAX: u32 = 8;
/// Sessions that may wait to be archived, as may be configured.
pub(crate) const ARCHIVE_WAITING_MAX: u64 = 65_536;
/// How often sessions are looked through for those that are to be archived.
pub(crate) const ARCHIVE_LOOK_MS: u64 = 1_000;
/// Parts of the table of sessions that one such look goes through.
pub(crate) const ARCHIVE_LOOK_SLICES_MAX: usize = 16;
/// How long a collection by itself waits for at most after a start.
pub(crate) const ARCHIVE_FIRST_COLLECT: Duration = Duration::from_secs(900);
/// How long a fetch may take for its next pages before its store is called slow, at least.
pub(crate) const ARCHIVE_SLOW_MIN: Duration = Duration::from_millis(1_000);
/// Sessions that one such look may find.
pub(crate) const ARCHIVE_FOUND_MAX: usize = 64;
/// Bookmarks that are read at once.
pub(crate) const ARCHIVE_BOOKMARKS_AT_ONCE: usize = 8;
/// Tenants whose archived sessions are known.
pub(crate) const ARCHIVE_TENANTS_MAX: usize = 64;
/// The fewest bytes a second that archiving may be given: one large page.
pub(crate) const ARCHIVE_BYTES_PER_SECOND_MIN: u64 = 64 << 10;
/// Blobs of one tenant's archive that are known by their place in memory (about 90 bytes each); others are looked up in the store,
/// and not found again by captures.
pub(crate) const ARCHIVE_INDEX_BLOBS_MAX: usize = 1 << 20;
/// Handshakes of TLS under way at a time; of these, one peer has its share.
pub(crate) const HANDSHAKES_MAX: u64 = 256;
/// How long a handshake may take.
pub(crate) const HANDSHAKE_MS_MAX: u64 = 5_000;
/// How long a refused handshake's peer may take to read why, and how many bytes of it are dropped meanwhile: a socket that is
/// closed with bytes unread takes back what was said.
pub(crate) const HANDSHAKE_PARTING_MS_MAX: u64 = 500;
/// See [`HANDSHAKE_PARTING_MS_MAX`].
pub(crate) const HANDSHAKE_PARTING_BYTES_MAX: usize = 64 << 10;
/// Connections that are through their handshake and wait for their door.
pub(crate) const HANDSHAKEN_QUEUE_MAX: usize = 64;
/// How often the files of `[tls]` are read, and the certificates of open connections are looked at.
pub(crate) const TLS_LOOK_MS: u64 = 1_000;
/// Bytes of a file's name that Linux takes.
pub(crate) const FILE_NAME_BYTES_MAX: usize = 255;
/// How long the authority of `turnkv certs` lasts.
pub(crate) const TRIAL_AUTHORITY_DAYS: u32 = 365;
/// The same of what it signs.
pub(crate) const TRIAL_CERTIFICATE_DAYS: u32 = 90;
/// So much earlier than they are made they begin to be valid: clocks of hosts differ.
pub(crate) const TRIAL_CLOCK_SKEW: Duration = Duration::from_secs(300);
/// How often the log says again what peers can make it say.
pub(crate) const SAID_EVERY_MS: u64 = 10_000;
/// How long a request may take from its headers to its last byte (of a stream: from a message's first byte to its last).
pub(crate) const MESSAGE_MS_MAX: u64 = 10_000;
/// Bytes of unfinished and waiting requests on one gRPC connection.
pub(crate) const UNFINISHED_CONNECTION_BYTES_MAX: u64 = 32 << 20;
/// The same of all connections.
pub(crate) const UNFINISHED_BYTES_MAX: u64 = 256 << 20;
/// Bytes of answers on one gRPC connection that its peer has not taken yet.
pub(crate) const UNREAD_CONNECTION_BYTES_MAX: u64 = 32 << 20;
/// The same of all connections.
pub(crate) const UNREAD_BYTES_MAX: u64 = 256 << 20;
/// Of these, what streams may have that go on: the rest is for the first pieces of answers.
pub(crate) const UNREAD_STREAMS_BYTES_MAX: u64 = 16 << 20;
/// How long a piece of an answer may wait for its peer: a slow network takes the longest piece within it.
pub(crate) const UNREAD_MS_MAX: u64 = 20_000;
/// Bytes of a connection's unread answers that are little: one inline stream of a reader that keeps up.
pub(crate) const UNREAD_LITTLE_BYTES: u64 = 2 << 20;
/// Of all unfinished requests' bytes, those that only the beginnings of messages may take, and of all unread answers' those of
/// connections with little of them: they are served while others are refused.
pub(crate) const LITTLE_BYTES: u64 = 32 << 20;
/// Bytes of a message that count as its beginning.
pub(crate) const SMALL_MESSAGE_BYTES: u64 = 16 << 10;
/// Inline streams at a time, on all connections: each may leave a window unread.
pub(crate) const INLINE_STREAMS_MAX: usize = 256;
/// Bytes of unfinished requests, of unread answers, or of large local frames, after which free memory goes back to the system once they are gone.
pub(crate) const BURST_BYTES_MIN: u64 = 16 << 20;
/// Free memory between what is in use of the heap, beyond which it goes back to the system while a burst lasts: what is counted of
/// requests and answers then is what they take.
pub(crate) const HEAP_FREE_BYTES_MAX: usize = 64 << 20;
/// Answers that wait to be taken in one inline offload: all it ever gives, and an error.
pub(crate) const INLINE_ANSWERS_MAX: usize = 3;
/// Messages queued in one reload stream.
pub(crate) const STREAM_QUEUE_MAX: usize = 32;
/// How long a call may wait for slots or reads, whatever the caller asks.
pub(crate) const WAIT_MS_MAX: u32 = 60_000;
/// Peers that are remembered beside twice as many as there are connections, before those that are gone are forgotten.
pub(crate) const PEERS_SPARE: usize = 16;
/// What a caller is told to wait before it asks for slots again.
pub(crate) const RETRY_AFTER_MS: u32 = 20;
/// How often deadlines, watermarks and dead clients are looked after.
pub(crate) const TICK_MS: u64 = 100;
/// Bytes of pages being read ahead of expected turns: more would stand in the way of reloads.
pub(crate) const PREFETCH_BYTES_INFLIGHT_MAX: u64 = 8 << 20;
/// Pages that one slice of a prefetch goes over.
pub(crate) const PREFETCH_PAGES_PER_SLICE: usize = 256;
/// How often changed sessions are written to the catalog.
pub(crate) const CATALOG_FLUSH_MS: u64 = 500;
/// Sessions or pins whose records are made under one hold of the pool's lock.
pub(crate) const CATALOG_SESSIONS_PER_LOCK: usize = 32;
/// Chunks of lists that are read under one hold of the pool's lock.
pub(crate) const CATALOG_CHUNKS_PER_LOCK: usize = 32;
/// Sessions or pins that one transaction of the catalog writes.
pub(crate) const CATALOG_SESSIONS_PER_BATCH: usize = 256;
/// Bytes that one transaction of the catalog writes, and one session's list more.
pub(crate) const CATALOG_BATCH_BYTES: usize = 1 << 20;
/// Bytes of segments' notes that one flush writes to the catalog, and one segment's more: what is left waits for the next.
pub(crate) const CATALOG_NOTE_BYTES_PER_FLUSH: usize = 1 << 20;
/// Chunks of lists that one transaction of the catalog drops, and those of one session more.
pub(crate) const CATALOG_CHUNKS_DROPPED_PER_BATCH: usize = 4096;
/// Transactions of one flush: what is left waits for the next one.
pub(crate) const CATALOG_BATCHES_PER_FLUSH: usize = 8;
/// Rows of sessions that one flush compares with what the pool knows.
pub(crate) const CATALOG_ROWS_SWEPT_PER_FLUSH: usize = 64;
/// Flushes that a server that leaves makes at most.
pub(crate) const CATALOG_LAST_FLUSHES: usize = 1024;
/// Chunks whose pages were found, or not, that a start remembers at a time.
pub(crate) const CATALOG_CHUNKS_KNOWN_MAX: usize = 1 << 16;
/// The catalog's lists may name so many times the pages that fit on NVMe, or DRAM where that is all: some of what they name has left it.
pub(crate) const CATALOG_LIST_PAGES_PER_PAGE: u64 = 2;
/// Chunks of lists that any catalog may hold.
pub(crate) const CATALOG_CHUNKS_MIN: u64 = 8192;
/// Bytes of the catalog that its database keeps in memory.
pub(crate) const CATALOG_CACHE_BYTES: usize = 8 << 20;
/// How long a catalog that failed rests before it is tried again.
pub(crate) const CATALOG_RETRY_MS: u64 = 1_000;
/// Rows of a namespace that is forgotten which one transaction removes.
pub(crate) const CATALOG_ROWS_PER_WRITE: usize = 1_024;
/// Such transactions in one flush.
pub(crate) const CATALOG_REMOVALS_PER_FLUSH: usize = 8;
/// Pins that wait, by their names alone, for a catalog that cannot be written: of sixteen tenants with all that one may have.
pub(crate) const CATALOG_PINS_WAITING_MAX: usize = 1 << 16;
/// Namespaces of which it is saved what was learned, a row of up to 100 kB each: what is learned of others begins anew with a start.
pub(crate) const LEARNED_NAMESPACES_MAX: usize = 256;
/// Of how many that is written at a time.
pub(crate) const LEARNED_PER_FLUSH: usize = 8;
/// Flushes of the catalog from one time to the next.
pub(crate) const LEARNED_EVERY_FLUSHES: u32 = 4;
/// Damaged catalogs that are kept for whoever wants to look at them.
pub(crate) const CATALOGS_ASIDE_MAX: usize = 3;
/// Calls, each a short time under the lock, that one tick spends on namespaces that retire, and on strangers.
pub(crate) const RETIRE_CALLS_PER_TICK: usize = 64;
/// Bytes of page payload handed to the NVMe tier and not yet completed.
pub(crate) const WRITE_BEHIND_BYTES_INFLIGHT_MAX: u64 = 32 << 20;
/// Pages that durable commits wait for, looked after under one hold of the lock.
pub(crate) const DURABLE_PAGES_PER_SLICE: usize = 1024;
/// Threads that check pages in DRAM before reloads are told of them.
pub(crate) const VERIFY_THREADS_MAX: usize = 4;
/// Reloads whose pages wait to be checked; the pages of more are busy.
pub(crate) const VERIFY_QUEUE_MAX: usize = 1024;
/// How long writes pause after one that the tier refused.
pub(crate) const WRITE_PAUSE_MS: u64 = 2;
/// How long the disk has less space than NVMe was promised before pages are to leave for it: it may be full for a moment.
pub(crate) const NVME_SMALLER_MS: u64 = 2_000;
/// Percent by which what pages shrink to on NVMe must have changed before the pool is told.
pub(crate) const NVME_PACKING_STEP_PERCENT: u64 = 3;
/// How long reclaim waits for pages that are on their way before it looks again.
pub(crate) const RECLAIM_LOOK: Duration = Duration::from_millis(1);
/// How often a server that leaves looks whether all is written.
pub(crate) const DRAIN_LOOK: Duration = Duration::from_millis(10);
/// How long a caller waits for a slab that changes its tenant.
pub(crate) const SLAB_RENEW_WAIT_MS: u64 = 5_000;
/// How long a slab waits that the system had no memory or descriptor for before it is tried again.
pub(crate) const SLAB_RENEW_RETRY_MS: u64 = 500;
/// List calls that are answered at a time; others wait for their turn.
pub(crate) const LISTS_AT_ONCE_MAX: usize = 2;
/// Sessions one List call returns.
pub(crate) const SESSION_LIST_MAX: usize = 10_000;
/// Calls that wait to be taken by a recording.
pub(crate) const RECORD_QUEUE_CALLS_MAX: usize = 4096;
/// Blocks of these calls together: 32 MiB.
pub(crate) const RECORD_QUEUE_BLOCKS_MAX: u64 = 4 << 20;
/// Namespaces that advice and the curve's series cover.
pub(crate) const ADVICE_NAMESPACES_MAX: usize = 16;
/// Sizes at which one namespace's advice says the hit ratio.
pub(crate) const ADVICE_SIZES_MAX: usize = 40;
/// Tokens, and microseconds, of one reported prefill.
pub(crate) const PREFILL_REPORT_MAX: u64 = 10_000_000_000;
/// How long a connection's thread yields its core instead of sleeping after a request: the next one of a batch usually
/// comes within it, and a wake-up costs more than a small page's copy.
pub(crate) const LOCAL_SPIN: Duration = Duration::from_micros(30);
/// Bytes of all local frames together that are larger than a socket's read buffer, while they arrive and are served.
pub(crate) const LOCAL_LARGE_BYTES_MAX: usize = 128 << 20;
/// How often a local call that waits looks whether its caller is still there.
pub(crate) const LOCAL_LOOK: Duration = Duration::from_millis(200);
/// Transfers to and from other hosts under way at a time.
pub(crate) const REMOTE_FLIGHTS_MAX: usize = 4096;
/// The same of one call.
pub(crate) const REMOTE_CALL_FLIGHTS_MAX: usize = 64;
/// Attempts at one transfer: as many as a client may have framed rails, and one more.
pub(crate) const REMOTE_TRIES_MAX: u32 = turnkv_proto::limits::RAILS_MAX as u32 + 1;
/// NICs that are used at a time.
pub(crate) const NICS_MAX: usize = 8;
/// Bytes of a span from which on it is moved in stripes, which go over all rails of its client, where its call has few pages.
pub(crate) const STRIPED_BYTES_MIN: u64 = 2 << 20;
/// Pages of a call from which on those of up to [`WHOLE_BYTES_MAX`] go whole: each rail has some of them.
pub(crate) const MANY_PAGES: usize = 2 * turnkv_proto::limits::RAILS_MAX;
/// Bytes of a span up to which it goes whole where its call has [`MANY_PAGES`]: cut in two it costs twice the answers.
pub(crate) const WHOLE_BYTES_MAX: u64 = 2 << 20;
/// Bytes of a stripe.
pub(crate) const STRIPE_BYTES: u32 = 1 << 20;
/// Pause of a call that finds all rails full with transfers of others.
pub(crate) const REMOTE_POST_PAUSE: Duration = Duration::from_millis(1);
/// How long the thread that takes completions waits for one before it looks whether the engine is still there.
pub(crate) const REMOTE_LAND_WAIT: Duration = Duration::from_millis(200);
/// Rails that were offered to clients and are not open yet.
pub(crate) const REMOTE_SECRETS_MAX: usize = 1024;
/// The least that may be in flight to one client, and to all, on other hosts: some stripes.
pub(crate) const REMOTE_INFLIGHT_BYTES_MIN: u64 = 4 << 20;
/// The most that may be asked for.
pub(crate) const REMOTE_INFLIGHT_BYTES_MAX: u64 = 16 << 30;
/// How long one frame may take to leave for a client that does not read.
pub(crate) const LOCAL_SEND_MS_MAX: u64 = 5_000;

const _: () = assert!(
    SOCKET_PATH_BYTES_MAX + LOCAL_SOCKET_SUFFIX.len() < 108,
    "the path of the local socket fits sun_path, with its end"
);
const _: () = assert!(
    SNAPSHOT_PAGES_TOLD_MAX * 32 + SNAPSHOT_TOKENS_MAX * 5 + (1 << 20) < GRPC_ANSWER_BYTES_MAX,
    "what Describe tells of a sequence fits an answer, with the names of all"
);
const _: () = assert!(
    turnkv_proto::limits::PAGE_TOKENS_MAX as usize <= SNAPSHOT_TOKENS_MAX,
    "Describe can tell a page's token ids"
);
const _: () = assert!(CATALOGS_ASIDE_MAX >= 1, "a damaged catalog is set aside, not deleted");
const _: () = assert!(
    NVME_SMALLER_MS > DISK_FULL_RETRY_MIN.as_millis() as u64,
    "a disk is asked once more before pages leave"
);
const _: () = assert!(CATALOG_RETRY_MS >= TICK_MS, "a failed catalog rests");
const _: () =
    assert!(INLINE_CHUNK_BYTES * 2 <= INLINE_MESSAGE_BYTES_MAX, "a chunk and its fields fit one message");
const _: () =
    assert!(INLINE_CHUNK_BYTES * 2 <= GRPC_STREAM_WINDOW_BYTES as usize, "one is sent while one is read");
const _: () =
    assert!(INLINE_CHUNK_BYTES < GRPC_FRAME_BYTES_MAX as usize, "a piece and its fields fit one frame");
const _: () = assert!(
    GRPC_STREAM_WINDOW_BYTES <= GRPC_CONNECTION_WINDOW_BYTES
        && GRPC_FRAME_BYTES_MAX <= GRPC_STREAM_WINDOW_BYTES,
    "a frame fits a stream's window, and that the connection's"
);
const _: () = assert!(
    HASHES_PER_CALL_MAX * (8 + 5) < POOL_REQUEST_BYTES_MAX,
    "the longest list of positions and checksums fits where the longest list of hashes does"
);
const _: () = assert!(
    (POOL_REQUEST_BYTES_MAX as u64) < UNFINISHED_CONNECTION_BYTES_MAX
        && (SESSIONS_REQUEST_BYTES_MAX as u64) < UNFINISHED_CONNECTION_BYTES_MAX
        && (SNAPSHOTS_REQUEST_BYTES_MAX as u64) < UNFINISHED_CONNECTION_BYTES_MAX
        && (INLINE_MESSAGE_BYTES_MAX as u64) < UNFINISHED_CONNECTION_BYTES_MAX,
    "the largest legal message fits a connection's budget"
);
const _: () = assert!(
    UNFINISHED_CONNECTION_BYTES_MAX < UNFINISHED_BYTES_MAX - LITTLE_BYTES
        && UNREAD_CONNECTION_BYTES_MAX < UNREAD_BYTES_MAX - LITTLE_BYTES,
    "one connection cannot use up the budget of all"
);
const _: () = assert!(
    UNREAD_STREAMS_BYTES_MAX + GRPC_ANSWER_BYTES_MAX as u64 <= UNREAD_CONNECTION_BYTES_MAX,
    "the largest answer fits beside streams"
);
const _: () = assert!(
    (CONNECTIONS_MIN / 8) as usize > 0
        && CONNECTIONS_MIN <= CONNECTIONS_USUAL as u64
        && CONNECTIONS_USUAL <= CONNECTIONS_MAX,
    "every door has a connection"
);
const _: () = assert!(
    ROOM_SILENT_MS_MIN < FIRST_REQUEST_MS_MAX
        && ROOM_IDLE_MS_MIN < HTTP_IDLE_MS_MAX
        && ROOM_IDLE_MS_MIN < GRPC_IDLE_MS_MAX,
    "what makes room is ended sooner than what is in nobody's way"
);
const _: () = assert!(
    GRPC_FRAMES_BYTES_MAX >= 16 * GRPC_FRAME_BYTES_MAX as usize
        && FRAME_UNCOUNTED_BYTES_MAX < GRPC_FRAME_BYTES_MAX as usize,
    "some of the longest frames arrive at once"
);
const _: () = assert!(
    REMOTE_INFLIGHT_BYTES_MIN >= 4 * STRIPE_BYTES as u64
        && STRIPED_BYTES_MIN >= 2 * STRIPE_BYTES as u64
        && WHOLE_BYTES_MAX >= STRIPED_BYTES_MIN,
    "every rail of a client can move a stripe, and what is striped has several"
);
const _: () = assert!(
    LOCAL_LARGE_BYTES_MAX >= 16 * turnkv_transfer::FRAME_BYTES_MAX
        && FRAMED_LARGE_BYTES_MAX >= 16 * turnkv_transfer::FRAME_BYTES_MAX,
    "some of the longest frames are served at once"
);
