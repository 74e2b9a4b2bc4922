//! The engine: asks the pool what to do and has the tiers do it. Owns: the one lock around the pool, the waits on
//! its answers, and the order "decide under the lock, move bytes outside it". Must not know: messages, gRPC, sockets, frames.
//!
//! A verb takes an ask of its own (checked, owned by the verb's file) and gives a plain answer; doors translate both.
//!
//! - [`state`]: what an engine has; [`decide`]: the lock; [`refusal`]: what the pool refuses
//! - [`start`]: assembles the tiers, recovers, loads the catalog; [`check_start`]: whether another one could
//! - [`namespace`]: opens and finds namespaces; [`restore`], [`save`]: sessions and pins across restarts; [`learned`]: what
//!   policy and curves know; [`learner`]: how far that is saved
//! - [`lookup`], [`offload`], [`reload`]: the verbs on pages; [`hold`]: those on slots that a client maps; [`inline`]: those whose
//!   pages travel in a stream; [`remote`]: those whose pages go over the rails of
//!   another host, [`remotes`]: who is there, and what is under way to them
//! - [`session`], [`pin`], [`prefetch`], [`route`]: the verbs on sessions and prefixes
//! - [`pull`]: what other pools of the cluster have of sessions; [`afar`]: what of it is on its way; [`second_copies`]:
//!   prefixes that are here and there
//! - [`leaving`], [`moves`]: sessions that go to other pools, because this host is emptied; [`take`]: those that come from one
//! - [`second_pins`], [`placed_pins`]: pins that another pool has too; [`hold_prefix`]: those of others here
//! - [`fetch`]: what only the archive has of sessions; [`archived`]: what is known of it, and who asks for it
//! - [`cluster`]: what other members are told of sessions here, and what they ask
//! - [`snapshot`]: what a snapshot takes from the pool beside pages, and sessions that come back from one; [`specs`]: what open
//!   namespaces are
//! - [`promote`], [`writeback`], [`reclaim`]: bytes between DRAM and NVMe; [`place`]: where these are; [`promotions`],
//!   [`reclaimer`]: who waits for the reads, and what is under way
//! - [`make_durable`], [`durable`]: commits until their pages are on NVMe, and who waits; [`waits`]: who waits for slots
//! - [`memory`], [`start_plan`], [`outliving`]: page memory that the last process left, and that the next one will find
//! - [`slabs`], [`renew`]: slots as memory, and slabs that change tenant; [`verify`], [`verifier`]: pages in DRAM that are checked
//!   before a reload is told of them
//! - [`resize`]: how much DRAM there is; [`resizer`]: who sees to it
//! - [`hello`], [`clients`], [`tick`], [`drain`], [`health`]: who comes and who is there, deadlines, leaving, what is wrong
//! - [`advice`]: what more memory would buy; [`record`], [`recorder`]: what turns asked, for a trace
//! - [`metrics`], [`gauges`], [`picture`], [`tier_seconds`], [`stats`]: what is counted, held, looked at, timed, reported
//! - `inspect`, `testing`: what simulators and tests may do

pub(crate) mod advice;
pub(crate) mod afar;
mod ahead;
pub(crate) mod archived;
mod brought;
mod check_start;
pub(crate) mod clients;
mod cluster;
mod decide;
pub(crate) mod drain;
pub(crate) mod durable;
mod expected;
mod fetch;
mod gauges;
pub(crate) mod health;
pub(crate) mod hello;
pub(crate) mod hold;
mod hold_prefix;
pub(crate) mod inline;
#[cfg(feature = "simulation")]
pub(crate) mod inspect;
mod learned;
mod learner;
pub(crate) mod leaving;
pub(crate) mod lookup;
mod make_durable;
pub(crate) mod memory;
mod metrics;
pub(crate) mod moves;
pub(crate) mod namespace;
pub(crate) mod offload;
pub(crate) mod outliving;
mod picture;
pub(crate) mod pin;
mod place;
mod placed_pins;
pub(crate) mod prefetch;
mod promote;
mod promotions;
pub(crate) mod pull;
pub(crate) mod reclaim;
mod reclaimer;
mod record;
pub(crate) mod recorder;
mod refusal;
pub(crate) mod reload;
pub(crate) mod remote;
pub(crate) mod remotes;
mod renew;
pub(crate) mod resize;
mod resizer;
pub(crate) mod restore;
pub(crate) mod route;
pub(crate) mod save;
mod second_copies;
mod second_pins;
pub(crate) mod session;
mod slabs;
pub(crate) mod snapshot;
mod specs;
pub(crate) mod start;
mod start_plan;
mod state;
pub(crate) mod stats;
mod take;
#[cfg(test)]
pub(crate) mod testing;
pub(crate) mod tick;
mod tier_seconds;
mod verifier;
mod verify;
mod waits;
pub(crate) mod writeback;

pub(crate) use state::Engine;

use refusal::refuse;
use state::Core;
