//! Memory that is used round and round, pinned memory of the host or the device's own. Owns: the memory of one ring, and which part
//! of it is in use. Must not know: what lies in it, when it is done with.
//!
//! Work of one stream ends in the order it was begun, so the memory it uses becomes free in that order too:
//!
//! ```text
//!   ....[ oldest work | ... | newest work ]............   alloc goes on behind the newest, at the start again when the end
//!       ^ freed up to here                ^ taken         is too near; `free_to` follows
//! ```

use std::sync::Arc;

use crate::device::buffer::Scratch;
use crate::device::driver::{DeviceAddress, DeviceError, Driver};
use crate::limits::RING_ALIGN;

/// A piece of a ring: a place, and where the ring's use ends behind it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// Where it lies, for the CPU and for the device alike.
    pub(crate) memory: *mut u8,
    pub(crate) bytes: usize,
}

// SAFETY: an address and a length; who may use the memory, and when, is the ring's owner's affair.
unsafe impl Send for Taken {}

impl Taken {
    /// The address as the device knows it.
    pub(crate) fn address(&self) -> u64 {
        self.memory.expose_provenance() as u64
    }

    /// The memory, for the CPU.
    ///
    /// # Safety
    /// Neither the device nor anyone else uses the piece while the slice lives, and it is not freed.
    pub(crate) unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: the ring's memory was zeroed when it was made, so it is initialised; exclusion is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.memory, self.bytes) }
    }
}

/// Which part of so many bytes is in use.
#[derive(Debug)]
struct Round {
    bytes: usize,
    /// Bytes ever taken, skipped ones included; the place is this modulo `bytes`.
    taken: u64,
    /// Bytes ever freed.
    freed: u64,
}

impl Round {
    fn new(bytes: usize) -> Self {
        Self { bytes, taken: 0, freed: 0 }
    }

    /// Where `bytes` in one piece begin; `None`: not before older pieces are freed.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let wanted = bytes.next_multiple_of(RING_ALIGN);
        assert!(wanted <= self.bytes, "nobody asks for more than the ring has");
        if self.taken == self.freed {
            // Nothing is in use: begin at the start, so that a piece as large as the ring fits.
            let round = self.taken.next_multiple_of(self.bytes as u64);
            (self.taken, self.freed) = (round, round);
        }
        let place = (self.taken % self.bytes as u64) as usize;
        let skip = if place + wanted > self.bytes { self.bytes - place } else { 0 };
        let end = self.taken + (skip + wanted) as u64;
        if end - self.freed > self.bytes as u64 {
            return None;
        }
        self.taken = end;
        Some((place + skip) % self.bytes)
    }

    fn free_to(&mut self, end: u64) {
        debug_assert!(end <= self.taken);
        self.freed = self.freed.max(end);
    }
}

/// Pinned memory, taken and freed in the same order.
#[derive(Debug)]
pub(crate) struct Ring {
    driver: Arc<dyn Driver>,
    base: *mut u8,
    round: Round,
    /// The device may still be using the memory: it is never given back.
    lost: bool,
}

// SAFETY: a ring owns its memory, which belongs to no thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Takes pinned memory.
    pub(crate) fn new(driver: Arc<dyn Driver>, bytes: usize) -> Result<Self, DeviceError> {
        let bytes = bytes.next_multiple_of(RING_ALIGN);
        let base = driver.allocate_pinned(bytes)?;
        // SAFETY: `bytes` of fresh memory that nobody else knows of.
        unsafe { std::ptr::write_bytes(base, 0, bytes) };
        Ok(Self { driver, base, round: Round::new(bytes), lost: false })
    }

    /// Bytes of the ring.
    pub(crate) fn len(&self) -> usize {
        self.round.bytes
    }

    /// Takes `bytes` in one piece; `None`: not before older pieces are freed.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Taken> {
        let at = self.round.take(bytes)?;
        // SAFETY: a place of the round lies inside the ring's memory.
        Some(Taken { memory: unsafe { self.base.add(at) }, bytes })
    }

    /// Where a piece of it begins, counted from its start.
    pub(crate) fn offset(&self, taken: &Taken) -> usize {
        taken.memory.addr() - self.base.addr()
    }

    /// Where the ring's use ends now: what to free up to when all taken so far is done with.
    pub(crate) fn end(&self) -> u64 {
        self.round.taken
    }

    /// Frees all that was taken before [`Ring::end`] said this.
    pub(crate) fn free_to(&mut self, end: u64) {
        self.round.free_to(end);
    }

    /// The device may go on using the memory for ever.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.lost {
            return;
        }
        // SAFETY: the memory came from `allocate_pinned` and is given back once; rings are dropped only when all work that
        // used them is done, or else they were lost.
        let freed = unsafe { self.driver.free_pinned(self.base) };
        // A broken device keeps it.
        drop(freed);
    }
}

/// The device's memory, taken and freed in the same order.
#[derive(Debug)]
pub(crate) struct DeviceRing {
    memory: Scratch,
    round: Round,
}

impl DeviceRing {
    /// Takes device memory.
    pub(crate) fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Self, DeviceError> {
        let bytes = bytes.next_multiple_of(RING_ALIGN);
        Ok(Self { memory: Scratch::new(driver, bytes)?, round: Round::new(bytes) })
    }

    /// As [`Ring::take`].
    pub(crate) fn take(&mut self, bytes: usize) -> Option<DeviceAddress> {
        self.round.take(bytes).map(|at| self.memory.address() + at as u64)
    }

    /// As [`Ring::end`].
    pub(crate) fn end(&self) -> u64 {
        self.round.taken
    }

    /// As [`Ring::free_to`].
    pub(crate) fn free_to(&mut self, end: u64) {
        self.round.free_to(end);
    }

    /// As [`Ring::lose`].
    pub(crate) fn lose(&mut self) {
        self.memory.lose();
    }
}

#[cfg(test)]
mod tests;
