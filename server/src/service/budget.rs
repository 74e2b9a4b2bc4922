//! Bytes of requests that are not finished. Owns: the budgets of a connection and of all, and what is counted of them. Must
//! not know: HTTP, messages.

use crate::connections::watch::Watch;
use crate::limits::{
    BURST_BYTES_MIN, LITTLE_BYTES, SMALL_MESSAGE_BYTES, UNFINISHED_BYTES_MAX, UNFINISHED_CONNECTION_BYTES_MAX,
};
use metrics::{Counter, Gauge, counter, describe_counter, describe_gauge, gauge};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use turnkv_proto::{Error, ErrorKind};

/// Bytes that all connections together have in memory for one purpose. A part of what they may have is for those only who have
/// little of it: they are served while others are refused.
pub(super) struct Total {
    bytes: AtomicU64,
    /// The most since the last look.
    high_bytes: AtomicU64,
    bytes_max: u64,
    /// What is little.
    little_bytes: u64,
    gauge: Gauge,
}

impl Total {
    pub(super) fn new(bytes_max: u64, little_bytes: u64, gauge: Gauge) -> Total {
        let (bytes, high_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Total { bytes, high_bytes, bytes_max, little_bytes, gauge }
    }

    /// Takes some, for who has so many of them then; or says how many its like may have together.
    pub(super) fn take(&self, bytes: u64, then_bytes: u64) -> Result<(), u64> {
        let for_others = if then_bytes > self.little_bytes { LITTLE_BYTES } else { 0 };
        let most = self.bytes_max - for_others;
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if now > most {
            self.give_back(bytes);
            return Err(most);
        }
        self.high_bytes.fetch_max(now, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn give_back(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Whether a burst has passed since the last look: much was taken, and little is now. Brings the gauge up to date.
    pub(super) fn burst_has_passed(&self) -> bool {
        let now = self.bytes.load(Ordering::Relaxed);
        self.gauge.set(now as f64);
        now < BURST_BYTES_MIN && self.high_bytes.swap(now, Ordering::Relaxed) >= BURST_BYTES_MIN
    }
}

/// The budget of all connections' requests.
pub(crate) struct Budget {
    total: Total,
    refused: Counter,
    late: Counter,
}

/// What one request takes of the budgets; given back when dropped.
pub(crate) struct Share {
    budget: Arc<Budget>,
    watch: Arc<Watch>,
    bytes: AtomicU64,
}

impl Budget {
    /// Nothing is taken.
    pub(crate) fn new() -> Arc<Budget> {
        describe_gauge!(
            "turnkv_requests_unfinished_bytes",
            "Bytes of requests that are still arriving, or wait for their answer"
        );
        describe_gauge!("turnkv_requests_limit_bytes", "What all connections together may have of these");
        describe_counter!(
            "turnkv_requests_refused_total",
            "Requests refused: bytes (the budgets), streams (inline ones)"
        );
        describe_counter!(
            "turnkv_requests_late_total",
            "Requests cut off because they did not arrive whole in time"
        );
        gauge!("turnkv_requests_limit_bytes").set(UNFINISHED_BYTES_MAX as f64);
        Arc::new(Budget {
            total: Total::new(
                UNFINISHED_BYTES_MAX,
                SMALL_MESSAGE_BYTES,
                gauge!("turnkv_requests_unfinished_bytes"),
            ),
            refused: counter!("turnkv_requests_refused_total", "cause" => "bytes"),
            late: counter!("turnkv_requests_late_total"),
        })
    }

    /// See [`Total::burst_has_passed`].
    pub(crate) fn burst_has_passed(&self) -> bool {
        self.total.burst_has_passed()
    }

    /// A request was cut off.
    pub(crate) fn late(&self) {
        self.late.increment(1);
    }

    fn refuse(&self, what: &str, most: u64) -> Error {
        self.refused.increment(1);
        let text = format!(
            "{what} may have {} MiB of unfinished requests: send fewer or smaller ones at a time",
            most >> 20
        );
        Error::new(ErrorKind::Limit, text)
    }
}

impl Share {
    /// A request on a connection, nothing of which is here yet.
    pub(crate) fn new(budget: &Arc<Budget>, watch: &Arc<Watch>) -> Share {
        Share { budget: Arc::clone(budget), watch: Arc::clone(watch), bytes: AtomicU64::new(0) }
    }

    /// More of the request arrived. `message_bytes`: of the message so far, these included.
    pub(crate) fn take(&self, bytes: u64, message_bytes: u64) -> Result<(), Error> {
        let own = &self.watch.unfinished_bytes;
        if own.fetch_add(bytes, Ordering::Relaxed) + bytes > UNFINISHED_CONNECTION_BYTES_MAX {
            own.fetch_sub(bytes, Ordering::Relaxed);
            return Err(self.budget.refuse("one connection", UNFINISHED_CONNECTION_BYTES_MAX));
        }
        if let Err(most) = self.budget.total.take(bytes, message_bytes) {
            own.fetch_sub(bytes, Ordering::Relaxed);
            return Err(self.budget.refuse("all connections together", most));
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// A message of a stream is whole and on its way: what was taken so far is given back.
    pub(crate) fn give_back(&self) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        self.watch.unfinished_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.total.give_back(bytes);
    }

    /// The request did not arrive in time.
    pub(crate) fn late(&self) {
        self.budget.late();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back();
    }
}
