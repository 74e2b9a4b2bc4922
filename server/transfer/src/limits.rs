//! The named bounds of byte movement. Owns: limits and the relations between them. Must not know:
//! configuration.

use std::time::Duration;

/// Bytes of a frame's body on the local socket.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// Groups of a process that are asked for at first.
pub const GROUPS_USUAL: usize = 64;
/// Groups that Linux lets a process have.
pub const GROUPS_MAX: usize = 65_536;
/// Bytes of a file with certificates or a key.
pub const TLS_FILE_BYTES_MAX: usize = 1 << 20;
/// Bytes of what a client remembers of a server that refused it.
pub const TLS_REFUSAL_BYTES_MAX: usize = 512;
/// URI names of a certificate that are read.
pub const TLS_NAMES_MAX: usize = 256;
/// Bytes of a name in a certificate.
pub const TLS_NAME_BYTES_MAX: usize = 512;
/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 8;
/// Bytes of a frame's check, with which its body ends over a network.
pub const FRAME_CHECK_BYTES: usize = 4;
/// Bytes of the read buffer of a local socket: a frame that fits costs one `recvmsg`.
pub const READ_BUFFER_BYTES: usize = 16 << 10;
/// Bytes that the system is asked to hold for a peer that has not read them yet: a hash list of a long prompt
/// (8,900 hashes are 285 KB) leaves in one piece.
pub const SEND_BUFFER_BYTES: usize = 512 << 10;
/// Words of 8 bytes of one direction of a connection's rings: 16 KiB.
pub const RING_WORDS: usize = 2 << 10;
/// Bytes of a frame's body that goes through a ring: some 200 pages of any verb. Larger frames take the
/// socket.
pub const RING_BODY_BYTES_MAX: usize = 8 << 10;
/// Looks at a ring between two yields of the core.
pub const RING_LOOKS: u32 = 16;
/// The longest pause between two looks for room in a ring whose reader does not read.
pub const RING_ROOM_PAUSE_MAX: Duration = Duration::from_millis(2);
/// Descriptors one frame may carry.
pub const FDS_PER_FRAME_MAX: usize = 4;
/// Descriptors received for frames that are not complete yet; more is a peer that misbehaves.
pub const FDS_PENDING_MAX: usize = 8;
/// How long a send without a deadline of its own may wait for the peer to read.
pub const SEND_WAIT: Duration = Duration::from_secs(5);
/// How long a receive without a deadline of its own may wait for the memory of a large frame.
pub const HOLD_WAIT: Duration = Duration::from_secs(10);
/// How long a server that starts waits for an answer from the one whose socket file it finds.
pub const BIND_WAIT: Duration = Duration::from_secs(1);
/// Pause between two looks at a directory that another server is binding in.
pub const BIND_RETRY: Duration = Duration::from_millis(5);
/// Connections that may wait to be accepted on a listening socket.
pub const LISTEN_BACKLOG: i32 = 128;

/// Bytes that are checksummed and copied as one piece: they stay in the L1 cache between the two. Chosen by a
/// sweep with an AVX-512 loop, 2 MiB pages, ratios to memcpy into and out of slots: 2 KiB 1.38 / 1.80, 4 KiB
/// 1.37 / 1.76, 8 KiB 1.37 / 1.59, 16 KiB 1.20 / 1.49, 128 KiB 1.12 / 1.25. The whole copy, with what
/// surrounds that loop, reaches 1.2 to 1.4 / 1.3 to 1.6.
pub const CHUNK_BYTES: usize = 4 << 10;
/// Freed heap that a process of inline streams keeps, halved: a few streams' windows.
pub const HEAP_KEPT_BYTES: usize = 8 << 20;
/// Heaps that all threads of a server share. Kept after bursts of 120 x 4 MiB half-sent frames and of 120 x 2
/// MiB lookups, on two cores: 168 and 125 MiB with as many as glibc makes, 2 and 55 with four, 10 and 13 with
/// two, 2 and 5 with one. Lookups of 4 and of 8,900 hashes on 16 connections took the same processor time
/// with all of these: small blocks are each thread's own.
pub const HEAPS_MAX: i32 = 2;
/// Buffers of pieces on their way out that are kept for the next ones.
pub const PIECE_BUFFERS_MAX: usize = 16;
/// Copies below this use the plain copy: the target is small enough to be worth keeping in the cache.
pub const STREAMING_BYTES_MIN: usize = 16 << 10;
/// Runs of a plan below this are copied with plain stores: too short to fill write-combining buffers well.
pub const STREAMING_RUN_BYTES_MIN: usize = 1 << 10;
/// Share of vm.max_map_count that all spans of a process may use; the rest is for its libraries, threads and
/// allocators.
pub const MAPPINGS_PERCENT_MAX: usize = 50;
/// vm.max_map_count where it cannot be read: what Linux has by default.
pub const MAPPINGS_MAX_USUAL: usize = 65_530;
/// Views one copy plan may name: 1,024 layers, K and V.
pub const PLAN_VIEWS_MAX: usize = 2048;
/// Pieces of device memory that one page may be in.
pub const DEVICE_RUNS_MAX: usize = 1 << 16;
/// Pieces up to so many bytes are copied faster by a kernel than in a batch, where that was not measured:
/// from 28 KiB on batches win, by published figures (on an H200 kernels still do with 32 KiB).
pub const KERNEL_PIECE_BYTES_USUAL: usize = 28 << 10;
/// So many pieces at least make a launch worth it: published figures say 16 to 64.
pub const KERNEL_PIECES_MIN: usize = 32;
/// How long it may take to measure what a kernel copies faster, when a device is opened.
pub const CALIBRATION_MAX: Duration = Duration::from_millis(200);
/// Pieces of one measured copy, and the largest of them. Powers of two below that are measured.
pub const CALIBRATION_PIECES: usize = 256;
/// See [`CALIBRATION_PIECES`].
pub const CALIBRATION_PIECE_BYTES_MAX: usize = 64 << 10;
/// The smallest of them.
pub const CALIBRATION_PIECE_BYTES_MIN: usize = 1 << 10;
/// Times that each is measured; the shortest counts.
pub const CALIBRATION_ROUNDS: usize = 3;
/// Share of a batch's time, in percent, that a kernel must stay under to count as faster: it costs the engine
/// processors.
pub const KERNEL_TIME_PERCENT_MAX: u32 = 90;
/// Devices and drivers whose speeds a process remembers.
pub const SPEEDS_KNOWN_MAX: usize = 64;
/// Pieces of one launch of the copy kernel.
pub const COPY_PIECES_MAX: usize = 1 << 15;
/// Bytes of a run that one block or warp of threads takes the checksum of; more where a page would come to
/// too many parts.
pub const CHECKSUM_PART_BYTES: usize = 64 << 10;
/// Pieces of one launch of the checksum kernel: a page in the most pieces allowed, with a gap before each and
/// one at the end, and cut as often again.
pub const CHECKSUM_PIECES_MAX: usize = 3 * DEVICE_RUNS_MAX + 1;
/// Pages whose pieces have so many bytes on average, or fewer, are put together on the device before they cross the link: copy
/// engines take microseconds for each piece.
pub const GATHER_PIECE_BYTES_MAX: usize = 256 << 10;
/// Device memory of one lane where they lie then.
pub const GATHER_BYTES: usize = 32 << 20;
/// Bytes that are put together at a time.
pub const GATHER_PART_BYTES: usize = 8 << 20;
/// Thread blocks of a copy kernel: on an H200, 4 to 16 of them are equally fast over the link, and more are slower.
pub const KERNEL_BLOCKS_USUAL: u32 = 8;
/// So many times as many copy within the device, where no link bounds them.
pub const KERNEL_BLOCKS_WITHIN_FACTOR: u32 = 4;
/// Bytes that one launch moves: on an H200, 16 MiB a launch reach 0.9 of a plain copy, and 4 MiB 0.86.
pub const KERNEL_CHUNK_BYTES_USUAL: usize = 16 << 20;
/// What comes layer by layer is moved by so many launches at most, besides one a layer, however much it is: an engine begins when
/// all of them are enqueued.
pub const LAYERED_LAUNCHES_MAX: usize = 32;
/// Its checksums are taken in so many parts at most, so that those of the last layers are little work; each is of so many bytes at least.
pub const LAYERED_SUMS_MAX: usize = 8;
/// See [`LAYERED_SUMS_MAX`].
pub const LAYERED_SUM_BYTES_MIN: usize = 32 << 20;
/// The least that may be asked for: smaller launches do nothing but begin and end.
pub const CHUNK_BYTES_MIN: usize = 64 << 10;
/// Pinned memory of one lane for tables and checksums: those of 131,072 tokens by layers, 72 pieces of 32 KiB for 16 of them, have room.
pub const TABLE_BYTES: usize = 16 << 20;
/// Pinned memory for staged copies, both ways.
pub const STAGING_BYTES_USUAL: usize = 64 << 20;
/// The least that may be asked for.
pub const STAGING_BYTES_MIN: usize = 1 << 20;
/// Bytes that are staged as one piece, where the ring is large enough for several.
pub const STAGED_PIECE_BYTES_MAX: usize = 4 << 20;
/// Device memory that NICs are told of comes in multiples of this: the driver maps it so, and its ends are pages of any host.
pub const EXPORT_STEP_BYTES: usize = 2 << 20;
/// Pieces of a ring of pinned memory begin at multiples of this.
pub const RING_ALIGN: usize = 256;
/// Copies that may wait for a lane, and marks that may be watched.
pub const LANE_JOBS_MAX: usize = 1024;
/// Calls that a lane's stream is given before older ones are done. A driver's queue holds about a thousand;
/// when it is full, the driver keeps the thread that calls, and whoever else launches.
pub const STREAM_CALLS_MAX: usize = 512;
/// Calls between two events that say how far a stream is.
pub const STEP_CALLS_MAX: usize = 128;
/// Copies of a batch that count as one call: a driver submits many of them at once.
pub const BATCH_COPIES_A_CALL: usize = 16;
/// Calls that one launch of the copy kernel takes: its table's copy, and itself.
pub const COPY_LAUNCH_CALLS: usize = 2;
/// Calls that the checksums of one table take: its copy, and two launches.
pub const CHECKSUM_CALLS: usize = 3;
/// The shortest and longest pause between two looks at whether copies are done.
pub const POLL_PAUSE_MIN: Duration = Duration::from_micros(10);
/// See [`POLL_PAUSE_MIN`].
pub const POLL_PAUSE_MAX: Duration = Duration::from_micros(300);
/// By how much the system may make a pause longer, to wake less often.
pub const POLL_SLACK: Duration = Duration::from_micros(1);
/// Within these, the part of the wait so far after which is looked again.
pub const POLL_PART: u32 = 16;
/// How long the first work on a device may take, when it is opened: its kernels are compiled and loaded
/// meanwhile.
pub const OPENING_WAIT: Duration = Duration::from_secs(60);
/// Of that, for how long the thread that opens it looks without a pause.
pub const OPENING_SPIN: Duration = Duration::from_millis(5);
/// A device whose copies have not ended after so long counts as broken.
pub const STUCK_AFTER: Duration = Duration::from_secs(120);
/// Slabs that one device knows of; copies of others are staged.
pub const REGIONS_MAX: usize = 4096;
/// Bytes of a slab that are pinned at a time: a driver walks their pages under locks that every process of
/// the machine needs, at about 0.1 s a GB.
pub const REGISTER_PIECE_BYTES: usize = 64 << 20;
/// The shortest and longest pause after a piece; within these, as long as the piece took.
pub const REGISTER_PAUSE_MIN: Duration = Duration::from_millis(1);
/// See [`REGISTER_PAUSE_MIN`].
pub const REGISTER_PAUSE_MAX: Duration = Duration::from_millis(50);
/// How often slabs that nobody maps any more are looked for.
pub const SWEEP_PAUSE: Duration = Duration::from_millis(250);
/// Calls that a stream of the host device holds before the next one waits.
pub const HOST_STREAM_CALLS_MAX: usize = 1 << 16;
/// How often a stream of the host device that waits for an event looks whether the device ended.
pub const HOST_LOOK: Duration = Duration::from_millis(20);
/// Copies that one call of a driver's batch function is given: its arrays stay in a cache, and a failure
/// names few.
pub const COPY_BATCH_MAX: usize = 4096;
/// Thread blocks that one copy kernel may be asked for.
pub const KERNEL_BLOCKS_MAX: u32 = 1024;
/// Thread blocks of the kernel that takes checksums: the rest of the device stays with its owner.
pub const CHECKSUM_BLOCKS_MAX: u32 = 32;
/// Pieces from which on a warp, not a block, takes each one's checksum: that many warps keep the blocks above
/// busy.
pub const CHECKSUM_WARP_PIECES_MIN: u32 = 256;
/// Thread blocks, of one warp each, of the kernel that takes SHA-256.
pub const SHA256_BLOCKS_MAX: u32 = 528;
/// What a driver's compiler may say about our kernels, in bytes.
pub const JIT_LOG_BYTES: usize = 2048;
/// A device's name, in bytes.
pub const DEVICE_NAME_BYTES: usize = 128;
/// A PCI slot's name with a domain of 32 bits, in bytes: "00000000:00:00.0" and its end.
pub const PCI_ID_BYTES: usize = 32;

/// Bytes that one operation of a fabric moves: larger pages take several.
pub const OPERATION_BYTES_MAX: usize = 64 << 20;
/// Operations that any rail has room for at a time.
pub const RAIL_OPERATIONS_MIN: usize = 64;
/// Bytes of the address of one end of a rail.
pub const RAIL_ADDRESS_BYTES_MAX: usize = 512;
/// Operations that a framed rail holds, begun or not.
pub const RAIL_OPERATIONS_MAX: usize = 1024;
/// Operations of a framed rail that have begun and are not answered.
pub const RAIL_BEGUN_MAX: usize = 64;
/// Operations under way on a framed rail from which on new ones wait for a pause, to begin together.
pub const RAIL_BEGUN_FEW: usize = 4;
/// Bytes that go one way on a framed rail while others wait to go the other way.
pub const RAIL_TURN_BYTES: u64 = 8 << 20;
/// Headers that wait to leave together.
pub const HEADERS_WAITING_MAX: usize = 16;
/// Bytes of a refused payload that are read and dropped in one call.
pub const DROPPED_BYTES: usize = 64 << 10;
/// Ciphertext that a TLS rail reads in one call.
pub const TLS_READ_BYTES: usize = 64 << 10;
/// Ciphertext that waits to leave a TLS rail.
pub const TLS_UNSENT_BYTES: usize = 64 << 10;
/// Plaintext that one read from a TLS rail gives, up to the end of its last record: memory is not taken back while it
/// is written.
pub const TLS_MOVED_BYTES: usize = 256 << 10;
/// Registrations in force in one framed domain.
pub const REGISTRATIONS_MAX: usize = 1 << 16;
/// How long a framed rail with something due may take for [`RAIL_PACE_BYTES`], before it ends.
pub const FRAMED_STALL: Duration = Duration::from_secs(10);
/// Bytes that a framed rail moves in each [`FRAMED_STALL`] of what is due, the first of it where several are: at 26 KB/s a page
/// of 2 MiB takes longer than any call, and whoever is slower only keeps slots and shares.
pub const RAIL_PACE_BYTES: u64 = 256 << 10;
/// Round trip up to which the other end of a framed connection is near: on this host, or a few switches away.
pub const NEAR_ROUND_TRIP: Duration = Duration::from_micros(100);
/// Bytes that a socket holds for a near end, on their way or not: those of four rails fill 160 Gbit/s at the longest such
/// round trip.
pub const NEAR_UNREAD_BYTES: usize = 512 << 10;
/// How long a data connection is silent before the system asks whether its peer is there.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// The pause between two such questions.
pub const KEEPALIVE_PROBE_PAUSE: Duration = Duration::from_secs(10);
/// So many questions without an answer end the connection.
pub const KEEPALIVE_PROBES: u32 = 3;

/// Operations of one rail over libfabric or verbs that are under way or wait for its queue pair.
pub const NIC_RAIL_OPERATIONS_MAX: usize = 256;
/// Work requests that a queue pair or endpoint is given before older ones have ended, where it takes as many.
pub const RAIL_PARTS_MAX: usize = 64;
/// Work requests that are handed over in one call.
pub const RAIL_BATCH_MAX: usize = 16;
/// Bytes of one work request: a larger operation is several.
pub const RAIL_PART_BYTES_MAX: u32 = 2 << 20;
/// How long a rail with work requests under way may go without the end of one before it is given up.
pub const RAIL_STALL: Duration = Duration::from_secs(10);
/// Rails of one NIC of a server, and of one domain of a client.
pub const RAILS_MAX: usize = 1024;
/// Looks at a NIC without a pause after the last thing that moved, between yields of the core.
pub const DRIVER_YIELDS: u32 = 2_000;
/// The shortest and longest pause between two looks at a NIC that has work under way.
pub const DRIVER_PAUSE_MIN: Duration = Duration::from_micros(10);
/// See [`DRIVER_PAUSE_MIN`].
pub const DRIVER_PAUSE_MAX: Duration = Duration::from_micros(200);
/// Pause between two looks at a NIC that has nothing under way but must be looked at.
pub const DRIVER_REST: Duration = Duration::from_millis(10);
/// Pause before a queue pair that could not be destroyed is destroyed again.
pub const DESTROY_PAUSE: Duration = Duration::from_millis(100);
/// Slabs that one NIC knows.
pub const LOCAL_REGIONS_MAX: usize = 4096;
/// Threads that register slabs with one NIC at a time: the kernel pins their pages, 500 GB in 49 s by one
/// thread and in 12 s by several, as others measured.
pub const REGISTRARS_MAX: usize = 4;
/// Pieces of memory that one domain of a client lends.
pub const DOMAIN_REGISTRATIONS_MAX: usize = 4096;
/// Keys that are drawn for one registration before it is given up.
pub const REGISTER_KEYS_TRIED_MAX: usize = 8;
/// How long a client's thread of a rail sleeps at most before it looks whether the rail was closed.
pub const TARGET_WAIT: Duration = Duration::from_millis(50);
/// Pause between two looks at a client's end of a rail whose provider cannot wake it.
pub const TARGET_LOOK: Duration = Duration::from_micros(100);
/// How long a queue pair waits for its peer's answer before it sends again, as its NIC counts: 4.096 us times
/// two to this, 67 ms.
pub const QUEUE_PAIR_TIMEOUT: u8 = 14;
/// Times that it sends again before the peer counts as gone: half a second at least, NICs take up to four
/// times as long.
pub const QUEUE_PAIR_RETRIES: u8 = 7;
/// What it asks a peer to wait that was not ready: 0.64 ms, as NICs count.
pub const QUEUE_PAIR_NOT_READY_TIMER: u8 = 12;
/// Times that it asks a peer again that was not ready; 7 would be for ever.
pub const QUEUE_PAIR_NOT_READY_RETRIES: u8 = 6;
/// Reads that a queue pair has on the wire at a time, where both NICs take as many.
pub const QUEUE_PAIR_READS_MAX: u8 = 16;
/// Routers that a packet of a queue pair may pass.
pub const QUEUE_PAIR_HOPS_MAX: u8 = 64;
/// Entries of a port's address table that are looked at.
pub const GIDS_MAX: i32 = 256;

const _: () =
    assert!(NIC_RAIL_OPERATIONS_MAX >= RAIL_OPERATIONS_MIN, "a NIC's rail has the room that any has");
const _: () = assert!(QUEUE_PAIR_NOT_READY_RETRIES < 7, "7 is a NIC's word for ever");
const _: () = assert!(RAIL_BATCH_MAX <= RAIL_PARTS_MAX, "a batch fits a queue pair");
const _: () = assert!(RAIL_OPERATIONS_MAX >= RAIL_OPERATIONS_MIN && RAIL_BEGUN_MAX <= RAIL_OPERATIONS_MAX);
const _: () = assert!(OPERATION_BYTES_MAX <= u32::MAX as usize, "a span's length has 32 bits");
const _: () = assert!(READ_BUFFER_BYTES > FRAME_HEADER_BYTES, "a header must fit the read buffer");
const _: () = assert!(FRAME_BYTES_MAX <= u32::MAX as usize, "the length field of a frame has 32 bits");
const _: () =
    assert!(SEND_BUFFER_BYTES < FRAME_BYTES_MAX, "what a peer leaves unread is bounded tighter than a frame");
const _: () = assert!(COPY_PIECES_MAX * 24 + RING_ALIGN <= TABLE_BYTES / 2, "two launches' tables fit");
const _: () = assert!(
    CHECKSUM_PIECES_MAX * 24 + CHECKSUM_PIECES_MAX * 16 + RING_ALIGN <= TABLE_BYTES,
    "the table of a launch of checksums fits, with a page for every piece"
);
const _: () = assert!(
    BATCH_COPIES_A_CALL * STREAM_CALLS_MAX < 50_000,
    "some drivers are said to hang with as many copies of batches under way"
);
const _: () =
    assert!(STREAM_CALLS_MAX >= 2 * STEP_CALLS_MAX, "a part's calls find room when older parts are done");
const _: () = assert!(
    REGISTER_PIECE_BYTES.is_multiple_of(2 << 20),
    "pieces end with a page, also where pages are huge"
);
const _: () =
    assert!(GATHER_BYTES >= 3 * GATHER_PART_BYTES, "one part is copied while the next is put together");
const _: () = assert!(GATHER_PART_BYTES.is_multiple_of(RING_ALIGN), "parts end where others may begin");
const _: () = assert!(STAGING_BYTES_MIN / 4 >= RING_ALIGN, "a lane's half holds two pieces");
const _: () = assert!(CHUNK_BYTES.is_multiple_of(64), "chunks end on cache lines");
const _: () = assert!(STREAMING_RUN_BYTES_MIN <= CHUNK_BYTES, "a chunk can be streamed");
const _: () =
    assert!(CHECKSUM_WARP_PIECES_MIN >= 8 * CHECKSUM_BLOCKS_MAX, "eight warps a block have a piece each");
