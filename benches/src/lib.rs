//! Whole-system benches: what the binaries in src/bin share. Every figure is a ratio against a limit of the machine
//! (memcpy, the disk, raw TCP) measured in the same round of the same run, and every page read back is verified.
//! Must not know: anything of the server but its binary, its configuration file and the client's API.
#![forbid(unsafe_code)]

pub mod connection;
pub mod disk;
pub mod kv;
pub mod memory;
pub mod network;
pub mod options;
pub mod own;
pub mod pages;
pub mod queued;
pub mod raw;
pub mod sampling;
pub mod server;
pub mod snapshots;
pub mod stats;
pub mod streams;
pub mod threads;
pub mod workers;
