//! Sessions that are archived by themselves, and found by their next turn: on another server, after the one that archived them and its
//! disks are gone, and never at another turn's cost.
//!
//! - `support`: a place for an archive, sessions, waiting for what happens by itself
//! - `turns`: what turns find, and are told
#![forbid(unsafe_code)]

mod support;
mod turns;
