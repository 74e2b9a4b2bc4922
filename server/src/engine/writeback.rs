//! Write-behind: committed pages go to NVMe while DRAM still has them. Owns: the bytes in flight to the tier, and what becomes
//! of each write. Must not know: segments, who waits.

use super::Engine;
use super::decide::Later;
use super::durable::NotDurable;
use super::metrics::Corrupt;
use super::place::place;
use crate::limits::{WRITE_BEHIND_BYTES_INFLIGHT_MAX, WRITE_PAUSE_MS};
use std::sync::Arc;
use std::time::Instant;
use turnkv_pool::{SlotPlace, WriteBehind};
use turnkv_tier::nvme::NvmeTier;
use turnkv_tier::{ExtentMeta, Location, TierError};
use turnkv_transfer::Slot;

impl Engine {
    /// Hands dirty pages to the NVMe tier, up to the bound in flight. Called when pages become dirty and when writes
    /// complete; never waits.
    pub(crate) fn pump_writes(self: &Arc<Self>) {
        let Some(nvme) = &self.nvme else { return };
        loop {
            let now = self.now();
            let (writes, later): (Vec<(WriteBehind, SlotPlace)>, Later<'_>) = {
                let mut core = self.decide();
                let budget = WRITE_BEHIND_BYTES_INFLIGHT_MAX.saturating_sub(core.writing_bytes);
                if budget == 0 || now < core.writes_paused_until {
                    return;
                }
                let writes = core.pool.next_writes(budget, now);
                core.writing_bytes += writes.iter().map(|write| write.bytes).sum::<u64>();
                (writes.into_iter().map(|write| (write, core.place(write.slot))).collect(), core.later())
            };
            later.but_writes(); // they are asked for until there are none
            if writes.is_empty() {
                return;
            }
            self.start_writes(nvme, writes);
        }
    }

    /// Starts every write that the pool gave out: one that is not started is ended, or its page would stay as it is for ever.
    fn start_writes(self: &Arc<Self>, nvme: &NvmeTier, writes: Vec<(WriteBehind, SlotPlace)>) {
        for (write, place) in writes {
            match self.slot(place) {
                Ok(slot) => self.start_write(nvme, write, slot),
                Err(error) => {
                    tracing::error!(%error, "a dirty page's slot has no memory");
                    self.end_write(&write, Err(TierError::Busy));
                }
            }
        }
    }

    fn start_write(self: &Arc<Self>, nvme: &NvmeTier, write: WriteBehind, slot: Slot) {
        let meta = ExtentMeta {
            namespace: write.namespace,
            hash: write.hash,
            parent: write.parent,
            shard: write.shard,
            shards: write.shards,
            tail_tokens: write.tail_tokens,
            payload_bytes: write.bytes as u32,
            checksum: write.checksum,
        };
        let engine = Arc::clone(self);
        let (began, moves) = (Instant::now(), write.moves);
        let done = move |result| {
            let seconds = &engine.metrics.tier_seconds;
            let seconds = if moves { &seconds.rewrite } else { &seconds.write };
            seconds.record(began.elapsed());
            // A tier that has no room is asked again after a pause: by reclaim, or by the tick.
            if engine.end_write(&write, result) {
                engine.pump_writes();
            }
        };
        // What reclaim moves may take the segment kept in reserve: else a full tier could never make room.
        if moves {
            nvme.rewrite(meta, slot, Box::new(done));
        } else {
            nvme.write(meta, slot, Box::new(done));
        }
    }

    /// Takes a completion; says whether the tier took the write.
    fn end_write(self: &Arc<Self>, write: &WriteBehind, result: Result<Location, TierError>) -> bool {
        let now = self.now();
        let (page, shard) = (write.page, write.shard);
        let mut core = self.decide();
        core.writing_bytes -= write.bytes;
        let taken = match &result {
            Ok(at) => {
                let kept = core.pool.written(page, shard, place(*at), now);
                core.settle_durable(page, NotDurable::Lost);
                drop(core);
                if !kept && let Some(nvme) = &self.nvme {
                    nvme.forget(*at, write.bytes as u32);
                }
                self.metrics.demoted_bytes.increment(write.bytes);
                true
            }
            Err(TierError::Changed) => {
                let dropped = core.pool.write_changed(page, shard, now);
                core.settle_durable(page, NotDurable::Changed);
                drop(core);
                self.metrics.corrupted(Corrupt::Write, dropped.into());
                tracing::warn!(
                    page = ?write.hash,
                    "a page's bytes changed after it was committed, or never matched its checksum: dropped"
                );
                true
            }
            Err(error) => {
                core.pool.write_failed(page, shard, now);
                core.writes_paused_until = now + WRITE_PAUSE_MS;
                drop(core);
                tracing::debug!(%error, "a page stays dirty");
                self.check_nvme_health();
                false
            }
        };
        self.start_reclaim();
        taken
    }

    /// Takes a poisoned device out of service: DRAM lives on without it.
    pub(super) fn check_nvme_health(&self) {
        let Some(why) = self.nvme.as_ref().and_then(|nvme| nvme.poisoned()) else { return };
        let lost = {
            let mut core = self.decide();
            let first = !std::mem::replace(&mut core.nvme_lost, true);
            first.then(|| core.pool.nvme_lost())
        };
        if let Some(mut sweep) = lost {
            drop(self.decide_in_slices(|core| core.pool.lose_some(&mut sweep)));
            tracing::error!(
                why,
                "the NVMe tier is out of service: the pool goes on in DRAM; replace the device and restart"
            );
            self.sweep_durable();
        }
    }
}

#[cfg(test)]
mod tests;
