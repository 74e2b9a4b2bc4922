//! The server's part of the NVMe tier, simulated: write-behind, reads, reclaim, prefetch. Owns: when they run.
//! Must not know: turns.

use super::{Event, Replay, block_of, hash_of};
use crate::device::Device;
use std::collections::VecDeque;
use turnkv_pool::{Now, NvmePlace, PageKey, PlaceNote, Promotion, Reclaim, Rewrite, WriteBehind};
use turnkv_proto::NamespaceId;

/// Pages written in one go, after which room is looked after.
const WRITE_BATCH_PAGES: u64 = 64;
/// Share of a segment that one pass may write again, percent, as in the server.
const REWRITE_PERCENT_MAX: usize = 85;
/// Segments emptied in one go.
const PASSES_MAX: usize = 64;

impl Replay<'_> {
    /// Starts a read. Returns when it lands.
    pub(super) fn start_read(&mut self, promotion: Promotion, now: Now) -> Now {
        let done = self.device.as_mut().map_or(now, |device| device.read_done(now));
        self.counts.nvme_read += 1;
        self.reads.insert(promotion.page, done);
        self.schedule(done, Event::Read(promotion));
        done
    }

    /// Starts what waits to be written.
    pub(super) fn pump_writes(&mut self, now: Now) {
        if self.device.is_none() {
            return;
        }
        for _ in 0..PASSES_MAX {
            self.forget_dead();
            self.make_room(now);
            let slot_bytes = self.pool.namespace_desc(self.ns).map_or(1, |desc| desc.shard_bytes);
            let mut writes: VecDeque<WriteBehind> =
                self.pool.next_writes(WRITE_BATCH_PAGES * slot_bytes, now).into();
            if writes.is_empty() {
                return;
            }
            while let Some(write) = writes.pop_front() {
                if !self.start_write(&write, now) {
                    self.pool.write_failed(write.page, write.shard, now);
                    for write in writes.into_iter().rev() {
                        self.pool.write_failed(write.page, write.shard, now);
                    }
                    return;
                }
            }
        }
    }

    pub(super) fn written(&mut self, page: PageKey, place: NvmePlace, now: Now) {
        if !self.pool.written(page, 0, place, now)
            && let Some(device) = &mut self.device
        {
            device.forget(place);
        }
    }

    /// Brings the pages of sessions that are expected back soon into DRAM.
    pub(super) fn prefetch(&mut self, now: Now) {
        for promotion in self.pool.next_prefetches(u64::MAX, now) {
            self.counts.prefetched += 1;
            self.start_read(promotion, now);
        }
    }

    /// False: the device is full.
    fn start_write(&mut self, write: &WriteBehind, now: Now) -> bool {
        let Some(device) = &mut self.device else { return false };
        let Some(place) = device.append(block_of(&write.hash)) else { return false };
        let done = device.write_done(now);
        self.counts.nvme_written += 1;
        if done == now {
            self.written(write.page, place, now);
        } else {
            self.schedule(done, Event::Written(write.page, place));
        }
        true
    }

    fn forget_dead(&mut self) {
        if let Some(device) = &mut self.device {
            for (place, note) in self.pool.take_place_notes() {
                match note {
                    PlaceNote::Dead(_) | PlaceNote::Moved(_) => device.forget(place),
                    PlaceNote::Leaving(_) => {} // there is no restart here
                }
            }
        }
    }

    /// Empties segments until enough are free.
    fn make_room(&mut self, now: Now) {
        for _ in 0..PASSES_MAX {
            let Some(device) = self.device.as_ref().filter(|device| device.needs_room()) else { return };
            let page_bytes = self.pool.namespace_desc(self.ns).map_or(1, |desc| desc.shard_bytes);
            let kept = self.pool.kept_by_segment();
            let kept = |segment: usize| kept.get(segment).map_or(0, |bytes| bytes / page_bytes);
            let Some(segment) = device.worst_segment(kept) else { return };
            self.empty_segment(segment, now);
            self.forget_dead();
        }
    }

    /// Moves or drops every page of a segment. Children were written after their parents: from the back, leaves go first.
    fn empty_segment(&mut self, segment: u32, now: Now) {
        let Some(device) = &self.device else { return };
        let extents = device.live_extents(segment);
        let segment_pages = Device::segment_pages(self.model.nvme_pages) as usize;
        let mut rewrites_left = segment_pages * REWRITE_PERCENT_MAX / 100;
        for (block, place) in extents.into_iter().rev() {
            match self.pool.reclaim_verdict(&NamespaceId([1; 32]), &hash_of(block), 0, place) {
                Reclaim::Dead => {}
                Reclaim::Cold(page) => self.drop_page(page),
                Reclaim::Hot(page) if rewrites_left > 0 && self.rewrite(page, now) => rewrites_left -= 1,
                Reclaim::Hot(page) => self.drop_page(page),
            }
        }
    }

    fn drop_page(&mut self, page: PageKey) {
        while !self.pool.drop_page(page) {}
    }

    /// Writes a page again elsewhere, reading it back first when only NVMe has it. False: it cannot move now.
    fn rewrite(&mut self, page: PageKey, now: Now) -> bool {
        let mut rewrite = self.pool.rewrite(page, 0);
        if let Rewrite::Promotion(promotion) = rewrite {
            // Reclaim reads in the background: its reads take the device's time but nobody waits for them here.
            if let Some(device) = &mut self.device {
                device.read_done(now);
            }
            self.counts.nvme_read += 1;
            self.pool.promoted(promotion.page, promotion.shard, now);
            rewrite = self.pool.rewrite(page, 0);
        }
        if rewrite != Rewrite::Dirty {
            return false;
        }
        let writes = self.pool.next_writes(1, now);
        let mut moved = true;
        for write in writes {
            let started = self.start_write(&write, now);
            if !started {
                self.pool.write_failed(write.page, write.shard, now);
            }
            moved &= started;
        }
        moved
    }
}
