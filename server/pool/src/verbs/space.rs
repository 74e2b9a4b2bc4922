//! Space on NVMe: how large the tier is, and how its segments are emptied. Owns: the verbs. Must not know: which
//! segment is emptied, and when.

use crate::Pool;
use crate::ids::{Now, NvmePlace, PageKey};
use crate::store::pass::{LiveExtent, Pass, PassStep};
use crate::store::reclaim::{Reclaim, Rewrite};
use turnkv_proto::{BlockHash, NamespaceId};

impl Pool {
    /// Says how the tier cuts its space, before any page is on it: which share of it pages may keep (see
    /// [`kept_percent`](crate::kept_percent)), and the bytes of a segment, in blocks of which one is before each extent.
    pub fn shape_nvme(&mut self, kept_percent: u8, segment_bytes: u64, block_bytes: u64) {
        self.store.shape_nvme(kept_percent, segment_bytes, block_bytes);
    }

    /// The tier can have so many bytes from now on, each hundred of which hold so many bytes of pages (100 where they are stored as
    /// they are), and pages may keep such a share: its disk is full, or has space again, or pages shrink more or less than
    /// before. Beyond that the coldest pages are marked to leave, some in each call of [`Pool::maintain`].
    pub fn resize_nvme(&mut self, bytes: u64, packing_percent: u64, kept_percent: u8) {
        self.store.resize_nvme(bytes, packing_percent, kept_percent);
    }

    /// Bytes of each segment that reclaim would have to write again: the fewer, the sooner it should be
    /// emptied. Segments beyond the end have none.
    pub fn kept_by_segment(&self) -> &[u64] {
        self.store.nvme().kept().1
    }

    /// Begins to empty a segment of which these extents are alive, in the order in which they were written. `surplus`: the
    /// tier is to be without it, so all of it may move.
    pub fn begin_pass(&mut self, extents: Vec<LiveExtent>, surplus: bool, now: Now) -> Pass {
        self.store.begin_pass(extents, surplus, now)
    }

    /// Moves or drops the next page of the segment, or looks after those on their way. `movable_bytes`: the largest extent
    /// that there is room to write elsewhere, now or soon.
    pub fn step_pass(&mut self, pass: &mut Pass, movable_bytes: u32, now: Now) -> PassStep {
        self.store.step_pass(&self.namespaces, pass, movable_bytes, now)
    }

    /// Judges an extent: cold is what leaves NVMe by the policy's order or was left, or, where DRAM has all
    /// of the rest, what nothing else on NVMe hangs on. What is protected, and what leads to pages that stay,
    /// is hot. Of the rest only so much is as a share of the bytes that came allows, unless little of the
    /// segment stays.
    pub fn reclaim_verdict(
        &mut self,
        namespace: &NamespaceId,
        hash: &BlockHash,
        shard: u16,
        place: NvmePlace,
    ) -> Reclaim {
        self.store.reclaim_verdict(&self.namespaces, namespace, hash, shard, place)
    }

    /// Starts writing a page again. Its old place stays in use until the new one is written.
    pub fn rewrite(&mut self, page: PageKey, shard: u16) -> Rewrite {
        self.store.rewrite(page, shard)
    }

    /// A page that was to be written again is not: it competes for room like any other.
    pub fn rewrite_ended(&mut self, page: PageKey) {
        self.store.rewrite_ended(page);
    }

    /// Gives up the place of a cold page, and of all after it. What DRAM has of them stays, unless it was
    /// promised to be on NVMe; the rest is gone by policy. Slots under leases are free when these end. False:
    /// there was too much for one call; ask again.
    pub fn drop_page(&mut self, page: PageKey) -> bool {
        self.store.drop_page(page)
    }

    /// So many bytes more may be written again: segments are given up, and what is hot in them moves.
    pub fn allow_rewrites(&mut self, bytes: u64) {
        self.store.allow_rewrites(bytes);
    }
}
