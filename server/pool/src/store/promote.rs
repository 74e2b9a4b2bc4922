//! Promotion: NVMe pages back into DRAM. Owns: the state of reads in flight. Must not know: how they are
//! read.

use crate::ids::{MissCause, Now, NvmePlace, PageKey, SlotKey};
use crate::index::flags::{ON_NVME, PROMOTING};
use crate::index::list_id::Position;
use crate::store::Store;

/// A read to start: from a place on NVMe into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// The page.
    pub page: PageKey,
    /// Which shard of it.
    pub shard: u16,
    /// Where to read it to.
    pub slot: SlotKey,
    /// Where it is.
    pub place: NvmePlace,
    /// Bytes of the shard.
    pub bytes: u64,
    /// CRC-64/NVME of its bytes.
    pub checksum: u64,
}

impl Store {
    /// The read landed and verified.
    pub(crate) fn promoted(&mut self, page: PageKey, shard: u16, now: Now) -> bool {
        self.tick(now);
        let Some(index) = self.pages.in_flight(page, shard, PROMOTING) else { return false };
        if !self.end_io(index, shard, PROMOTING) {
            return false;
        }
        self.pages.finish_promotion(index, shard);
        self.slots.note_change(self.pages.cell(index, shard).slot);
        self.tally.promoted += 1;
        self.refresh(index, Position::Hot);
        true
    }

    /// The read failed.
    pub(crate) fn promote_failed(&mut self, page: PageKey, shard: u16, cause: MissCause, now: Now) -> bool {
        self.tick(now);
        let Some(index) = self.pages.in_flight(page, shard, PROMOTING) else { return false };
        if !self.end_io(index, shard, PROMOTING) {
            return false;
        }
        self.let_go(index, shard);
        self.pages.set_moving(index, false);
        let lost = !self.pages.cell(index, shard).has(ON_NVME);
        let drop = lost || cause != MissCause::Busy;
        match drop {
            true => self.condemn(index),
            false => self.refresh(index, Position::Hot),
        }
        drop
    }

    /// Takes a slot for a shard that is on NVMe only. `returns_at`: for a prefetch, whose session returns
    /// then.
    pub(crate) fn start_promotion(
        &mut self,
        index: u32,
        shard: u16,
        returns_at: Option<Now>,
    ) -> Option<Promotion> {
        debug_assert!(self.pages.cell(index, shard).has(ON_NVME), "only what is there can be read");
        let slot = self.allocate(index, returns_at)?;
        self.slots.begin_io(slot);
        let cell = self.pages.begin_promotion(index, shard, slot);
        let (place, checksum) = (cell.place(), cell.checksum());
        self.refresh(index, Position::Hot);
        let (page, bytes) = (self.pages.key(index), self.slots.shard_bytes_of(self.pages[index].ns));
        Some(Promotion { page, shard, slot: self.slots.key(slot), place, bytes, checksum })
    }
}
