//! What a library's side is to the driver. Owns: the traits, and what their promises rest on. Must not know:
//! who keeps them.

use std::ptr::NonNull;

use crate::fabric::operation::{Cause, Direction};
use crate::region::Region;

/// The server's side of a NIC in one library.
pub(in crate::fabric) trait Nic: Send + Sync + 'static {
    /// A registration for local access. Dropped, it is taken back: nobody drops it while a part that names it
    /// is with a pair.
    type Memory: Send + Sync + 'static;
    /// What moves bytes to and from one peer.
    type Pair: Pair<Memory = Self::Memory>;
    /// Whether a pair has to be polled also when nothing is under way.
    const POLLED_AT_REST: bool;

    /// Registers all of a region for this NIC's own access; nobody else reaches it.
    ///
    /// # Errors
    /// Why not, in the library's words.
    fn register(&self, region: &Region) -> Result<Self::Memory, String>;
}

/// A queue pair or endpoint towards one peer, with a completion queue of its own. Only the driver's thread
/// has it.
///
/// # Safety
/// Whoever implements it promises: once a part landed, and for all parts once `destroy` returned `Ok`,
/// nothing touches their local memory any more. A part that was not taken was not begun. A value that is
/// dropped without that `Ok` may leave its parts under way.
pub(in crate::fabric) unsafe trait Pair: Send + 'static {
    /// See [`Nic::Memory`].
    type Memory: Send + Sync + 'static;

    /// Parts that may be with it at a time, at least 1.
    fn parts_max(&self) -> usize;

    /// Bytes that one part may have, at least 1.
    fn part_bytes_max(&self) -> u32;

    /// Takes parts from the front; gives how many. Fewer, even none, if it has no room just now.
    ///
    /// # Errors
    /// The pair broke at the first part that it does not count: none from that one on is begun, and `destroy`
    /// is next.
    ///
    /// # Safety
    /// Each part's local memory is mapped, lies in what its registration covers, and both stay until it
    /// landed or `destroy` returned `Ok`.
    unsafe fn give(&mut self, parts: &[Part<'_, Self::Memory>]) -> Result<usize, Broken>;

    /// Adds what landed since the last call.
    ///
    /// # Errors
    /// The pair is broken: `destroy` is next.
    fn land(&mut self, landed: &mut Vec<LandedPart>) -> Result<(), Cause>;

    /// Ends the pair, and with it all that it was given.
    ///
    /// # Errors
    /// It is not sure that it ended: why. The call may be repeated.
    fn destroy(&mut self) -> Result<(), String>;
}

/// A pair that cannot go on: how many of the given parts it took all the same, and why it broke.
#[derive(Debug)]
pub(in crate::fabric) struct Broken {
    pub(in crate::fabric) taken: usize,
    pub(in crate::fabric) cause: Cause,
}

/// One work request.
#[derive(Debug)]
pub(in crate::fabric) struct Part<'a, M> {
    /// Comes back with its landing; unique among those with the pair, and less than its `parts_max`.
    pub(in crate::fabric) token: u32,
    pub(in crate::fabric) direction: Direction,
    /// The bytes here.
    pub(in crate::fabric) local: NonNull<u8>,
    pub(in crate::fabric) bytes: u32,
    /// The bytes there: the region's base and the offset in it.
    pub(in crate::fabric) remote: u64,
    pub(in crate::fabric) key: u64,
    /// What covers the bytes here.
    pub(in crate::fabric) memory: &'a M,
}

/// The end of one part.
#[derive(Debug)]
pub(in crate::fabric) struct LandedPart {
    pub(in crate::fabric) token: u32,
    pub(in crate::fabric) outcome: Result<(), Cause>,
}
