//! Sessions that are archived by themselves, and found by their next turn: on another server, after the one that archived them and its
//! disks are gone, and never at another turn's cost.
//!
//! - `support`: a place for an archive, sessions, waiting for what happens by itself
//! - `rules`: which sessions are archived, and how fast
//! - `turns`: what turns find, and are told
//! - `faults`: stores that do not answer, are slow, full, or have wrong bytes
//! - `lifecycle`: what supersedes what, ages, limits, two servers
#![forbid(unsafe_code)]

mod faults;
mod lifecycle;
mod rules;
mod support;
mod turns;
