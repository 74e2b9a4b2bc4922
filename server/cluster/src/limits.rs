//! The named bounds of the cluster's decisions. Owns: constants. Must not know: what keeps them.

use turnkv_proto::limits::SIGNPOST_EVERY;

/// Members of a cluster.
pub const MEMBERS_MAX: usize = 1024;
/// Milliseconds by which an incarnation may be ahead of the time since 1970 to be believed: a year. Lives are counted, or numbered by
/// that time, so none is; one far ahead would be the last that its member ever has.
pub const INCARNATION_AHEAD_MS: u64 = 366 * 24 * 60 * 60 * 1000;
/// Members whose highest incarnation is remembered, those that left included.
pub const MARKS_MAX: usize = 4 * MEMBERS_MAX;
/// Milliseconds over which an earlier life of a member speaks beside a later one before they are two servers of one name, and between two
/// times that this is told. Of a life that ended one message at most comes late; two that hear of one another in etcd speak so for some
/// seconds each time.
pub const TWICE_MS: u64 = 1_500;
/// Rounds in a row that an empty view, or one of less than half, must be seen before it is believed.
pub const SHRUNK_ROUNDS: u32 = 3;
/// Rounds in a row without its peers after which a member says that it is away.
pub const AWAY_AFTER_ROUNDS: u32 = 3;
/// Rounds in a row with them after which it says that it is back.
pub const BACK_AFTER_ROUNDS: u32 = 10;
/// Members that know where a session is: the first in rank for its key.
pub const AUTHORITIES: usize = 2;
/// Sessions that an authority knows; beyond it those that were published longest ago are forgotten.
pub const TIPS_MAX: usize = 1 << 21;
/// Signposts that an authority knows, likewise.
pub const POSTS_MAX: usize = 1 << 22;
/// Sessions that a member publishes as theirs; for each that is more another makes way, which is found on its own host only.
pub const HOMES_MAX: usize = 1 << 20;
/// Sessions at home here that a round looks for in the pool at least: what it lost is not published for long.
pub const HOMES_CHECKED_MIN: usize = 4096;
/// Sessions that went to another member and are remembered with it, for redirects.
pub const MOVED_MAX: usize = 1 << 16;
/// Rounds in which a member publishes all its sessions once more.
pub const SWEEP_ROUNDS: u64 = 60;
/// The same after a view that differs: what an authority lost is told again so soon.
pub const HURRY_ROUNDS: u64 = 10;
/// Rounds after one without its peers in which a member asks others also of sessions at home there: until it is back, and all that went on
/// elsewhere was told again.
pub const APART_ROUNDS: u64 = BACK_AFTER_ROUNDS as u64 + HURRY_ROUNDS + 4;
/// Rounds of one generation of a directory: what was not published again in two of them is gone.
pub const GENERATION_ROUNDS: u64 = 2 * SWEEP_ROUNDS;
/// Tips and signposts of one message.
pub const PUBLISH_MAX: usize = 1024;
/// Members of a cluster up to which a lookup asks all of them.
pub const ASK_ALL_MAX: usize = 16;
/// Every so many pages of a chain one is a signpost.
pub const POST_EVERY: usize = SIGNPOST_EVERY;
/// Hashes that one round of a lookup asks a member about.
pub const SAMPLE_MAX: usize = 96;
/// Signposts that one round of a lookup asks about.
pub const POST_PROBES_MAX: usize = 16;
/// Milliseconds that one question to a member may take before the next one is asked, or none.
pub const ASK_MS: u64 = 20;
/// Milliseconds after which a turn that was told of a later tip than there is asks again.
pub const TOLD_AGAIN_MS: u64 = 10;
/// Milliseconds that a turn waits in all until it is decided where its pages are.
pub const FIND_MS: u64 = 200;
/// Milliseconds that a lookup takes in all.
pub const LOOKUP_MS: u64 = 100;
/// Homes that a turn tries, each named by the one before.
pub const REDIRECTS_MAX: u32 = 2;
/// Turns and lookups of one member under way; one more is decided at once: nothing elsewhere.
pub const CALLS_MAX: usize = 16_384;

const _: () = assert!(GENERATION_ROUNDS > SWEEP_ROUNDS, "what is swept is never forgotten");
const _: () = assert!(AUTHORITIES as u64 * ASK_MS < FIND_MS, "every authority can be asked in time");
const _: () = assert!(AWAY_AFTER_ROUNDS < BACK_AFTER_ROUNDS, "whoever left comes back with care");
const _: () = assert!(POST_EVERY <= SAMPLE_MAX, "between two signposts one round settles it");
