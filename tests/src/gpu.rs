//! A host device with pages in it, as an engine would hold them. Owns: putting bytes there and looking at them. Must not know:
//! servers.

use anyhow::{Context, Result, ensure};
use std::sync::Arc;
use turnkv_client::{Device, DeviceBuffer, DevicePlan, HostControl, HostOptions, Stream};
use turnkv_transfer::device::{DeviceOptions, Priority, SlotPage};
use turnkv_transfer::{HugePages, Region, RegionOptions};

/// A strict host device with room for pages of one size, and an engine's stream on it.
pub struct Gpu {
    /// The device.
    pub device: Device,
    /// What may go wrong on it.
    pub control: HostControl,
    /// A stream that is none of ours.
    pub engine: Stream,
    memory: Arc<DeviceBuffer>,
    window: Arc<Region>,
    page_bytes: usize,
}

impl Gpu {
    /// A device with room for `pages` pages.
    ///
    /// # Errors
    /// The options leave no room.
    pub fn new(options: HostOptions, pages: usize, page_bytes: usize) -> Result<Gpu> {
        let control = options.control.clone();
        Gpu::on(Device::host(HostOptions { strict: true, ..options })?, control, pages, page_bytes)
    }

    /// The same on the first GPU that CUDA's driver library has, where nothing can be made to go wrong.
    ///
    /// # Errors
    /// There is none.
    pub fn cuda(pages: usize, page_bytes: usize) -> Result<Gpu> {
        Gpu::on(Device::cuda(0, DeviceOptions::default())?, HostControl::default(), pages, page_bytes)
    }

    fn on(device: Device, control: HostControl, pages: usize, page_bytes: usize) -> Result<Gpu> {
        let engine = device.driver().new_stream(Priority::Low)?;
        let memory = device.allocate(pages * page_bytes)?;
        let window = RegionOptions {
            bytes: page_bytes,
            huge_pages: HugePages::Off,
            touch: false,
            lock: false,
            name: "turnkv-test".to_owned(),
        };
        let (window, _) = Region::create(&window)?;
        Ok(Gpu { device, control, engine, memory, window, page_bytes })
    }

    /// A page in pieces of `piece` bytes, which lie apart from each other: piece `i` of all pages, then piece `i + 1`.
    ///
    /// # Errors
    /// The device has no such page.
    pub fn page(&self, page: usize, piece: usize) -> Result<DevicePlan> {
        let pages = self.memory.len() / self.page_bytes;
        let at = |number: usize| ((number * pages + page) * piece, piece);
        let pieces: Vec<_> = (0..self.page_bytes / piece).map(at).collect();
        Ok(self.memory.plan(&pieces)?)
    }

    /// Pages from `first` on.
    ///
    /// # Errors
    /// As [`Gpu::page`].
    pub fn pages(&self, first: usize, count: usize, piece: usize) -> Result<Vec<DevicePlan>> {
        (first..first + count).map(|page| self.page(page, piece)).collect()
    }

    /// Writes a page's bytes.
    ///
    /// # Errors
    /// The device is broken.
    pub async fn put(&self, plan: &DevicePlan, bytes: &[u8]) -> Result<()> {
        let slot = self.window.slot(0, self.page_bytes).context("a slot")?;
        slot.claim()?.fill(bytes);
        let pages = vec![SlotPage { slot: slot.into(), plan: plan.clone() }];
        self.device.drain(pages, None, 0, false)?.landed().await?;
        Ok(())
    }

    /// Reads a page's bytes.
    ///
    /// # Errors
    /// The device is broken.
    pub async fn get(&self, plan: &DevicePlan) -> Result<Vec<u8>> {
        let slot = self.window.slot(0, self.page_bytes).context("a slot")?;
        let pages = vec![SlotPage { slot: slot.clone().into(), plan: plan.clone() }];
        self.device.fill(pages, None)?.landed().await?;
        Ok(slot.page().to_vec())
    }

    /// Checks that nothing was done that a real device would punish.
    ///
    /// # Errors
    /// What was.
    pub fn check(&self) -> Result<()> {
        let faults = self.control.faults();
        ensure!(faults.is_empty(), "{faults:?}");
        Ok(())
    }
}
