//! The call under way, and its work in slices: whoever holds a lock around the pool lets others in between
//! two calls. Owns: the time, how much a call did, when it has done its part. Must not know: locks, what the
//! work is.

use crate::ids::Now;
use crate::limits::{PASSED_PER_STEP, STEPS_PER_SLICE};

/// The part of some work that one call may do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    until: u64,
}

/// The call under way. A step is a page, a slot or a list entry that is looked at or changed.
#[derive(Default)]
pub(crate) struct Call {
    now: Now,
    /// Steps so far, ever.
    steps: u64,
    /// Their number when the call began.
    began: u64,
    /// The most of them in a call that has ended.
    steps_max: u64,
    /// Slots became free, or can be made free, since somebody asked.
    freed: bool,
}

impl Call {
    /// The time of the latest call: it never runs backwards.
    pub(crate) fn now(&self) -> Now {
        self.now
    }

    /// Takes note of the time.
    pub(crate) fn advance(&mut self, now: Now) {
        self.now = self.now.max(now);
    }

    /// Steps so far, ever.
    pub(crate) fn steps(&self) -> u64 {
        self.steps
    }

    /// The most steps that any call took, ever, this one included.
    pub(crate) fn steps_max(&self) -> u64 {
        self.steps_max.max(self.steps - self.began)
    }

    /// A call begins: what the one before it took is known.
    pub(crate) fn begin(&mut self) {
        self.steps_max = self.steps_max();
        self.began = self.steps;
    }

    /// Begins the part of one call.
    pub(crate) fn slice(&self) -> Slice {
        Slice { until: self.steps + STEPS_PER_SLICE }
    }

    /// Begins the first half of it; the other one is for what that brings about.
    pub(crate) fn half_slice(&self) -> Slice {
        Slice { until: self.steps + STEPS_PER_SLICE / 2 }
    }

    /// What is left of the part of this call, for work that it brings about.
    pub(crate) fn rest(&self) -> Slice {
        Slice { until: self.began + STEPS_PER_SLICE }
    }

    /// Whether this call has done its part.
    pub(crate) fn is_over(&self, slice: Slice) -> bool {
        self.steps >= slice.until
    }

    /// Slots are free, or can be made free, that were not.
    pub(crate) fn note_freed(&mut self) {
        self.freed = true;
    }

    /// Whether that was so since the last time.
    pub(crate) fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// One more page, slot or entry was looked at or changed.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
    }

    /// So many more were.
    pub(crate) fn add(&mut self, steps: u64) {
        self.steps += steps;
    }

    /// So many rows or links were only passed.
    pub(crate) fn pass(&mut self, rows: u64) {
        self.steps += rows.div_ceil(PASSED_PER_STEP);
    }
}
