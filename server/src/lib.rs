//! The pool server as a library: its binary is `turnkv`, and the seeded fault simulation runs it in one process.
//!
//! - `cli`: the command line; `cmd`: the operator's commands
//! - `config`: what the operator wrote, what was checked
//! - `serve`: the life of the server; `doors`: where requests enter; `connections`: who may be connected at them
//! - `access`: who may do what; `tls`: who comes over TCP
//! - `engine`: asks the pool, moves with the tiers
//! - `snapshots`: sessions' pages kept outside the pool, and brought back
//! - `pulls`: pages from other pools of the cluster; `moves`: sessions that go to them
//! - `keep`: page memory that outlives the process; `manager`: what is said to the service manager
//! - `catalog`: namespaces and sessions across restarts
//! - `cluster`: the pools that share what they have
//! - `clock`: what time it is
//! - `supervise`: what the server cannot do without
//! - `upgrade`: another program takes this one's place
//! - `report`: errors as an operator reads them; `usage`: a command line that cannot be understood
//! - `telemetry`, `limits`, `seldom` (what the log says now and then)
//! - `simulation` (a feature that no production build has): the engine without its threads, doors and clock

#![forbid(unsafe_code)]

mod access;
mod catalog;
mod cli;
mod clock;
mod cluster;
mod cmd;
mod config;
mod connections;
mod doors;
mod engine;
mod events;
mod keep;
mod limits;
mod manager;
mod moves;
mod pulls;
mod report;
mod seldom;
mod serve;
#[cfg(feature = "simulation")]
pub mod simulation;
mod snapshots;
mod supervise;
mod telemetry;
mod tls;
mod upgrade;
mod usage;

pub use cli::run;
