//! Work in slices: whoever holds a lock around the pool lets others in between two calls. Owns: when a call has done its part.
//! Must not know: locks, what the work is.

use crate::Pool;
use crate::limits::{PASSED_PER_STEP, STEPS_PER_SLICE};

/// The part of some work that one call may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    until: u64,
}

impl Pool {
    /// Pages, slots and list entries looked at or changed so far, ever: what one call adds to it is what others wait for.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The most steps that any call took, ever.
    pub fn call_steps_max(&self) -> u64 {
        self.call_steps_max.max(self.steps - self.call_began)
    }

    /// A call begins: what the one before it took is known.
    pub(crate) fn begin_call(&mut self) {
        self.call_steps_max = self.call_steps_max();
        self.call_began = self.steps;
    }

    /// Begins the part of one call.
    pub(crate) fn slice(&self) -> Slice {
        Slice { until: self.steps + STEPS_PER_SLICE }
    }

    /// Begins the first half of it; the other one is for what that brings about.
    pub(crate) fn half_slice(&self) -> Slice {
        Slice { until: self.steps + STEPS_PER_SLICE / 2 }
    }

    /// What is left of the part of the call under way, for work that it brings about.
    pub(crate) fn rest_of_call(&self) -> Slice {
        Slice { until: self.call_began + STEPS_PER_SLICE }
    }

    /// Whether a call has done its part.
    pub(crate) fn is_over(&self, slice: Slice) -> bool {
        self.steps >= slice.until
    }

    /// One more page, slot or entry was looked at or changed.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
    }

    /// So many rows or links were only passed.
    pub(crate) fn pass(&mut self, rows: u64) {
        self.steps += rows.div_ceil(PASSED_PER_STEP);
    }
}
