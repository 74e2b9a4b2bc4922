//! Bytes of requests that are not finished. Owns: the budgets of a connection and of all, and what is counted of them. Must
//! not know: HTTP, messages.

use crate::connections::peers;
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

/// Whose part of a common room is used up, and what that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) whose: &'static str,
    pub(super) bytes_max: u64,
}

impl Total {
    pub(super) fn new(bytes_max: u64, little_bytes: u64, gauge: Gauge) -> Total {
        let (bytes, high_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Total { bytes, high_bytes, bytes_max, little_bytes, gauge }
    }

    /// Takes some, for who has so many of them then, and counts them for its peer; or says who may have how many.
    pub(super) fn take(&self, bytes: u64, then_bytes: u64, of_peer: &AtomicU64) -> Result<(), Full> {
        if !peers::take(of_peer, bytes, self.bytes_max) {
            return Err(Full {
                whose: "on one peer's connections",
                bytes_max: peers::share_of(self.bytes_max),
            });
        }
        let for_others = if then_bytes > self.little_bytes { LITTLE_BYTES } else { 0 };
        let most = self.bytes_max - for_others;
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if now > most {
            self.give_back(bytes, of_peer);
            return Err(Full { whose: "on all connections together", bytes_max: most });
        }
        self.high_bytes.fetch_max(now, Ordering::Relaxed);
        Ok(())
    }

    pub(super) fn give_back(&self, bytes: u64, of_peer: &AtomicU64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        of_peer.fetch_sub(bytes, Ordering::Relaxed);
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
pub(crate) struct RequestShare {
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
            "Requests refused: bytes (the budgets), streams (inline ones), callers (as many have inline ones as may)"
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

    fn refuse(&self, full: Full) -> Error {
        self.refused.increment(1);
        let text = format!(
            "there may be {} MiB of unfinished requests {}: send fewer or smaller ones at a time",
            full.bytes_max >> 20,
            full.whose
        );
        Error::new(ErrorKind::Limit, text)
    }
}

impl RequestShare {
    /// A request on a connection, nothing of which is here yet.
    pub(crate) fn new(budget: &Arc<Budget>, watch: &Arc<Watch>) -> RequestShare {
        RequestShare { budget: Arc::clone(budget), watch: Arc::clone(watch), bytes: AtomicU64::new(0) }
    }

    /// More of the request arrived. `message_bytes`: of the message so far, these included.
    pub(crate) fn take(&self, bytes: u64, message_bytes: u64) -> Result<(), Error> {
        let own = &self.watch.unfinished_bytes;
        if own.fetch_add(bytes, Ordering::Relaxed) + bytes > UNFINISHED_CONNECTION_BYTES_MAX {
            own.fetch_sub(bytes, Ordering::Relaxed);
            let bytes_max = UNFINISHED_CONNECTION_BYTES_MAX;
            return Err(self.budget.refuse(Full { whose: "on one connection", bytes_max }));
        }
        if let Err(full) = self.budget.total.take(bytes, message_bytes, &self.watch.of_peer.unfinished_bytes)
        {
            own.fetch_sub(bytes, Ordering::Relaxed);
            return Err(self.budget.refuse(full));
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// A message of a stream is whole and on its way: what was taken so far is given back.
    pub(crate) fn give_back(&self) {
        let bytes = self.bytes.swap(0, Ordering::Relaxed);
        self.watch.unfinished_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.total.give_back(bytes, &self.watch.of_peer.unfinished_bytes);
    }

    /// The request did not arrive in time.
    pub(crate) fn late(&self) {
        self.budget.late();
    }
}

impl Drop for RequestShare {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests;
