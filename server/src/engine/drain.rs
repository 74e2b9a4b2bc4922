//! Drain: nothing more is taken, and what is dirty is written; an operator may take that back until the process leaves. Owns:
//! the order in which it lets go. Must not know: signals.

use super::Engine;
use crate::limits::DRAIN_LOOK;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use turnkv_pool::Sweep;
use turnkv_proto::{Error, ErrorKind};

impl Engine {
    /// No new offloads from now on; says how many bytes are still to be written.
    pub(crate) fn drain(self: &Arc<Self>) -> u64 {
        let first = !self.draining.swap(true, Ordering::Relaxed);
        if first {
            tracing::info!("draining: offloads are declined from now on");
        }
        // Pages come as long as slots are granted that were before, and not all are sent to NVMe as they come.
        let kept_off = self.decide().pool.stats().kept_off_pages;
        if self.drained_kept_off.swap(kept_off, Ordering::Relaxed) != kept_off || first {
            let now = self.now();
            let mut sweep = Sweep::default();
            drop(self.decide_in_slices(|core| core.pool.admit_some(&mut sweep, now)));
        }
        self.decide().pool.stats().dirty_bytes
    }

    /// Takes a drain back; true if there was one.
    pub(crate) fn resume(&self) -> Result<bool, Error> {
        if self.leaving.load(Ordering::Relaxed) {
            let text = "the server is leaving: that cannot be taken back, start it again";
            return Err(Error::new(ErrorKind::Draining, text));
        }
        let drained = self.draining.swap(false, Ordering::Relaxed);
        if drained {
            tracing::info!("the drain was taken back: pages are taken again");
        }
        Ok(drained)
    }

    /// Is a drain under way?
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Writes what is dirty, within the configured bound, then seals the log and saves the sessions. Blocking.
    pub(crate) fn leave(self: &Arc<Self>) {
        self.leaving.store(true, Ordering::Relaxed);
        let deadline = self.clock.now() + Duration::from_millis(self.settings.limits.drain_ms);
        while self.has_to_write() && self.clock.now() < deadline {
            std::thread::sleep(DRAIN_LOOK);
        }
        self.seal();
    }

    /// Another program takes over what is kept: closes the log and saves the sessions. What is dirty stays so, in memory. Blocking.
    pub(crate) fn hand_over(self: &Arc<Self>) {
        self.leaving.store(true, Ordering::Relaxed);
        self.close_stores();
    }

    /// Goes on with a drain; says whether there is something to wait for.
    pub(crate) fn has_to_write(self: &Arc<Self>) -> bool {
        self.drain() > 0 && self.nvme.as_ref().is_some_and(|nvme| nvme.poisoned().is_none())
    }

    /// The end: seals the log and saves the sessions, whatever is still to be written. Blocking.
    pub(crate) fn seal(self: &Arc<Self>) {
        let left = self.drain();
        if left > 0 && self.nvme.is_some() {
            tracing::warn!(
                bytes = left,
                "leaving with pages that were not written: raise limits.drain_ms to wait longer"
            );
        }
        self.close_stores();
    }

    fn close_stores(self: &Arc<Self>) {
        self.flush_catalog_whole();
        if let Some(Err(error)) = self.nvme.as_ref().map(|nvme| nvme.shutdown()) {
            tracing::error!(%error, "the segment log was not closed cleanly: the next start checks it");
        }
    }
}
