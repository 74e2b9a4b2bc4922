//! Writes to NVMe: which are next, what became of them, and pages that somebody waits for until they are there.
//! Owns: the verbs. Must not know: how anything is written.

use crate::Pool;
use crate::ids::{Now, NvmePlace, PageKey};
use crate::store::durable::Durable;
use crate::store::writeback::WriteBehind;

impl Pool {
    /// Takes writes from the queue, parents before children, while they fit `bytes_max`, and as many as one
    /// call may: ask again while there are any. One that is larger than `bytes_max` is given out alone, when
    /// nothing is being written.
    pub fn next_writes(&mut self, bytes_max: u64, now: Now) -> Vec<WriteBehind> {
        self.store.next_writes(&self.namespaces, bytes_max, now)
    }

    /// The write is done. False: nobody needs the extent any more, forget it.
    pub fn written(&mut self, page: PageKey, shard: u16, place: NvmePlace, now: Now) -> bool {
        self.store.written(page, shard, place, now)
    }

    /// The write failed: the page is dirty again, first in the queue.
    pub fn write_failed(&mut self, page: PageKey, shard: u16, now: Now) {
        self.store.write_failed(page, shard, now);
    }

    /// The bytes were not those of the page's checksum when they had been written: somebody else wrote to the
    /// slot after the commit. The slot is given up, and with it the page, unless NVMe has an older copy of
    /// it. False: the page had gone already.
    pub fn write_changed(&mut self, page: PageKey, shard: u16, now: Now) -> bool {
        self.store.write_changed(page, shard, now)
    }

    /// Begins to have pages written, with those they depend on: then `hurry_some` until it says so. Pages
    /// that are gone already are left out.
    pub fn begin_durable(&self, pages: &[PageKey]) -> Durable {
        self.store.begin_durable(pages)
    }

    /// Writes some more of these pages before all others. Returns those that are not on NVMe yet, parents
    /// first; none is told twice. True: that is all.
    pub fn hurry_some(&mut self, durable: &mut Durable) -> (Vec<PageKey>, bool) {
        self.store.hurry_some(durable)
    }

    /// The same, all at once.
    pub fn make_durable(&mut self, pages: &[PageKey]) -> Vec<PageKey> {
        let (mut durable, mut missing) = (self.begin_durable(pages), Vec::new());
        loop {
            let (some, all) = self.hurry_some(&mut durable);
            missing.extend(some);
            if all {
                return missing;
            }
        }
    }

    /// Whether all shards of the page are on NVMe. None: the page is gone, or stays off NVMe as things are.
    pub fn is_on_nvme(&self, page: PageKey) -> Option<bool> {
        self.store.is_on_nvme(page)
    }
}
