//! A disk in memory that fails as it is told. Owns: its map. Must not know: the tier that runs on it
//! (`simulation`).
//!
//! - `disk`: names, capacity, time, the crash; `file`: one file and its calls; `inode`: a file's bytes,
//!   stable and not
//! - `faults`: what may go wrong, and when; `random`: the seed's numbers

mod disk;
mod faults;
mod file;
mod inode;
mod random;

pub(in crate::nvme) use disk::Fate;
pub use disk::SimulatedDisk;
pub use faults::{Fault, FaultCounts, FaultPlan, Hit};
pub use file::SimulatedFile;
pub use random::Random;
