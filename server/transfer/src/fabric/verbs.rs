//! RDMA verbs: InfiniBand and RoCE. Owns: both ends of a rail over a reliable connection. Must not know: who
//! asks, what the bytes mean.
//!
//! - `sys`: the library's types; `api`: its functions, found at run time; `error`: its statuses
//! - `device`: a port, protection domains, registrations; `gid`: which of a port's addresses is used
//! - `queue_pair`: one reliable connection; `address`: what its ends tell one another
//! - `server`, `client`: the two ends of the contract
//!
//! The library is loaded when an end is opened. A machine without it, or without a device, says so and uses
//! another engine. Every rail has a queue pair and a completion queue of its own: a queue pair that failed is
//! destroyed, and with it all that it had, before anything of that completes.

mod address;
mod api;
mod client;
mod device;
mod error;
mod gid;
mod queue_pair;
mod server;
mod sys;

pub use client::VerbsClient;
pub use device::VerbsOptions;
pub use server::VerbsServer;

#[cfg(test)]
mod tests;
