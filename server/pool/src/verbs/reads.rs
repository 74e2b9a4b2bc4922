//! Reads into slots, and of slots: what became of them. Owns: the verbs. Must not know: how anything is read.

use crate::Pool;
use crate::ids::{MissCause, Now, PageKey, SlotKey};

impl Pool {
    /// The read landed and verified. False: the page went away meanwhile.
    pub fn promoted(&mut self, page: PageKey, shard: u16, now: Now) -> bool {
        self.store.promoted(page, shard, now)
    }

    /// The read failed. After `Checksum`, `Io` or `Absent` the page and all after it are dropped; after
    /// `Busy` it stays on NVMe. Leases that named the slot keep holding it until they end: tell their
    /// holders. True: the page is dropped, and was not before.
    pub fn promote_failed(&mut self, page: PageKey, shard: u16, cause: MissCause, now: Now) -> bool {
        self.store.promote_failed(page, shard, cause, now)
    }

    /// A slot that was to be read does not hold the page's bytes any more. False: the page had left it
    /// already.
    pub fn slot_changed(&mut self, page: PageKey, shard: u16, slot: SlotKey, now: Now) -> bool {
        self.store.slot_changed(page, shard, slot, now)
    }
}
