//! Pages over a network: the server reads and writes memory that this client lends it. Owns: its map. Must not know: windows
//! before and after.
//!
//! - `plane`: [`FramedPlane`], what all calls share: control connections, rails, lent memory, servers that speak no frames
//! - `rails`: which data rails there are; `open_rail`: asking for one
//! - `nics`: the NICs of this host, opened in the background; `pause`: before what failed is tried again
//! - `staging`: the memory that is lent; `memory`: what knows it; `slots`: slots of a pool, lent as they are
//!
//! Lent memory is the plane's own, never an engine's: a call may be dropped at any moment, and a server that has not heard
//! of it may still read or write what it was told of. Bytes are copied between the caller's memory and it, and their
//! checksums taken and compared in the same pass. A pool that reloads from another one has its slots written in place where
//! all rails give memory back at once: they are taken back before anybody looks at them, and stay mapped whoever forgets them.

mod memory;
mod nics;
mod open_rail;
mod pause;
mod plane;
mod rails;
mod slots;
mod staging;

pub(crate) use plane::FramedPlane;
pub(crate) use slots::LentSlots;
pub(crate) use staging::Staged;

#[cfg(test)]
mod tests;
