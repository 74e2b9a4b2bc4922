//! What a host device is like. Must not know: how it works.

use std::time::Duration;

use super::control::HostControl;
use crate::device::options::DeviceOptions;

/// What a host device is like.
#[derive(Clone, Debug)]
pub struct HostOptions {
    /// How it is used.
    pub device: DeviceOptions,
    /// Device memory that can be taken.
    pub memory_bytes: u64,
    /// Host memory that can be pinned, staging memory included.
    pub pinned_bytes: u64,
    /// What it says that its speed depends on; None: nothing is measured when it is opened.
    pub speed_key: Option<String>,
    /// The NUMA node that it says it is nearest to.
    pub numa_node: Option<u32>,
    /// Whether mapped memory can be registered.
    pub registers: bool,
    /// How long a registration takes.
    pub register_pause: Duration,
    /// Whether there is a call for many copies.
    pub batches: bool,
    /// Whether kernels run.
    pub kernels: bool,
    /// Every call of a stream takes up to so long, by chance.
    pub delay_max: Duration,
    /// Of that chance.
    pub seed: u64,
    /// Work on memory that nobody announced breaks the device, as it breaks a GPU. Else it counts as memory
    /// of the engine.
    pub strict: bool,
    /// Says what goes wrong while the device is in use.
    pub control: HostControl,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            device: DeviceOptions::default(),
            memory_bytes: 1 << 30,
            pinned_bytes: u64::MAX,
            speed_key: None,
            numa_node: None,
            registers: true,
            register_pause: Duration::ZERO,
            batches: true,
            kernels: true,
            delay_max: Duration::ZERO,
            seed: 0,
            strict: false,
            control: HostControl::default(),
        }
    }
}
