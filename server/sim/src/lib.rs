//! TurnKV's simulator: plays request traces against the very pool crate with simulated time.
//!
//! - input: [`trace`] (requests), [`mod@derive`] (sessions where a trace names none), [`generate`] (a published shape)
//! - [`assemble`]: a trace out of the calls that a live pool saw
//! - what could be: [`history`] (infinite pool, whose blocks), [`bounds`] (Belady), [`exact`] (LRU at every size)
//! - what is: [`drive`] (one pool, one stream of requests), [`device`] (its NVMe), [`hints`] (what an engine could say),
//!   [`account`] (hits and losses), [`policy`] (names of policies)
//! - many at once: [`capacity`] (sizes as people write them), [`grid`] (traces x policies x sizes, in parallel)
//! - many engines: [`routing`] (who runs which request)
//! - many hosts: [`cluster`] (each with a pool, and pages that go from one to the other)
//! - output: [`render`] (table, CSV, JSON), [`plot`] (SVG)
//! - [`limits`]

#![forbid(unsafe_code)]

pub mod account;
pub mod assemble;
pub mod bounds;
pub mod capacity;
pub mod cluster;
pub mod derive;
pub mod device;
pub mod drive;
pub mod exact;
pub mod generate;
pub mod grid;
pub mod hints;
pub mod history;
pub mod limits;
pub mod plot;
pub mod policy;
pub mod render;
pub mod routing;
pub mod trace;
