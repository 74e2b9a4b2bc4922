//! Pages over a network: the server reads and writes memory that this client lends it. Owns: its map. Must not know: windows
//! before and after.
//!
//! - `plane`: [`FramedPlane`], what all calls share: control connections, rails, lent memory, servers that speak no frames
//! - `rails`: which data rails there are; `open_rail`: asking for one
//! - `nics`: the NICs of this host, opened in the background; `pause`: before what failed is tried again
//! - `staging`: the memory that is lent; `memory`: what knows it; `direct`: where it is a device's
//! - `own_pages`: pages that are lent where they are
//!
//! A call may be dropped at any moment, and a server that has not heard of it may still read or write what it was told of. So lent
//! memory is the plane's own, and bytes are copied between the caller's memory and it, their checksums taken and compared in the same
//! pass: by a CPU, or by the device that the caller's memory is on. The caller's is lent itself where it has an owner that outlives the
//! call ([`turnkv_transfer::PageMemory`]) and a rail forgets it at once.

mod direct;
mod memory;
mod nics;
mod open_rail;
mod own_pages;
mod pause;
mod plane;
mod rails;
mod staging;

pub use direct::DeviceWay;
pub(crate) use own_pages::{LentFor, OwnPages};
pub(crate) use plane::{Copies, FramedPlane};
pub(crate) use staging::{Staged, StagedUse};

#[cfg(test)]
mod tests;
