//! One suite for tiers behind DRAM, run over both engines, on a directory and on a fixed-size file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod basics;
mod crash;
mod descriptors;
mod faults;
mod life;
mod notes;
mod packing;
mod support;
