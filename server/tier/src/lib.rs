//! TurnKV's tiers: where pages lie in DRAM and on NVMe, and how bytes move between the two.
//!
//! Knows nothing of the pool's index, sessions, leases or gRPC; [`dram`] and [`nvme`] do not know one another.
//!
//! - [`tier`]: what is said between a tier behind DRAM and its owner: extents' meta data, call-backs, errors, gauges
//! - [`dram`]: slabs of shared memory
//! - [`nvme`]: a segment log on a directory or a block device, by io_uring or by threads
//! - `errno`: what each errno means for both
//! - [`limits`]: the named bounds of all of them

pub mod dram;
mod errno;
pub mod limits;
pub mod nvme;
pub mod tier;

pub use tier::{Done, ExtentMeta, Location, TierError, Usage};
