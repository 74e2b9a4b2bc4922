//! The bounds of pulls from other pools of the cluster. Owns: constants. Must not know: what keeps them.

use std::time::Duration;

/// How long the begin of a turn may take to find what other pools have of its session.
pub(crate) const FIND_TURN_WAIT: Duration = Duration::from_millis(400);
/// Of that, what is left when its home has to have named them: one that does not in time counts as standing still.
pub(crate) const FIND_TURN_SPARE: Duration = Duration::from_millis(50);
/// Pages of a prefix that a pool names for another one.
pub(crate) const NAMED_PREFIX_PAGES_MAX: usize = turnkv_proto::limits::HASHES_PER_CALL_MAX;
/// Chunks of its list that are named under one hold of the lock.
pub(crate) const NAMED_CHUNKS_AT_ONCE: usize = 8;
/// How long an offload waits for a pull to let go of the page that it brings.
pub(crate) const PULL_YIELD_WAIT: Duration = Duration::from_millis(100);
/// Pulls under way, each of one session or prefix.
pub(crate) const PULLS_MAX: usize = 16;
/// Pulls that wait for one of these to end; one more is not begun: the turn finds what is here.
pub(crate) const PULLS_WAITING_MAX: usize = 256;
/// Pages of all pulls together, waiting ones included: their names are held until they have come.
pub(crate) const PULL_PAGES_MAX: usize = 1 << 19;
/// Bytes that all pulls have asked for and that have not come.
pub(crate) const PULL_BYTES_MAX: u64 = 256 << 20;
/// Bytes of pages that one pull asks for at a time: they are readable together. It begins with one page and doubles.
pub(crate) const PULL_PART_BYTES_MAX: u64 = 16 << 20;
/// A part that took so much longer than the shortest one is followed by one of half its size: pages are readable so often, however
/// slow the wire is.
pub(crate) const PULL_PART_MS: u64 = 50;
/// How long one part may take to come: less than a lease lasts.
pub(crate) const PULL_PART_WAIT: Duration = Duration::from_secs(5);
/// How long a part waits for slots here.
pub(crate) const PULL_SLOT_WAIT: Duration = Duration::from_secs(1);
/// Pause before slots are asked for again.
pub(crate) const PULL_SLOT_PAUSE: Duration = Duration::from_millis(5);
/// How long a pull may find no slot for its next page before it ends.
pub(crate) const PULL_STALL_MAX: Duration = Duration::from_secs(5);
/// How long before a session is expected its pages are asked for at another member.
pub(crate) const PREFETCH_AFAR_AHEAD: Duration = Duration::from_secs(5);
/// Sessions that are waited with until then; one more is not brought ahead of its turn.
pub(crate) const PREFETCH_AFAR_WAITING_MAX: usize = 4_096;
/// Pages of a pull that ended that are let go of under one hold of the lock that reloads look behind.
pub(crate) const PULL_PAGES_SETTLED_PER_LOCK: usize = 2048;
/// How often the gauges of pulls are brought up to date.
pub(crate) const PULL_LOOK: Duration = Duration::from_millis(500);
/// How long a reload waits for the next page of a pull, within its own deadline.
pub(crate) const PULL_PAGE_WAIT: Duration = Duration::from_secs(5);
/// Percent of its own time that it waits so: what does not come is fetched from the archive, or computed, in the rest.
pub(crate) const PULL_PAGE_WAIT_PERCENT: u32 = 50;
/// How long nothing of a pull came before a reload that waited for it in vain says that it stands still: it is waited for by nobody
/// until more of it comes.
pub(crate) const PULL_STILL_MIN: Duration = Duration::from_millis(500);
/// Sessions whose pages were brought ahead of a turn and that are remembered with their lists until it begins, and pages of these.
pub(crate) const BROUGHT_SESSIONS_MAX: usize = 4_096;
/// See [`BROUGHT_SESSIONS_MAX`].
pub(crate) const BROUGHT_PAGES_MAX: usize = 1 << 19;
/// For how long: a turn that somebody routes begins soon.
pub(crate) const BROUGHT_TIME: Duration = Duration::from_secs(120);
/// When it makes sense to pin again what is on its way from another member.
pub(crate) const PIN_AFAR_RETRY_MS: u32 = 100;
/// Percent of DRAM that prefixes pulled from others may take like pages that are here only; those beyond go first, however often they are
/// read.
pub(crate) const SECOND_COPY_PERCENT_MAX: u64 = 25;
/// Such prefixes.
pub(crate) const SECOND_COPIES_MAX: usize = 4096;
/// Members that pages are pulled from, with their connections; beyond it those that were asked longest ago are let go of.
pub(crate) const PULL_PEERS_MAX: usize = 64;
/// Failures in a row (no answer, nobody there) after which a member is not pulled from for a while.
pub(crate) const PULL_FAILURES_MAX: u32 = 3;
/// How long that is, in milliseconds.
pub(crate) const PULL_PAUSE_MS: u64 = 1_000;
/// How long a connection to a member may take to be made, in milliseconds.
pub(crate) const PULL_CONNECT_MS: u64 = 250;

const _: () = assert!(
    FIND_TURN_WAIT.as_millis()
        >= turnkv_cluster::limits::FIND_MS as u128
            + FIND_TURN_SPARE.as_millis()
            + super::PEER_SILENT_MIN.as_millis(),
    "a home that was found late is still asked"
);
const _: () = assert!(PULL_PART_BYTES_MAX < PULL_BYTES_MAX, "several pulls go on beside one another");
const _: () = assert!(
    PULL_PART_BYTES_MAX <= turnkv_client::limits::WINDOW_BYTES_MAX,
    "a part is one window of the client"
);
