//! The client against a scripted server: exactness, deadlines, recovery, and that dropping any future leaks nothing.
//! Owns: the list of the suites. Must not know: the real server.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod busy;
mod cancel;
mod crowded;
mod embedded;
mod fake;
mod faults;
mod held;
mod inline;
mod lies;
mod lost;
mod members;
mod plans;
mod shards;
mod shm;
mod span;
mod span_restarts;
