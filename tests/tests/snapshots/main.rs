//! Snapshots against a real server: what was captured comes back bit for bit after everything else is gone, what does not fit is
//! refused by name, and what ends half-way leaves no session.
//!
//! - `support`: a place for an archive, and the calls
//! - `round_trips`: sessions, prefixes, namespaces, from DRAM and from NVMe; shards, tails, token ids
//! - `refusals`: other namespaces, other tenants, limits, stores that are not there
//! - `faults`: damaged objects, callers and servers that end half-way
//! - `sharing`: forks, captures of the same, deletions and collections
//! - `commands`: `turnkv snapshot`, exports and imports
#![forbid(unsafe_code)]

mod commands;
mod faults;
mod refusals;
mod round_trips;
mod sharing;
mod support;
