//! What is to stay on NVMe, and what may move there. Owns: the books' answers about space. Must not know: which pages
//! leave, which segment is emptied.

use crate::ids::{NvmePlace, PlaceNote};
use crate::index::arena::Pages;
use crate::index::flags::{LEAVING, ON_NVME, VICTIM};
use crate::limits::{
    NVME_BESIDE_DRAM_SHARE, NVME_LARGE_SHARE, REWRITE_BURST_SHARE, REWRITE_CHEAP_SHARE, REWRITE_PERCENT_MAX,
    REWRITE_ROOMY_SHARE, ROOM_AGAIN_PERCENT,
};
use crate::nvme::books::Nvme;
use crate::nvme::space::NvmeShape;

impl Nvme {
    /// Says how the tier cuts its space, before any page is on it.
    pub(crate) fn shape(&mut self, kept_percent: u8, segment_bytes: u64, block_bytes: u64) {
        debug_assert_eq!(self.space.bytes, 0, "what is kept was counted in another shape");
        self.space.shape = NvmeShape { kept_percent: kept_percent.clamp(1, 100), segment_bytes, block_bytes };
    }

    /// Bytes of pages that a segment holds, and bytes of a block.
    pub(crate) fn segment_shape(&self) -> (u64, u64) {
        let NvmeShape { segment_bytes, block_bytes, .. } = self.space.shape;
        (segment_bytes * self.space.packing_percent / 100, block_bytes)
    }

    /// Bytes of NVMe that a shard takes as it is: its part of a segment that is full of its like. Where it is packed the tier
    /// counts as larger instead, so that what comes and what goes is counted alike.
    pub(crate) fn extent_bytes(&self, shard_bytes: u64) -> u64 {
        let NvmeShape { segment_bytes, block_bytes, .. } = self.space.shape;
        let extent_bytes = shard_bytes + block_bytes;
        match segment_bytes.saturating_sub(2 * block_bytes) / extent_bytes {
            0 => extent_bytes,
            extents => segment_bytes / extents,
        }
    }

    /// Bytes that are to stay, in all and by segment.
    pub(crate) fn kept(&self) -> (u64, &[u64]) {
        (self.space.bytes, &self.space.by_segment)
    }

    /// A page's extent is at a place from now on, and is to stay there.
    pub(crate) fn keep(&mut self, place: NvmePlace, extent_bytes: u64, promised: bool) {
        self.space.add(place, extent_bytes, promised);
    }

    /// An extent is not to stay at its place any more.
    pub(crate) fn keep_no_more(&mut self, place: NvmePlace, extent_bytes: u64, promised: bool) {
        self.space.take(place, extent_bytes, promised);
    }

    /// Bytes are written again.
    pub(crate) fn count_move(&mut self, bytes: u64) {
        self.space.moves_left = self.space.moves_left.saturating_sub(bytes);
        self.space.credit = self.space.credit.saturating_sub(bytes);
    }

    /// Bytes came that were not on NVMe: they are there now. A try that found no room counts for nothing, or
    /// moving could go on for ever without making any.
    pub(crate) fn count_arrival(&mut self, bytes: u64) {
        let most = self.bytes / REWRITE_BURST_SHARE;
        self.space.moves_left = self.bytes;
        self.space.credit =
            (self.space.credit + bytes * REWRITE_PERCENT_MAX / 100).min(most.max(self.space.credit));
    }

    /// Whether a page that nothing hangs on may be written again: out of what came, or because little of its
    /// segment stays, or little of all segments, so that what moves is little beside what that frees.
    pub(crate) fn rewrite_allowed(&self, shard_bytes: u64, place: NvmePlace) -> bool {
        let stays = self.space.by_segment.get(usize::from(place.segment)).copied().unwrap_or(0);
        self.space.credit >= shard_bytes
            || stays <= self.segment_shape().0 / REWRITE_CHEAP_SHARE
            || self.space.bytes <= self.bytes / REWRITE_ROOMY_SHARE
    }

    /// Whether NVMe has room again for what it let go of while DRAM kept it.
    pub(crate) fn has_room_again(&self, dirty_bytes: u64) -> bool {
        let enough = self.kept_bytes_max() / 100 * ROOM_AGAIN_PERCENT;
        self.space.bytes + dirty_bytes <= enough && self.space.credit >= self.bytes / REWRITE_BURST_SHARE / 2
    }

    fn kept_bytes_max(&self) -> u64 {
        (u128::from(self.bytes) * u128::from(self.space.shape.kept_percent) / 100) as u64
    }

    /// Whether NVMe is so small that DRAM has nearly all it has: its oldest copies go, which costs nothing.
    pub(crate) fn is_beside_dram(&self, dram_bytes: u64) -> bool {
        self.kept_bytes_max() < dram_bytes / NVME_BESIDE_DRAM_SHARE
    }

    /// Whether NVMe has so much that what it has beside DRAM is not the most of its worth.
    pub(crate) fn is_large(&self, dram_bytes: u64) -> bool {
        self.kept_bytes_max() > dram_bytes / NVME_LARGE_SHARE
    }

    /// Whether a page goes before others is kept beside its extents, so that a restart does not take it for
    /// one that stays.
    pub(crate) fn note_leaving(&mut self, pages: &Pages, index: u32) {
        if !self.alive {
            return;
        }
        let note = PlaceNote::Leaving(pages[index].has(LEAVING | VICTIM));
        let places = pages.cells(index).iter().filter(|cell| cell.has(ON_NVME)).map(|cell| cell.place());
        self.place_notes.extend(places.map(|place| (place, note)));
    }

    /// The tier can have so many bytes from now on, a hundred of which hold so many bytes of pages, and pages may keep such a
    /// share.
    pub(crate) fn resize(&mut self, bytes: u64, packing_percent: u64, kept_percent: u8) {
        self.space.packing_percent = packing_percent.max(1);
        self.bytes = (u128::from(bytes) * u128::from(self.space.packing_percent) / 100) as u64;
        self.space.shape.kept_percent = kept_percent.clamp(1, 100);
    }

    /// So many bytes more may be written again.
    pub(crate) fn allow_rewrites(&mut self, bytes: u64) {
        self.space.credit = self.space.credit.saturating_add(bytes);
    }

    /// Bytes that may move now, whatever they are: all of NVMe once, after each write that is no move.
    pub(crate) fn moves_left(&self) -> u64 {
        self.space.moves_left
    }

    /// Whether more is to stay than can.
    pub(crate) fn is_overfull(&self) -> bool {
        self.space.bytes > self.kept_bytes_max()
    }

    /// Whether all fits that somebody was promised.
    pub(crate) fn promised_fits(&self) -> bool {
        self.space.promised <= self.kept_bytes_max()
    }

    /// Of what is to stay, so many bytes more were promised.
    pub(crate) fn promise(&mut self, extent_bytes: u64) {
        self.space.promised += extent_bytes;
    }
}
