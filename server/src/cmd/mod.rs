//! The operator's commands. Owns: what each prints. Must not know: how the server works.
//!
//! - [`config`]: the effective configuration
//! - [`simulate`]: traces played against the pool with simulated time
//! - [`status`]: a running server's tiers, hit ratios, sessions, rates

pub(crate) mod config;
pub(crate) mod simulate;
pub(crate) mod status;
