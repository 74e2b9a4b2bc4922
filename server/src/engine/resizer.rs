//! DRAM's change of size under way. Owns: the bell of the thread that goes on with it, and what stands in its way. Must not know:
//! what a step does.

use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// Who resizes: the bell of the thread, and what stands in the way of growth.
pub(super) struct Resizer {
    pub(super) bell: OnceLock<SyncSender<()>>,
    /// Why the next slab has no memory yet; it is not tried again before the moment beside it.
    pub(super) trouble: Mutex<Option<(String, Duration)>>,
    /// File descriptors that nobody else reckons with.
    pub(super) descriptors_spare: AtomicU64,
    /// Settings that have changed in the file and take a restart.
    pub(super) settings_waiting: Mutex<Vec<String>>,
}

impl Default for Resizer {
    fn default() -> Resizer {
        Resizer {
            bell: OnceLock::new(),
            trouble: Mutex::default(),
            descriptors_spare: AtomicU64::new(u64::MAX),
            settings_waiting: Mutex::default(),
        }
    }
}
