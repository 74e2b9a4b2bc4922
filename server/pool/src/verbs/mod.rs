//! What callers ask of the pool, one file a subject. Owns: the order in which wings are asked. Must not know:
//! the wire, I/O.
//!
//! - pages: `lookup`, `offload` and `commit`, `reload`, `mapped` (slots that a process has mapped), `take_over` (since before the start),
//!   `prefetch`, `promote`
//! - `leases`: how leases begin and end; `clients`: who holds them
//! - sessions: `session` (fork, supersede, close), `turn_begin`, `turn_end`, `retain` (those with a priority),
//!   `describe` (for people), `record` (across restarts), `outline` (what hangs on what, for snapshots), `resting` (those that
//!   may be kept elsewhere)
//! - `pins`: prefixes that many sessions share
//! - NVMe: `writes`, `reads`, `space` (segments that are emptied), `starts` (what was found there)
//! - `namespaces`, and `retire`: those that make way; `sizing`: how much they could do with; `learned`: what the next process goes
//!   on from
//! - `slabs`: memory that changes tenant, or fails; `expire`: time passing; `sweep`: walks through the whole
//!   index

mod clients;
pub(crate) mod commit;
pub(crate) mod describe;
pub(crate) mod expire;
mod learned;
mod leases;
mod leave_prefix;
pub(crate) mod lookup;
pub(crate) mod mapped;
pub(crate) mod namespaces;
pub(crate) mod offload;
pub(crate) mod outline;
pub(crate) mod pins;
pub(crate) mod prefetch;
mod promote;
mod reads;
pub(crate) mod record;
pub(crate) mod reload;
pub(crate) mod resting;
pub(crate) mod retain;
mod retire;
pub(crate) mod session;
pub(crate) mod sizing;
pub(crate) mod slabs;
mod space;
mod starts;
pub(crate) mod sweep;
pub(crate) mod take_over;
pub(crate) mod turn_begin;
pub(crate) mod turn_end;
mod writes;
