//! Durability as it is answered, and the commits that wait for it. Owns: who waits for which page. Must not know: how pages get
//! to NVMe, how long anybody waits.

use std::collections::BTreeMap;
use std::ops::Bound;
use tokio::sync::oneshot;
use turnkv_pool::PageKey;

/// Whether pages are on stable storage, or why not.
pub(crate) type Durability = Result<(), NotDurable>;

/// Why pages are not on stable storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotDurable {
    /// This server keeps nothing on NVMe.
    NoTier,
    /// The writes go on, but took too long to wait for.
    Timeout,
    /// The bytes of a page did not match its checksum when they were written: it is dropped.
    Changed,
    /// A page left the pool or NVMe meanwhile, or none was kept.
    Lost,
    /// The device failed.
    Device,
}

/// Commits that wait until their pages are on NVMe. Bounded by the calls in service, each of which waits a bounded time. In
/// order, so that who is told first does not depend on chance.
#[derive(Default)]
pub(super) struct DurableWaits {
    /// Who waits for each page; some of them may have left.
    pages: BTreeMap<PageKey, Vec<u64>>,
    waits: BTreeMap<u64, Wait>,
    next: u64,
}

struct Wait {
    /// Pages that are not on NVMe yet, of those found.
    remaining: usize,
    /// All its pages are found.
    whole: bool,
    tell: oneshot::Sender<Durability>,
}

impl DurableWaits {
    pub(super) fn begin(&mut self) -> (u64, oneshot::Receiver<Durability>) {
        let (tell, told) = oneshot::channel();
        let id = self.next;
        self.next += 1;
        self.waits.insert(id, Wait { remaining: 0, whole: false, tell });
        (id, told)
    }

    /// Some more pages that a commit waits for, each told once; `whole`: these are all.
    pub(super) fn add(&mut self, id: u64, pages: &[PageKey], whole: bool) {
        let Some(wait) = self.waits.get_mut(&id) else { return };
        wait.remaining += pages.len();
        wait.whole = whole;
        for page in pages {
            self.pages.entry(*page).or_default().push(id);
        }
        self.tell_if_done(id);
    }

    /// A page is on NVMe, or never will be.
    pub(super) fn settle(&mut self, page: PageKey, outcome: Durability) {
        for id in self.pages.remove(&page).unwrap_or_default() {
            let Some(wait) = self.waits.get_mut(&id) else { continue };
            wait.remaining -= 1;
            match outcome {
                Ok(()) => self.tell_if_done(id),
                lost => self.tell(id, lost),
            }
        }
    }

    fn tell_if_done(&mut self, id: u64) {
        if self.waits.get(&id).is_some_and(|wait| wait.whole && wait.remaining == 0) {
            self.tell(id, Ok(()));
        }
    }

    fn tell(&mut self, id: u64, outcome: Durability) {
        if let Some(wait) = self.waits.remove(&id)
            && wait.tell.send(outcome).is_err()
        {
            tracing::trace!("a durable commit left before it was durable");
        }
    }

    /// Nobody waits under this number any more. Its pages forget it when they are settled, or looked at next.
    pub(super) fn end(&mut self, id: u64) {
        self.waits.remove(&id);
    }

    /// Nobody waits for a page but those who are still there.
    pub(super) fn prune(&mut self, page: PageKey) {
        let Some(waiting) = self.pages.get_mut(&page) else { return };
        waiting.retain(|id| self.waits.contains_key(id));
        if waiting.is_empty() {
            self.pages.remove(&page);
        }
    }

    /// Commits that wait.
    pub(super) fn len(&self) -> usize {
        self.waits.len()
    }

    /// So many of the pages that are waited for, after one of them.
    pub(super) fn waited_for(&self, after: Option<PageKey>, count: usize) -> Vec<PageKey> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.pages.range((from, Bound::Unbounded)).take(count).map(|(page, _)| *page).collect()
    }
}

#[cfg(test)]
mod tests;
