//! How to use a device. Owns: the defaults and the bounds of its settings. Must not know: drivers.

use std::time::Duration;

use crate::device::choose::CopyChoice;
use crate::device::driver::{DeviceError, DeviceErrorKind};
use crate::limits::{
    CHUNK_BYTES_MIN, KERNEL_BLOCKS_MAX, KERNEL_BLOCKS_USUAL, KERNEL_CHUNK_BYTES_USUAL, STAGING_BYTES_MIN,
    STAGING_BYTES_USUAL, STUCK_AFTER,
};

/// How to use a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Pinned memory that copies go through where a slab is not pinned (yet): half for offloads, half for
    /// reloads. At least [`STAGING_BYTES_MIN`].
    pub staging_bytes: usize,
    /// Slabs are pinned up to so many bytes; copies of the others are staged. None: as much as the host has
    /// when a slab is pinned, since the memory of a virtual machine may grow.
    pub pinned_bytes_max: Option<u64>,
    /// Who copies.
    pub copy: CopyChoice,
    /// Thread blocks of a copy kernel: few, so that the rest of the device stays with its owner. 1 to [`KERNEL_BLOCKS_MAX`].
    pub kernel_blocks: u32,
    /// One launch moves no more bytes, so that it ends soon; where pages come layer by layer it may move a 32nd of them all, so
    /// that launches are few. At least [`CHUNK_BYTES_MIN`].
    pub chunk_bytes: usize,
    /// Whether the device takes the pages' checksums; else the CPU does, over the slots.
    pub checksum: bool,
    /// A device whose copies have not ended after so long counts as broken: no more is begun on it. Offloads
    /// are given up then; what is to be written to an engine's memory is waited for, for as long as it takes.
    pub stuck_after: Duration,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            staging_bytes: STAGING_BYTES_USUAL,
            pinned_bytes_max: None,
            copy: CopyChoice::Auto,
            kernel_blocks: KERNEL_BLOCKS_USUAL,
            chunk_bytes: KERNEL_CHUNK_BYTES_USUAL,
            checksum: true,
            stuck_after: STUCK_AFTER,
        }
    }
}

impl DeviceOptions {
    /// Whether a device can be used so.
    ///
    /// # Errors
    /// `Invalid`: which setting is out of bounds.
    pub(super) fn check(&self) -> Result<(), DeviceError> {
        let invalid = |text: String| Err(DeviceError::new(DeviceErrorKind::Invalid, text));
        if self.staging_bytes < STAGING_BYTES_MIN {
            return invalid(format!(
                "staging_bytes is {}; at least {STAGING_BYTES_MIN} are needed",
                self.staging_bytes
            ));
        }
        if self.chunk_bytes < CHUNK_BYTES_MIN {
            return invalid(format!(
                "chunk_bytes is {}; at least {CHUNK_BYTES_MIN} make sense",
                self.chunk_bytes
            ));
        }
        if !(1..=KERNEL_BLOCKS_MAX).contains(&self.kernel_blocks) {
            return invalid(format!(
                "kernel_blocks is {}; 1 to {KERNEL_BLOCKS_MAX} make sense",
                self.kernel_blocks
            ));
        }
        Ok(())
    }
}
