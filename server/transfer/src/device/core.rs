//! What a device's lanes, handles and buffers share. Owns: the driver, and that a broken device is refused.
//! Must not know: jobs, pages.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::device::choose::Means;
use crate::device::driver::{DeviceError, DeviceErrorKind, Driver};
use crate::device::register::Registry;
use crate::device::stats::Stats;

/// What the lanes and the handles share.
#[derive(Debug)]
pub(crate) struct DeviceCore {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) means: Means,
    pub(crate) kernel_blocks: u32,
    pub(crate) checksums: bool,
    pub(crate) stuck_after: Duration,
    pub(super) broken: Mutex<Option<DeviceError>>,
}

impl DeviceCore {
    /// Why the device is not to be used any more.
    pub(crate) fn broken(&self) -> Option<DeviceError> {
        self.broken.lock().clone()
    }

    /// The device broke: all later calls are refused at once. The first reason stays.
    pub(crate) fn fail(&self, error: DeviceError) {
        let text = format!("the device is broken and not used any more: {}", error.message);
        self.broken.lock().get_or_insert(DeviceError::new(DeviceErrorKind::Broken, text));
    }
}

impl Drop for DeviceCore {
    fn drop(&mut self) {
        self.registry.close(self.broken().is_some());
    }
}
