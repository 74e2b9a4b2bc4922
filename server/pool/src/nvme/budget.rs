//! The write budget: how many bytes a day may be written to NVMe. Owns: what is left of it. Must not know: what is
//! written.

use crate::ids::Now;
use crate::limits::{BUDGET_BURST_MS, DAY_MS};

/// Bytes that may be written to NVMe: a bucket that fills with time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WriteBudget {
    /// Bytes that may be written now. Below nothing: durable pages were written beyond the budget.
    bytes: i128,
    /// Thousandths of a byte-day that are not whole bytes yet.
    rest: u128,
    filled_at: Now,
}

impl WriteBudget {
    /// A full bucket: the first burst is there from the start.
    pub(super) fn new(bytes_per_day: u64) -> WriteBudget {
        WriteBudget { bytes: burst(bytes_per_day), rest: 0, filled_at: 0 }
    }

    /// Whether so many bytes may be written that nobody insists on, beside those that are queued.
    pub(super) fn allows(&mut self, bytes: u64, dirty_bytes: u64, bytes_per_day: u64, now: Now) -> bool {
        if bytes_per_day == 0 {
            return true;
        }
        self.fill(bytes_per_day, now);
        // What is queued will be written: it counts before it is.
        self.bytes - i128::from(dirty_bytes) >= i128::from(bytes)
    }

    /// A write of so many bytes was started.
    pub(super) fn spend(&mut self, bytes: u64) {
        self.bytes -= i128::from(bytes);
    }

    fn fill(&mut self, bytes_per_day: u64, now: Now) {
        let elapsed = u128::from(now.saturating_sub(self.filled_at));
        self.filled_at = self.filled_at.max(now);
        let earned = elapsed * u128::from(bytes_per_day) + self.rest;
        self.rest = earned % u128::from(DAY_MS);
        self.bytes = (self.bytes + (earned / u128::from(DAY_MS)) as i128).min(burst(bytes_per_day));
    }
}

fn burst(bytes_per_day: u64) -> i128 {
    i128::from(bytes_per_day) * i128::from(BUDGET_BURST_MS) / i128::from(DAY_MS)
}

#[cfg(test)]
mod tests;
