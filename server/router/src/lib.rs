//! Which engine should run a turn. Pure: takes `now`; no I/O, no clock, no chance. Must not know: the pool.
//!
//! - [`Router`] (`route`): what is known of engines, and the ranking of those that could run a turn
//! - `error`: why a call is refused
//! - `limits`: the bounds of its tables

#![forbid(unsafe_code)]

mod error;
pub mod limits;
mod route;

pub use error::RouteError;
pub use route::{Candidate, EngineView, Now, Ranked, RouteAsk, RouteNamespace, Router};

#[cfg(test)]
mod tests;
