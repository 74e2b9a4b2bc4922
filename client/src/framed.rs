//! Pages over a network: the server reads and writes memory that this client lends it. Owns: its map. Must not know: windows
//! before and after.
//!
//! - `plane`: [`FramedPlane`], what all calls share: control connections, rails, lent memory, servers that speak no frames
//! - `rails`: which data rails there are; `open_rail`: asking for one
//! - `nics`: the NICs of this host, opened in the background; `pause`: before what failed is tried again
//! - `staging`: the memory that is lent; `memory`: what knows it; `direct`: where it is a device's
//!
//! Lent memory is the plane's own, never the caller's: a call may be dropped at any moment, and a server that has not heard
//! of it may still read or write what it was told of. Bytes are copied between the caller's memory and it, and their
//! checksums taken and compared in the same pass: by a CPU, or by the device that the caller's memory is on.

mod direct;
mod memory;
mod nics;
mod open_rail;
mod pause;
mod plane;
mod rails;
mod staging;

pub use direct::DeviceWay;
pub(crate) use plane::FramedPlane;
pub(crate) use staging::{Staged, StagedUse};

#[cfg(test)]
mod tests;
