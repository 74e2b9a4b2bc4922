//! The pool server in one process, without a thread or a socket of its own, in simulated time: what the seeded fault
//! simulation drives. Owns: what a simulator may do with an engine. Must not know: which faults it makes.
//!
//! - `server`: one life of a server; `verbs`: what its clients may call
//! - `catalog`: the catalog's file on a simulated disk
//! - `shape`: how large it is

mod catalog;
mod server;
mod shape;
#[cfg(test)]
mod tests;
mod verbs;

pub use crate::clock::time::Time;
pub use crate::engine::inspect::{Books, Held};
pub use server::Server;
pub use shape::Shape;
pub use turnkv_tier::nvme::simulation::{Fault, FaultCounts, FaultPlan, Random, SimulatedDisk, Step};
pub use verbs::Reload;
