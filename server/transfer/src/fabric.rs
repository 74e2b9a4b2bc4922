//! Moving bytes between hosts. Owns: one contract for whatever moves them, and the engines that fulfil it.
//! Must not know: pages, leases, who asked, how the control connection speaks.
//!
//! - [`contract`]: what an engine is to the server (*initiator*: starts every transfer) and to the client
//!   (*target*: registered its memory)
//! - [`operation`]: one transfer, what it comes to, and what names registered memory
//! - [`completion`]: the bounded queue in which every posted operation ends exactly once
//! - [`memory`]: memory that a client lends
//! - [`framed`]: the engine over byte streams
//! - [`libfabric`]: the engine over libfabric; [`verbs`]: the engine over RDMA verbs
//! - [`nics`]: opening the NICs of this machine that they can use
//! - `onesided`: what these two have in common
//! - `conformance`: the tests that every engine passes
//!
//! A *rail* is one way for bytes between the two: a data connection, or a queue pair on one NIC.

pub mod completion;
#[cfg(test)]
pub(crate) mod conformance;
pub mod contract;
pub mod framed;
pub mod libfabric;
pub mod memory;
pub mod nics;
mod onesided;
pub mod operation;
pub mod verbs;

pub use completion::{CompletionQueue, Posted};
pub use contract::{
    Answer, Domain, Engine, Initiator, NicReport, OpenError, Quarantined, RailAddress, RailAnswers,
    RailOffer, RailOffers, RegisterError, Target,
};
pub use memory::{Access, DeviceOwner, DeviceTarget, HostMemory, TargetMemory};
pub use operation::{
    Cause, Completed, Direction, Op, Operation, Outcome, RegionKey, RemoteSpan, Unposted, WhyUnposted,
};
