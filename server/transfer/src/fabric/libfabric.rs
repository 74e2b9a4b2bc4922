//! libfabric: EFA, Slingshot, and for tests its providers over TCP. Owns: both ends of a rail over its
//! reliable datagram endpoints. Must not know: who asks, what the bytes mean.
//!
//! - `sys`: the library's types; `api`: its functions, found at run time; `error`: its numbers
//! - `device`: a provider's NIC; `endpoint`: one endpoint on it; `address`: what ends tell one another
//! - `layout`: tests of the types
//! - `server`, `client`: the two ends of the contract
//!
//! The library is loaded when an end is opened. A machine without it says so and uses another engine.
//!
//! Each rail has an endpoint of its own, at both ends: closing it is the one thing after which the library
//! promises that nothing is under way. One that failed once is never used again; some providers would go on
//! and say "try again" for ever.

mod address;
mod api;
mod client;
mod device;
mod endpoint;
mod error;
#[cfg(test)]
mod layout;
mod server;
mod sys;

pub use client::LibfabricClient;
pub use device::{LibfabricOptions, PROVIDERS_USUAL};
pub use server::LibfabricServer;

#[cfg(test)]
mod tests;
