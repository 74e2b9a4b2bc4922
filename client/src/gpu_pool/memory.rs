//! What the clones of a GPU page pool share, and what is under way on its places. Must not know: copies.

use super::index::Index;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use turnkv_transfer::device::{Device, DeviceBuffer};

/// The memory of a pool and its index.
#[derive(Debug)]
pub(super) struct PoolMemory {
    pub(super) device: Device,
    pub(super) memory: Arc<DeviceBuffer>,
    pub(super) page_bytes: usize,
    pub(super) places: usize,
    pub(super) index: Mutex<Index>,
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
}
