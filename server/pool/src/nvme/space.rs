//! Space on NVMe: which pages leave when there is no room for all, and how what hangs on them goes with them.
//! Owns: marks of the pages that leave first, the bytes that are to stay in each segment. Must not know:
//! which segment is emptied, and when.
//!
//! A page that is *leaving* is on NVMe alone, and the policy's order says that it goes next. It can be read,
//! and a read makes it stay; the reclaim of its segment drops it. Pages that stay are written again when
//! their segment is reclaimed. For each page that comes to NVMe the coldest pages are marked, so that a part
//! of the tier is always free or about to be, and emptying a segment moves little. Pages that only closed
//! sessions used leave at once.
//!
//! A page that is in DRAM as well may lose its copy on NVMe, unless somebody was *promised* that it is
//! durable: such a page is written again, or goes from both tiers.

use crate::ids::{NONE, NvmePlace, PlaceNote};
use crate::index::arena::Pages;
use crate::index::flags::{COUNTED_DRAM, LEAVING, Line, MOVING, ON_NVME, VICTIM};
use crate::index::list_id::{ListId, Position};
use crate::limits::{
    KEPT_PERCENT_MIN, LEAVE_PAGES_PER_CALL_MAX, NVME_BESIDE_DRAM_SHARE, NVME_KEPT_PERCENT, NVME_LARGE_SHARE,
    REWRITE_BURST_SHARE, REWRITE_CHEAP_SHARE, REWRITE_PERCENT_MAX, REWRITE_ROOMY_SHARE, ROOM_AGAIN_PERCENT,
    VICTIM_SCAN_MAX,
};
use crate::nvme::Nvme;
use crate::store::Store;
use crate::store::going::{Eviction, Removal, Search};

/// Share of a tier of so many segments that pages may keep, percent, if so many (`spare`) are kept free: of
/// the rest a tenth, and two segments, are for what leaves, or emptying segments would move too much.
pub fn kept_percent(segments: u64, spare: u64) -> u8 {
    let used = segments.saturating_sub(spare + 1); // one is being filled
    let kept = (used * 90).saturating_sub(200);
    (kept / segments.max(1)).max(KEPT_PERCENT_MIN) as u8
}

/// How the tier cuts its space.
#[derive(Clone, Copy, Debug)]
struct NvmeShape {
    kept_percent: u8,
    /// Bytes of a segment, and of a block: one is before each extent, two are the segment's own. 0: extents
    /// are but their bytes.
    segment_bytes: u64,
    block_bytes: u64,
}

/// Bytes that are to stay on NVMe.
#[derive(Debug)]
pub(super) struct NvmeSpace {
    by_segment: Vec<u64>,
    bytes: u64,
    /// Of these, bytes of pages that somebody was promised.
    promised: u64,
    /// Bytes that may be written again: a share of those that came.
    credit: u64,
    /// Bytes that may move before anything else is written. Where moving makes no room, however often, pages
    /// go.
    moves_left: u64,
    shape: NvmeShape,
}

impl NvmeSpace {
    pub(super) fn new(nvme_bytes: u64) -> NvmeSpace {
        let shape = NvmeShape { kept_percent: NVME_KEPT_PERCENT, segment_bytes: 0, block_bytes: 0 };
        NvmeSpace {
            by_segment: Vec::new(),
            bytes: 0,
            promised: 0,
            moves_left: nvme_bytes,
            credit: nvme_bytes / REWRITE_BURST_SHARE,
            shape,
        }
    }

    fn add(&mut self, place: NvmePlace, bytes: u64, promised: bool) {
        let segment = usize::from(place.segment);
        if segment >= self.by_segment.len() {
            self.by_segment.resize(segment + 1, 0);
        }
        self.by_segment[segment] += bytes;
        self.bytes += bytes;
        self.promised += if promised { bytes } else { 0 };
    }

    fn take(&mut self, place: NvmePlace, bytes: u64, promised: bool) {
        self.by_segment[usize::from(place.segment)] -= bytes;
        self.bytes -= bytes;
        self.promised -= if promised { bytes } else { 0 };
    }
}

impl Nvme {
    /// Says how the tier cuts its space, before any page is on it.
    fn shape(&mut self, kept_percent: u8, segment_bytes: u64, block_bytes: u64) {
        debug_assert_eq!(self.space.bytes, 0, "what is kept was counted in another shape");
        self.space.shape = NvmeShape { kept_percent: kept_percent.clamp(1, 100), segment_bytes, block_bytes };
    }

    /// Bytes of a segment, and of a block.
    pub(super) fn segment_shape(&self) -> (u64, u64) {
        (self.space.shape.segment_bytes, self.space.shape.block_bytes)
    }

    /// Bytes of NVMe that a shard takes: its part of a segment that is full of its like.
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
    pub(super) fn count_move(&mut self, bytes: u64) {
        self.space.moves_left = self.space.moves_left.saturating_sub(bytes);
        self.space.credit = self.space.credit.saturating_sub(bytes);
    }

    /// Bytes came that were not on NVMe: they are there now. A try that found no room counts for nothing, or
    /// moving could go on for ever without making any.
    pub(super) fn count_arrival(&mut self, bytes: u64) {
        let most = self.bytes / REWRITE_BURST_SHARE;
        self.space.moves_left = self.bytes;
        self.space.credit =
            (self.space.credit + bytes * REWRITE_PERCENT_MAX / 100).min(most.max(self.space.credit));
    }

    /// Whether a page that nothing hangs on may be written again: out of what came, or because little of its
    /// segment stays, or little of all segments, so that what moves is little beside what that frees.
    pub(super) fn rewrite_allowed(&self, shard_bytes: u64, place: NvmePlace) -> bool {
        let stays = self.space.by_segment.get(usize::from(place.segment)).copied().unwrap_or(0);
        self.space.credit >= shard_bytes
            || stays <= self.space.shape.segment_bytes / REWRITE_CHEAP_SHARE
            || self.space.bytes <= self.bytes / REWRITE_ROOMY_SHARE
    }

    /// Whether NVMe has room again for what it let go of while DRAM kept it.
    pub(super) fn has_room_again(&self, dirty_bytes: u64) -> bool {
        let enough = self.kept_bytes_max() / 100 * ROOM_AGAIN_PERCENT;
        self.space.bytes + dirty_bytes <= enough && self.space.credit >= self.bytes / REWRITE_BURST_SHARE / 2
    }

    fn kept_bytes_max(&self) -> u64 {
        (u128::from(self.bytes) * u128::from(self.space.shape.kept_percent) / 100) as u64
    }

    /// Whether NVMe is so small that DRAM has nearly all it has: its oldest copies go, which costs nothing.
    fn is_beside_dram(&self, dram_bytes: u64) -> bool {
        self.kept_bytes_max() < dram_bytes / NVME_BESIDE_DRAM_SHARE
    }

    /// Whether NVMe has so much that what it has beside DRAM is not the most of its worth.
    pub(super) fn is_large(&self, dram_bytes: u64) -> bool {
        self.kept_bytes_max() > dram_bytes / NVME_LARGE_SHARE
    }

    /// Whether a page goes before others is kept beside its extents, so that a restart does not take it for
    /// one that stays.
    pub(crate) fn note_leaving(&mut self, pages: &Pages, index: u32) {
        if !self.alive {
            return;
        }
        let note = PlaceNote::Leaving(pages[index].has(LEAVING | VICTIM));
        let places = pages.cells(index).iter().filter(|cell| cell.has(ON_NVME)).map(|cell| cell.place);
        self.place_notes.extend(places.map(|place| (place, note)));
    }
}

impl Store {
    /// Bytes of each segment that reclaim would have to write again: the fewer, the sooner it should be
    /// emptied. Segments beyond the end have none.
    pub(crate) fn kept_by_segment(&self) -> &[u64] {
        self.nvme.kept().1
    }

    /// Says how the tier cuts its space, before any page is on it: which share of it pages may keep (see
    /// [`kept_percent`]), and the bytes of a segment, in blocks of which one is before each extent.
    pub(crate) fn shape_nvme(&mut self, kept_percent: u8, segment_bytes: u64, block_bytes: u64) {
        self.nvme.shape(kept_percent, segment_bytes, block_bytes);
    }

    /// The tier can have so many bytes from now on, of which pages may keep such a share: its disk is full,
    /// or has space again. Beyond that the coldest pages are marked to leave, some in each call of
    /// [`Pool::maintain`].
    pub(crate) fn resize_nvme(&mut self, bytes: u64, kept_percent: u8) {
        self.nvme.bytes = bytes;
        self.nvme.space.shape.kept_percent = kept_percent.clamp(1, 100);
    }

    /// So many bytes more may be written again: segments are given up, and what is hot in them moves.
    pub(crate) fn allow_rewrites(&mut self, bytes: u64) {
        self.nvme.space.credit = self.nvme.space.credit.saturating_add(bytes);
    }

    /// Bytes that may move now, whatever they are: all of NVMe once, after each write that is no move.
    pub(crate) fn moves_left(&self) -> u64 {
        self.nvme.space.moves_left
    }

    /// Whether more is to stay than can, and every page that could leave is in DRAM as well.
    pub(crate) fn is_crowded(&mut self) -> bool {
        self.nvme.space.bytes > self.nvme.kept_bytes_max()
            && (self.nvme.is_beside_dram(self.slots.dram_bytes()) || self.coldest(ListId::Nvme).is_none())
    }

    /// More is on NVMe than is to stay: the coldest are to leave it, so many a call.
    pub(crate) fn choose_leaving(&mut self, pages_max: u32) {
        let slice = self.call.slice();
        for _ in 0..pages_max {
            if self.call.is_over(slice) || self.nvme.space.bytes <= self.nvme.kept_bytes_max() {
                return;
            }
            let promised_fit = self.nvme.space.promised <= self.nvme.kept_bytes_max();
            if promised_fit && self.nvme.is_beside_dram(self.slots.dram_bytes()) {
                return;
            }
            let victim = match self.coldest(ListId::Nvme) {
                None if !promised_fit => self.coldest_beside(),
                found => found,
            };
            let Some(victim) = victim else { return };
            match self.pages.tail_by(victim, &mut self.call, Pages::staying_child) {
                Some(tail) if self.pages[tail].has(MOVING) => return, // soon it can
                Some(tail) if self.may_leave(tail, Search::NONE) => self.mark_leaving(tail),
                // It is to stay: it must not be found again for each page that comes.
                _ => self.policy.touch(&mut self.pages, victim),
            }
        }
    }

    /// Everything on NVMe is in DRAM too, and more of it was promised than fits: the page that DRAM would
    /// give up next is on NVMe alone from now on, so that it can leave. The namespaces take turns.
    fn coldest_beside(&mut self) -> Option<u32> {
        let namespaces = self.pages.namespaces();
        let ns = self.turns.next(namespaces)?;
        let (victim, eviction) = self.next_victim(ns, VICTIM_SCAN_MAX, Search::NONE)?;
        if eviction != Eviction::Demote {
            return None;
        }
        self.evict(victim, eviction, Search::NONE);
        Some(victim).filter(|victim| self.pages[*victim].line() == Line::Nvme)
    }

    /// A page that was left, and that is on NVMe alone, does not wait until room is needed: it leaves.
    pub(crate) fn leave_if_left(&mut self, index: u32, search: Search) {
        if self.pages[index].has(VICTIM) && self.may_leave(index, search) {
            self.mark_leaving(index);
        }
    }

    fn may_leave(&self, index: u32, search: Search) -> bool {
        let alone = self.pages[index].line() == Line::Nvme && self.pages.child_in_dram(index).is_none();
        alone && !self.goes_last(index, search)
    }

    fn mark_leaving(&mut self, index: u32) {
        let (bytes, promised) = (
            self.nvme.extent_bytes(self.slots.shard_bytes_of(self.pages[index].ns)),
            self.pages.is_promised(index),
        );
        self.pages.set_leaving(index, true);
        for cell in self.pages.cells(index).iter().filter(|cell| cell.has(ON_NVME)) {
            self.nvme.space.take(cell.place, bytes, promised);
        }
        self.nvme.note_leaving(&self.pages, index);
        self.refresh(index, Position::Hot);
    }

    /// A page found on NVMe that went before others when the pool was left: it goes first again.
    pub(crate) fn leave_again(&mut self, index: u32) {
        if self.may_leave(index, Search::NONE) {
            self.mark_leaving(index);
        }
    }

    /// Somebody uses the page, or it moves: it is among those that stay.
    pub(crate) fn stay(&mut self, index: u32) {
        if self.pages[index].has(LEAVING) {
            self.unmark_leaving(index);
            self.refresh(index, Position::Hot);
        }
    }

    /// Takes back the mark alone.
    pub(crate) fn unmark_leaving(&mut self, index: u32) {
        if !self.pages[index].has(LEAVING) {
            return;
        }
        let (bytes, promised) = (
            self.nvme.extent_bytes(self.slots.shard_bytes_of(self.pages[index].ns)),
            self.pages.is_promised(index),
        );
        self.pages.set_leaving(index, false);
        for cell in self.pages.cells(index).iter().filter(|cell| cell.has(ON_NVME)) {
            self.nvme.space.add(cell.place, bytes, promised);
        }
        self.nvme.note_leaving(&self.pages, index);
    }

    /// Somebody counts on the page to be on NVMe as long as it is here, and on its ancestors, which were
    /// promised before.
    pub(crate) fn promise(&mut self, index: u32) {
        if self.pages.is_promised(index) {
            return;
        }
        self.pages.set_promised(index);
        if !self.pages[index].has(LEAVING) {
            let extents = self.pages.cells(index).iter().filter(|cell| cell.has(ON_NVME)).count() as u64;
            self.nvme.space.promised +=
                extents * self.nvme.extent_bytes(self.slots.shard_bytes_of(self.pages[index].ns));
        }
    }

    /// The page's copy on NVMe is given up. What is in DRAM stays there, off NVMe with all that hangs on it,
    /// unless it was promised; that, and what is on NVMe alone, is gone, with all that hangs on it. Tails go
    /// before heads, so many a call: false if not all went.
    pub(crate) fn leave_nvme(&mut self, top: u32) -> bool {
        let (mut at, mut lost) = (top, NONE);
        let mut passed = 0;
        for _ in 0..LEAVE_PAGES_PER_CALL_MAX {
            self.call.pass(std::mem::take(&mut passed));
            loop {
                passed += 1;
                let in_dram = self.nvme.alive && self.pages[at].has(COUNTED_DRAM);
                if lost == NONE && (!in_dram || self.pages.is_promised(at)) {
                    lost = at; // nothing leads to what hangs on it
                }
                let any = Some(self.pages[at].first_child).filter(|child| *child != NONE);
                match if lost == NONE { self.pages.nvme_child(at) } else { any } {
                    Some(child) => at = child,
                    None => break,
                }
            }
            let parent = self.pages[at].parent;
            if lost == NONE {
                self.stay_off(at);
            } else {
                self.remove_leaf(at, Removal::Evicted, Search::NONE);
                if at == top && parent != NONE {
                    self.prune(parent, Search::NONE);
                }
            }
            if at == top {
                return true;
            }
            lost = if lost == at { NONE } else { lost };
            at = parent;
        }
        false
    }

    /// DRAM has the only copy, until NVMe has room again.
    fn stay_off(&mut self, index: u32) {
        self.note_let_go(index);
        for shard in 0..self.pages.shards(index) {
            self.clear_dirty(index, shard);
            self.clear_place(index, shard);
        }
        self.pages.give_up_nvme(index);
        self.refresh(index, Position::Hot);
    }

    pub(crate) fn stay_without_nvme(&mut self, index: u32) {
        self.unmark_leaving(index);
        for shard in 0..self.pages.shards(index) {
            self.clear_dirty(index, shard);
            self.clear_place(index, shard);
        }
        self.pages.give_up_writes(index);
        self.pages.give_up_nvme(index);
        self.refresh(index, Position::Hot);
    }
}
