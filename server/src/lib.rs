//! The pool server as a library: its binary is `turnkv`, and the seeded fault simulation runs it in one process.
//!
//! - `cli`: the command line; `cmd`: the operator's commands
//! - `config`: what the operator wrote, what was checked
//! - `service`, `local`, `http`: the three doors
//! - `engine`: asks the pool, moves with the tiers
//! - `catalog`: namespaces and sessions across restarts
//! - `clock`: what time it is
//! - `telemetry`, `limits`
//! - `simulation` (a feature that no production build has): the engine without its threads, doors and clock

#![forbid(unsafe_code)]

mod catalog;
mod cli;
mod clock;
mod cmd;
mod config;
mod engine;
mod http;
mod limits;
mod local;
mod service;
#[cfg(feature = "simulation")]
pub mod simulation;
mod telemetry;

pub use cli::run;
