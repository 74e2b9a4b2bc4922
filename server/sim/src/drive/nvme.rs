//! The server's part of the NVMe tier, simulated: write-behind, reads, reclaim, prefetch. Owns: when they run.
//! Must not know: turns.

use super::{Event, Replay, block_of, hash_of};
use crate::device::Device;
use std::collections::VecDeque;
use turnkv_pool::{LiveExtent, Now, NvmePlace, PageKey, Pass, PassNext, PlaceNote, Promotion, WriteBehind};
use turnkv_proto::NamespaceId;

/// Pages written in one go, after which room is looked after.
const WRITE_BATCH_PAGES: u64 = 64;
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
            for (place, note) in self.pool.take_effects().notes {
                match note {
                    PlaceNote::Dead(_) | PlaceNote::Moved(_) => device.forget(place),
                    PlaceNote::Leaving(_) => {} // there is no restart here
                }
            }
        }
    }

    /// Empties segments until enough are free, or pages are on their way out of one.
    fn make_room(&mut self, now: Now) {
        for _ in 0..PASSES_MAX {
            let Some(mut pass) = self.emptying.take().or_else(|| self.begin_pass(now)) else { return };
            if !self.go_on(&mut pass, now) {
                self.emptying = Some(pass);
                return;
            }
            self.forget_dead();
        }
    }

    fn begin_pass(&mut self, now: Now) -> Option<Pass> {
        let device = self.device.as_ref().filter(|device| device.needs_room())?;
        let page_bytes = self.pool.namespace_desc(self.ns).map_or(1, |desc| desc.shard_bytes);
        let kept = self.pool.kept_by_segment();
        let segment =
            device.worst_segment(|segment| kept.get(segment).map_or(0, |bytes| bytes / page_bytes))?;
        let extent = |(block, place)| LiveExtent {
            namespace: NamespaceId([1; 32]),
            hash: hash_of(block),
            shard: 0,
            bytes: page_bytes as u32,
            place,
        };
        let extents = device.live_extents(segment).into_iter().map(extent).collect();
        Some(self.pool.begin_pass(extents, false, now))
    }

    /// Goes on with a pass. False: it waits for pages on their way.
    fn go_on(&mut self, pass: &mut Pass, now: Now) -> bool {
        let mut waited = false;
        loop {
            let room = self.device.as_ref().is_some_and(Device::has_room);
            let step = self.pool.step_pass(pass, if room { u32::MAX } else { 0 }, now);
            for promotion in step.reads {
                // Reclaim reads in the background: its reads take the device's time but nobody waits for them here.
                if let Some(device) = &mut self.device {
                    device.read_done(now);
                }
                self.counts.nvme_read += 1;
                self.pool.promoted(promotion.page, promotion.shard, now);
            }
            for _ in 0..step.writes_ready {
                self.write_next(now);
            }
            match step.next {
                PassNext::Again => waited = false,
                PassNext::Wait if waited => return false,
                PassNext::Wait => waited = true, // a device that takes no time has done it already
                PassNext::Over { .. } => return true,
            }
        }
    }

    /// Starts to write what goes before all others.
    fn write_next(&mut self, now: Now) {
        for write in self.pool.next_writes(1, now) {
            if !self.start_write(&write, now) {
                self.pool.write_failed(write.page, write.shard, now);
            }
        }
    }
}
