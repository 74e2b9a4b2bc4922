//! Group commit: one thread whose every fdatasync answers all flushes that were asked before it began.
//!
//! Owns: the flushes that wait, the thread. Must not know: operations, the ring.

use super::core::{Core, call};
use crate::limits::FLUSHES_MAX;
use crate::tier::{Done, TierError};
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::Ordering;

/// Flushes that wait for the next round.
#[derive(Default)]
pub(crate) struct Flushes {
    state: Mutex<WaitingFlushes>,
    wake: Condvar,
}

#[derive(Default)]
struct WaitingFlushes {
    waiting: Vec<Done<()>>,
    stop: bool,
}

impl Flushes {
    /// Queues a flush; gives it back if it cannot be queued.
    pub(crate) fn push(&self, done: Done<()>) -> Result<(), (Done<()>, TierError)> {
        let mut state = self.state.lock();
        if state.stop {
            return Err((done, TierError::Closed));
        }
        if state.waiting.len() >= FLUSHES_MAX {
            return Err((done, TierError::Busy));
        }
        state.waiting.push(done);
        drop(state);
        self.wake.notify_one();
        Ok(())
    }

    /// Ends the thread once nothing waits.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.wake.notify_all();
    }

    /// Serves rounds until stopped.
    pub(crate) fn run(&self, core: &Core) {
        loop {
            let mut state = self.state.lock();
            while state.waiting.is_empty() && !state.stop {
                self.wake.wait(&mut state);
            }
            let round = std::mem::take(&mut state.waiting);
            drop(state);
            if round.is_empty() {
                return; // stopped, and nobody waits
            }
            serve(core, round);
        }
    }

    /// Serves one round without waiting for it; `false` if nothing waits.
    #[cfg(feature = "simulation")]
    pub(crate) fn step(&self, core: &Core) -> bool {
        let round = std::mem::take(&mut self.state.lock().waiting);
        let waited = !round.is_empty();
        if waited {
            serve(core, round);
        }
        waited
    }
}

fn serve(core: &Core, round: Vec<Done<()>>) {
    let result = sync(core);
    for done in round {
        call(done, result.clone());
    }
}

/// Brings everything written so far to stable storage, where the next start will look for it. A failed sync
/// poisons the device: what it lost is unknown. So does a place that was removed or renamed: what is in it
/// now ends with this process.
pub(crate) fn sync(core: &Core) -> Result<(), TierError> {
    if core.poisoned().is_some() {
        return Err(TierError::Poisoned);
    }
    let round = core.books.lock().log.begin_sync();
    for file in &round.files {
        core.counters.syncs.fetch_add(1, Ordering::Relaxed);
        core.sync_file(file).map_err(|error| TierError::Io(format!("fdatasync: {error}")))?;
    }
    if let Some(why) = core.device.missing(&round.files) {
        core.poison(&why);
        return Err(TierError::Poisoned);
    }
    let mut books = core.books.lock();
    books.log.sync_ended(&round);
    let vacant = books.log.has_vacant();
    drop(books);
    if vacant {
        core.chore.notify_one(); // what waited for this may be used again
    }
    // A write that failed meanwhile may be among those this flush vouches for.
    if core.poisoned().is_some() { Err(TierError::Poisoned) } else { Ok(()) }
}
