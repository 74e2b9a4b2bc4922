//! Turns that begin on another host than the last one ended on: real pools of one cluster, a static list, the loopback.
//!
//! `TURNKV_PULL_KILLS` sets how many rounds of kills (20 unless told).
//!
//! - `support`: pools of a cluster, each behind a proxy of its own; turns of a session
//! - `hops`: sessions that go from pool to pool, and prefixes that no session names
//! - `nowhere`: prompts that no member has
//! - `pins`: prefixes that another member has pinned too
//! - `routes`: engines on all hosts, for whichever member a router asks
//! - `signposts`: prompts in a large cluster
//! - `lost_homes`: sessions whose home is gone when their next turn begins
//! - `faults`: homes that are slow, damaged on the way, killed, begin again; pools that are killed while they pull
#![forbid(unsafe_code)]

mod faults;
mod hops;
mod lost_homes;
mod nowhere;
mod pins;
mod routes;
mod signposts;
mod support;
