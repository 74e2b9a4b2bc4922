//! The books of NVMe: what is written, what stays, what was found there. Owns: decisions about extents.
//! Must not know: segments' files, who reads and writes them.
//!
//! - `admission`: which pages are written; `writeback`: in which order; `durable`: those that somebody waits
//!   for
//! - `space`: which pages leave when there is no room for all; `reclaim`: which extents of a segment are
//!   worth their place; `pass`: how it is emptied of them
//! - `promote`: pages that are read back into DRAM
//! - `strangers`: extents of namespaces that are not open; `thin`: when that is too much; `adopt`: they
//!   become pages

pub(crate) mod admission;
pub(crate) mod adopt;
pub(crate) mod durable;
pub(crate) mod pass;
pub(crate) mod promote;
pub(crate) mod reclaim;
pub(crate) mod space;
pub(crate) mod strangers;
pub(crate) mod thin;
pub(crate) mod writeback;

use crate::config::{Admit, PoolConfig};
use crate::ids::{NvmePlace, PlaceNote};
use admission::{LeftBehind, WriteBudget};
use space::NvmeSpace;
use strangers::Strangers;
use writeback::WriteQueue;

/// The books of NVMe.
pub(crate) struct Nvme {
    /// There is an NVMe tier, and it works.
    alive: bool,
    /// Bytes that the tier can have.
    bytes: u64,
    bytes_per_day: u64,
    admit: Admit,
    writes: WriteQueue,
    budget: WriteBudget,
    behind: LeftBehind,
    space: NvmeSpace,
    /// Pages came to wait to be written since somebody asked.
    writes_ready: bool,
    /// What became of extents, for whoever keeps the bytes.
    place_notes: Vec<(NvmePlace, PlaceNote)>,
    /// What is on NVMe of namespaces that are not open.
    strangers: Strangers,
}

/// Gauges of the books.
pub(crate) struct NvmeGauges {
    pub(crate) waiting_writes: u64,
    /// Memory of the books themselves.
    pub(crate) memory_bytes: usize,
    pub(crate) stranger_namespaces: u64,
    pub(crate) stranger_extents: u64,
    pub(crate) stranger_bytes: u64,
    /// Pages wait, off NVMe, until it has time or room for them.
    pub(crate) behind: bool,
}

impl Nvme {
    /// The books of an empty tier.
    pub(crate) fn new(config: &PoolConfig) -> Nvme {
        Nvme {
            alive: config.nvme_bytes > 0,
            bytes: config.nvme_bytes,
            bytes_per_day: config.nvme_bytes_per_day,
            admit: config.nvme_admit,
            writes: WriteQueue::default(),
            budget: WriteBudget::new(config.nvme_bytes_per_day),
            behind: LeftBehind::default(),
            space: NvmeSpace::new(config.nvme_bytes),
            writes_ready: false,
            place_notes: Vec::new(),
            strangers: Strangers::default(),
        }
    }

    /// Whether there is an NVMe tier that works.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive
    }

    /// Bytes that the tier can have; 0: it does not work.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        if self.alive { self.bytes } else { 0 }
    }

    /// The device is gone: nothing goes there any more, and what was there is of no use.
    pub(crate) fn lose(&mut self) {
        self.alive = false;
        self.place_notes.clear();
        self.strangers = Strangers::default();
        self.writes = WriteQueue::default();
        self.writes_ready = false;
    }

    /// What became of extents since the last time, in order, and whether pages came to wait to be written.
    pub(crate) fn take_effects(&mut self) -> (Vec<(NvmePlace, PlaceNote)>, bool) {
        (std::mem::take(&mut self.place_notes), std::mem::take(&mut self.writes_ready))
    }

    /// Something became of an extent, for whoever keeps the bytes.
    pub(crate) fn note(&mut self, place: NvmePlace, note: PlaceNote) {
        self.place_notes.push((place, note));
    }

    /// So many bytes at a place are of no use any more.
    fn note_dead(&mut self, place: NvmePlace, bytes: u64) {
        self.note(place, PlaceNote::Dead(bytes));
    }

    /// Gauges now.
    pub(crate) fn gauges(&self) -> NvmeGauges {
        NvmeGauges {
            waiting_writes: self.writes.len() as u64,
            memory_bytes: self.writes.bytes() + self.strangers.memory(),
            stranger_namespaces: self.strangers.families() as u64,
            stranger_extents: self.strangers.count,
            stranger_bytes: self.strangers.bytes,
            behind: self.behind.is_any(),
        }
    }

    /// Whether the strangers add up, for the check of invariants.
    pub(crate) fn strangers_add_up(&self) -> bool {
        (self.strangers.count, self.strangers.bytes) == self.strangers.recount()
    }
}
