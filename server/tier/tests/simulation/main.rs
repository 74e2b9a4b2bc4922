//! The tier on a disk that fails as it is told, without threads, against a plain model of what it promises.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

mod basics;
mod damage;
mod model;
mod net;
mod power;
mod run;
mod shape;
mod small_disk;
mod starts;
mod support;
