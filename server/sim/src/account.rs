//! Hits and losses. Owns: what is counted, and how counts add up. Must not know: how they came about.

use std::ops::AddAssign;

/// What one simulated pool did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests played.
    pub requests: u64,
    /// Blocks they sent.
    pub blocks: u64,
    /// Tokens they sent, those of partial blocks included.
    pub input_tokens: u64,
    /// Blocks found in DRAM.
    pub dram_hits: u64,
    /// Blocks found on NVMe.
    pub nvme_hits: u64,
    /// Blocks that an infinite pool would have had.
    pub infinite_hits: u64,
    /// Of those not found: blocks that the same session had sent before.
    pub lost_multi_turn: u64,
    /// Of those not found: blocks that only other sessions had sent before.
    pub lost_cross_session: u64,
    /// Blocks stored.
    pub stored: u64,
    /// Blocks that the pool declined to store.
    pub declined: u64,
    /// Blocks gone from the pool by policy.
    pub evicted: u64,
    /// Blocks written to NVMe, rewrites included.
    pub nvme_written: u64,
    /// Blocks read from NVMe.
    pub nvme_read: u64,
    /// Blocks brought into DRAM before their turn began.
    pub prefetched: u64,
    /// Turns that found something.
    pub turns_hit: u64,
    /// Of these, turns that found all of it in DRAM.
    pub turns_from_dram: u64,
    /// Milliseconds that turns waited for NVMe, all together.
    pub wait_ms: u64,
    /// The longest of these waits.
    pub wait_ms_max: u64,
}

impl Counts {
    /// Blocks found.
    pub fn hits(&self) -> u64 {
        self.dram_hits + self.nvme_hits
    }

    /// Blocks found, in percent of the blocks sent.
    pub fn hit_percent(&self) -> f64 {
        self.percent(self.hits())
    }

    /// Some of the blocks sent, in percent.
    pub fn percent(&self, blocks: u64) -> f64 {
        percent(blocks, self.blocks)
    }

    /// Blocks that an infinite pool would have had and this one had not.
    pub fn lost(&self) -> u64 {
        self.lost_multi_turn + self.lost_cross_session
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.requests += other.requests;
        self.blocks += other.blocks;
        self.input_tokens += other.input_tokens;
        self.dram_hits += other.dram_hits;
        self.nvme_hits += other.nvme_hits;
        self.infinite_hits += other.infinite_hits;
        self.lost_multi_turn += other.lost_multi_turn;
        self.lost_cross_session += other.lost_cross_session;
        self.stored += other.stored;
        self.declined += other.declined;
        self.evicted += other.evicted;
        self.nvme_written += other.nvme_written;
        self.nvme_read += other.nvme_read;
        self.prefetched += other.prefetched;
        self.turns_hit += other.turns_hit;
        self.turns_from_dram += other.turns_from_dram;
        self.wait_ms += other.wait_ms;
        self.wait_ms_max = self.wait_ms_max.max(other.wait_ms_max);
    }
}

/// A part in percent; of nothing, nothing.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}
