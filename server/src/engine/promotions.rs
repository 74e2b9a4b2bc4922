//! Reads from NVMe that reloads wait for. Owns: who waits for which. Must not know: how they are read.

use std::collections::HashMap;
use tokio::sync::mpsc;
use turnkv_pool::{MissCause, PageKey};

/// One reload that waits for a page to land; told `(position, how it went)`.
pub(super) struct Waiter {
    pub(super) index: u32,
    pub(super) tell: mpsc::Sender<(u32, Result<(), MissCause>)>,
}

/// Who waits for which promotion. Bounded by the leases and their pages: of readers that left, as many as there ever were of
/// those that wait.
#[derive(Default)]
pub(super) struct Waiters(HashMap<(PageKey, u16), Vec<Waiter>>);

impl Waiters {
    /// One more waits. Those who left are forgotten before there is to be more room for them: a device may hang for longer than
    /// anybody waits, and be asked again and again meanwhile.
    pub(super) fn add(&mut self, page: PageKey, shard: u16, waiter: Waiter) {
        let waiting = self.0.entry((page, shard)).or_default();
        if waiting.len() == waiting.capacity() {
            waiting.retain(|waiter| !waiter.tell.is_closed());
        }
        waiting.push(waiter);
    }

    /// Page shards that somebody waits for.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Those who wait, and those who left and are not forgotten.
    #[cfg(feature = "simulation")]
    pub(super) fn readers(&self) -> usize {
        self.0.values().map(Vec::len).sum()
    }

    /// Nobody waits for it any more: those who did.
    pub(super) fn take(&mut self, page: PageKey, shard: u16) -> Vec<Waiter> {
        self.0.remove(&(page, shard)).unwrap_or_default()
    }
}
