//! The named bounds of what joins a cluster. Owns: constants. Must not know: what keeps them; what a cluster decides has its own,
//! in `turnkv_cluster::limits`.

use std::time::Duration;
use turnkv_cluster::limits::{FIND_MS, HOMES_MAX, MOVED_MAX, PUBLISH_MAX, SHRUNK_ROUNDS};

/// Bytes of the name of a cluster, and of a member.
pub(crate) const CLUSTER_NAME_BYTES_MAX: usize = 64;
/// Bytes of where a member is reached, and of where it stands.
pub(crate) const MEMBER_TEXT_BYTES_MAX: usize = 280;
/// The largest part of the directory that a member may be given, against that of others.
pub(crate) const CLUSTER_WEIGHT_MAX: u32 = 10_000;
/// Places of etcd that are named.
pub(crate) const ETCD_ENDPOINTS_MAX: usize = 16;
/// A round: members are looked at, and told that this one is there.
pub(crate) const CLUSTER_ROUND: Duration = Duration::from_secs(1);
/// How exactly calls of the directory keep their times.
pub(crate) const CLUSTER_TICK: Duration = Duration::from_millis(2);
/// How long a cluster's standing names a member as which two servers spoke, after that was seen last.
pub(crate) const TWICE_TOLD_MAX: Duration = Duration::from_secs(60);
/// How long a member of a list is there after it was heard.
pub(crate) const MEMBER_SILENT_MAX: Duration = Duration::from_millis(3_500);
/// Messages to one member that wait to leave; more are dropped, as any may be lost.
pub(crate) const PEER_MESSAGES_MAX: usize = 256;
/// Messages that leave together.
pub(crate) const PEER_BATCH_MESSAGES_MAX: usize = 32;
/// Bytes of these, and of any other request between members: a tip takes less than 64, a signpost's key 16.
pub(crate) const CLUSTER_REQUEST_BYTES_MAX: usize = PEER_BATCH_MESSAGES_MAX * PUBLISH_MAX * 64 + (64 << 10);
/// How long a connection to a member may take to be made.
pub(crate) const PEER_CONNECT_MAX: Duration = Duration::from_millis(500);
/// How long a member may take to hear some messages.
pub(crate) const PEER_TELL_MAX: Duration = Duration::from_millis(500);
/// How long it may take to say what it knows of the engines that a router names.
pub(crate) const ROUTE_LOOK_MAX: Duration = Duration::from_millis(50);
/// Pages of a prompt that are named to it then.
pub(crate) const ROUTE_PAGES_MAX: usize = 16_384;
/// How long it may take to name a session's pages.
pub(crate) const PEER_NAME_MAX: Duration = Duration::from_millis(1_000);
/// The least time that a member was given for that, if it counts as standing still where it does not answer: it is then asked for nothing
/// until it answers a greeting, or for as long as after calls that failed.
pub(crate) const PEER_SILENT_MIN: Duration = Duration::from_millis(100);
/// How often the other end of a connection to a member is asked whether it is there.
pub(crate) const PEER_KEEP_ALIVE: Duration = Duration::from_secs(5);
/// How long it may take to say so.
pub(crate) const PEER_KEEP_ALIVE_WAIT: Duration = Duration::from_secs(2);
/// Calls to one member that failed in a row after which it is asked nothing for a while.
pub(crate) const PEER_FAILURES_MAX: u32 = 3;
/// For how long; what a round says to it is tried all the same.
pub(crate) const PEER_PAUSE: Duration = Duration::from_secs(2);
/// Bytes of why a member does not answer.
pub(crate) const PEER_NOTE_BYTES_MAX: usize = 256;
/// Members that a round says to that this one is there; in a larger cluster, those next to it in order.
pub(crate) const GREETED_MAX: usize = 64;
/// Rounds within which a member that was greeted has answered, if it is reached.
pub(crate) const ANSWERED_ROUNDS: u32 = 2;
/// Questions for pages under way to members; beyond, a member counts as silent.
pub(crate) const PROBES_MAX: usize = 256;
/// Sessions at home here whose names are known: those of all whose keys are.
pub(crate) const NAMED_MAX: usize = HOMES_MAX;
/// Of these, how many are looked for in the pool under one hold of its lock.
pub(crate) const HOMES_CHECKED_PER_LOCK: usize = 256;
/// Sessions whose home before is remembered until a turn of theirs ends here; beyond, their homes hear of it from authorities.
pub(crate) const HOMES_BEFORE_MAX: usize = MOVED_MAX;
/// How long it is believed that no other member has a page: a prompt that is nowhere is not waited for twice by one client's search and
/// its retries, and a page that was computed elsewhere meanwhile is found by the next turn.
pub(crate) const NOWHERE_TIME: Duration = Duration::from_secs(1);
/// Such pages, and pages that others said to hold, that are remembered, of each: 8 MB at most, at about 128 bytes an entry.
pub(crate) const NOWHERE_PAGES_MAX: u64 = 1 << 16;
/// Pages of a prompt that are looked for among those heard of.
pub(crate) const NOWHERE_CHECKED_MAX: usize = 1024;
/// Streams of members at a time.
pub(crate) const MEMBER_WATCHERS_MAX: usize = 256;
/// Rounds that pass before a member that was told that its life is over begins another one again.
pub(crate) const LIVES_ROUNDS_MIN: u64 = 5;
/// How long one request to etcd may take.
pub(crate) const ETCD_CALL_MAX: Duration = Duration::from_secs(2);
/// How long etcd keeps a member's key after the member was heard last.
pub(crate) const ETCD_LEASE: Duration = Duration::from_secs(5);
/// How often etcd is told that this member is there.
pub(crate) const ETCD_LOOK: Duration = Duration::from_secs(1);
/// Of these looks, every so manieth puts the member's own key again, whatever was read of it.
pub(crate) const ETCD_PUT_LOOKS: u64 = 5;
/// The shortest and the longest pause before etcd is asked again after it failed; it doubles.
pub(crate) const ETCD_PAUSE_MIN: Duration = Duration::from_millis(200);
/// The longest.
pub(crate) const ETCD_PAUSE_MAX: Duration = Duration::from_secs(5);
/// Bytes of what one key of etcd says.
pub(crate) const ETCD_VALUE_BYTES_MAX: usize = 4096;
/// Times that a number in etcd is raised again after somebody else did meanwhile.
pub(crate) const ETCD_RAISES_MAX: usize = 16;

const _: () = assert!(
    ETCD_LEASE.as_millis() > (ETCD_CALL_MAX.as_millis() + ETCD_LOOK.as_millis()),
    "one request that takes long takes nobody out"
);
const _: () = assert!(
    MEMBER_SILENT_MAX.as_millis() >= 3 * CLUSTER_ROUND.as_millis() && SHRUNK_ROUNDS >= 2,
    "a lost greeting or two take nobody out"
);
const _: () = assert!(CLUSTER_TICK.as_millis() as u64 * 10 <= FIND_MS, "a tick late is not late");
