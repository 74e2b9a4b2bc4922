//! Calls that wait until slots may have become free. Owns: how many do. Must not know: what they want them for.

use super::Engine;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::futures::Notified;

/// One call in the count; out of it however its wait ends.
pub(super) struct Waits<'a>(&'a AtomicU64);

impl<'a> Waits<'a> {
    /// From now on.
    pub(super) fn begin(count: &'a AtomicU64) -> Waits<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Waits(count)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine {
    /// Waits for the bell, at most until a moment. False: that came first.
    pub(super) async fn slots_freed(&self, freed: std::pin::Pin<&mut Notified<'_>>, until: Duration) -> bool {
        let _waits = Waits::begin(&self.waiting_for_slots);
        self.clock.until(until, freed).await.is_some()
    }

    /// Calls that wait so.
    pub(super) fn waiting_for_slots(&self) -> u64 {
        self.waiting_for_slots.load(Ordering::Relaxed)
    }
}
