//! The operator's commands. Owns: what each prints. Must not know: how the server works.
//!
//! - [`config`]: the effective configuration
//! - [`status`]: a running server's tiers, hit ratios, sessions, rates

pub(crate) mod config;
pub(crate) mod status;
