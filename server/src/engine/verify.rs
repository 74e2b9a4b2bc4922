//! Checks of pages in DRAM before a reload is told where they are (`verify = "always"`). Owns: the threads that read the bytes,
//! and what becomes of a page that does not verify. Must not know: why a page was asked for.
//!
//! A checksum over a large page takes as long as a copy of it: it is never taken under the pool's lock, nor on a thread that
//! serves calls.

use super::Engine;
use super::metrics::Corrupt;
use super::verifier::Check;
use crate::limits::{VERIFY_QUEUE_MAX, VERIFY_THREADS_MAX};
use crate::supervise::Supervisor;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use turnkv_pool::MissCause;

impl Engine {
    /// Starts the threads that check; they end with the engine.
    pub(super) fn run_verify(engine: &Arc<Engine>, supervisor: &Supervisor) -> std::io::Result<()> {
        let (jobs, queue) = sync_channel(VERIFY_QUEUE_MAX);
        if engine.verifier.0.set(jobs).is_err() {
            return Err(std::io::Error::other("checks have their threads already"));
        }
        let queue: Arc<Mutex<Receiver<Vec<Check>>>> = Arc::new(Mutex::new(queue));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for _ in 0..(cores / 4).clamp(1, VERIFY_THREADS_MAX) {
            let (weak, queue) = (Arc::downgrade(engine), Arc::clone(&queue));
            let work = move || {
                loop {
                    let job = queue.lock().recv();
                    let (Ok(checks), Some(engine)) = (job, weak.upgrade()) else { return };
                    engine.verify(checks);
                }
            };
            supervisor.thread("turnkv-verify", work)?;
        }
        Ok(())
    }

    /// Has the pages of one reload checked, in order. More than the queue holds are busy: the caller may ask again.
    pub(super) fn start_checks(&self, checks: Vec<Check>) {
        if checks.is_empty() {
            return;
        }
        let refused = match self.verifier.0.get() {
            Some(jobs) => jobs.try_send(checks).err().map(|error| match error {
                std::sync::mpsc::TrySendError::Full(checks)
                | std::sync::mpsc::TrySendError::Disconnected(checks) => checks,
            }),
            None => Some(checks),
        };
        for check in refused.unwrap_or_default() {
            tell(&check, Err(MissCause::Busy));
        }
    }

    /// Checks pages until one does not verify: nothing behind it is served.
    fn verify(&self, checks: Vec<Check>) {
        for check in checks {
            let found = self.slot(check.place).map(|slot| slot.page().checksum() == check.checksum);
            let outcome = match found {
                Ok(true) => Ok(()),
                Ok(false) => Err(MissCause::Checksum),
                Err(_) => Err(MissCause::Absent), // the slab changed its tenant: the lease is over
            };
            if outcome == Err(MissCause::Checksum) {
                let now = self.now();
                let dropped = self.decide().pool.slot_changed(check.page, check.shard, check.slot, now);
                self.metrics.corrupted(Corrupt::Dram, dropped.into());
                tracing::warn!("a page in DRAM does not match its checksum: dropped before it was read");
            }
            tell(&check, outcome);
            if outcome.is_err() {
                return;
            }
        }
    }
}

fn tell(check: &Check, outcome: Result<(), MissCause>) {
    // The channel holds one place for every page waited for; a reload that left has closed it.
    if check.tell.try_send((check.index, outcome)).is_err() {
        tracing::trace!("a reload left before its page was checked");
    }
}

#[cfg(test)]
mod tests;
