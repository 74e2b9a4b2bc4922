//! The archive from outside: what goes in comes out, and nothing else does, whatever happens to the store or the process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]
#![forbid(unsafe_code)]

mod crashes;
mod damage;
mod directory;
mod exports;
mod folders;
mod kills;
mod manifests;
mod parts;
mod round_trips;
mod shaky;
mod sharing;
mod spawned;
mod stores;
mod support;
mod upkeep;
