//! What a device's copies came to. Owns: the counters. Must not know: who counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a device's copies came to since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Bytes of slabs that are pinned for direct copies now.
    pub registered_bytes: u64,
    /// Of these, on another NUMA node than the one nearest to the device: their copies cross between processors.
    pub far_bytes: u64,
    /// Slabs that could not be pinned: their copies are staged.
    pub refused: u64,
    /// Bytes copied directly between slots and the device.
    pub direct_bytes: u64,
    /// Bytes copied through pinned staging memory.
    pub staged_bytes: u64,
    /// Bytes copied within the device.
    pub device_bytes: u64,
    /// Of these, between the engine's memory and memory of the device that NICs read and write themselves.
    pub lent_bytes: u64,
    /// Calls to the copy engines.
    pub engine_calls: u64,
    /// Launches of the copy kernel.
    pub launches: u64,
    /// Bytes of host memory that a broken device may still be using, pages' and the pinned memory of lanes: never used again.
    pub quarantined_bytes: u64,
    /// Copies under way, one for each call.
    pub flights: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters behind [`DeviceStats`].
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) registered_bytes: Counter,
    pub(crate) far_bytes: Counter,
    pub(crate) refused: Counter,
    pub(crate) direct_bytes: Counter,
    pub(crate) staged_bytes: Counter,
    pub(crate) device_bytes: Counter,
    pub(crate) lent_bytes: Counter,
    pub(crate) engine_calls: Counter,
    pub(crate) launches: Counter,
    pub(crate) quarantined_bytes: Counter,
    pub(crate) flights: Counter,
}

impl Stats {
    pub(crate) fn read(&self) -> DeviceStats {
        DeviceStats {
            registered_bytes: self.registered_bytes.get(),
            far_bytes: self.far_bytes.get(),
            refused: self.refused.get(),
            direct_bytes: self.direct_bytes.get(),
            staged_bytes: self.staged_bytes.get(),
            device_bytes: self.device_bytes.get(),
            lent_bytes: self.lent_bytes.get(),
            engine_calls: self.engine_calls.get(),
            launches: self.launches.get(),
            quarantined_bytes: self.quarantined_bytes.get(),
            flights: self.flights.get(),
        }
    }
}
