//! The named bounds of memory that outlives the server's process, and of what is said to who keeps it. Owns: constants. Must not know:
//! what is kept.

use std::time::Duration;

/// Ending of the path at which the keeper of page memory listens, beside the gRPC socket.
pub(crate) const KEEP_SOCKET_SUFFIX: &str = ".keep";
/// Descriptors that a keeper holds: every slab's, its successor's while it is renewed, the slot table's, listening sockets.
pub(crate) const KEPT_MAX: usize = 2 * turnkv_tier::limits::SLABS_MAX as usize + 1 + KEPT_LISTENING_MAX;
/// Of these, listening sockets: local, gRPC on Unix and on TCP, metrics; each, while it changes its place, twice.
pub(crate) const KEPT_LISTENING_MAX: usize = 8;
/// Bytes of the name of a kept descriptor.
pub(crate) const KEPT_NAME_BYTES_MAX: usize = 64;
/// How long a call between a server and its keeper may take.
pub(crate) const KEEP_CALL_WAIT: Duration = Duration::from_secs(5);
/// How long a keeper may take to say that it is there, and to end once nobody needs it.
pub(crate) const KEEP_ASK_WAIT: Duration = Duration::from_secs(2);
/// How long a keeper that was started may take to listen.
pub(crate) const KEEP_START_WAIT: Duration = Duration::from_secs(5);
/// Pause between two looks for it.
pub(crate) const KEEP_START_PAUSE: Duration = Duration::from_millis(5);
/// How long a start waits for the server before it to have ended altogether.
pub(crate) const KEEP_SERVER_WAIT: Duration = Duration::from_secs(15);
/// The shortest and the longest pause between two tries to have memory kept again, after its keeper was lost or not found; it doubles.
pub(crate) const KEEP_RETRY_MIN: Duration = Duration::from_secs(1);
/// The longest.
pub(crate) const KEEP_RETRY_MAX: Duration = Duration::from_secs(60);
/// Pause between two looks whether it is there.
pub(crate) const KEEP_LOOK: Duration = Duration::from_millis(100);
/// Bytes of the names of all that systemd's descriptor store is given: it tells the next process all of them in one variable of the
/// environment, and the system starts no program that has one of 128 KiB.
pub(crate) const STORE_NAMES_BYTES_MAX: usize = 100 << 10;
/// How long a message to the service manager may take to be taken from us, and to be heard where we wait for that.
pub(crate) const MANAGER_WAIT: Duration = Duration::from_secs(5);
/// Pause between two tries to have it taken.
pub(crate) const MANAGER_PAUSE: Duration = Duration::from_millis(1);
/// Descriptors that a service manager may have this process start with, which is as many as there are names for.
pub(crate) const LISTEN_FDS_MAX: usize = STORE_NAMES_BYTES_MAX / 2;
/// Bytes of the list by which one program names to the next one in its process what it leaves open.
pub(crate) const HANDED_LIST_BYTES_MAX: u64 = (KEPT_MAX * (KEPT_NAME_BYTES_MAX + 12)) as u64;
