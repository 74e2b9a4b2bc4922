//! A device as its user holds it. Owns: opening it, its two lanes, refusing when it is broken. Must not know:
//! pages' names, leases, who asks.

use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;

use crate::device::buffer::{DeviceBuffer, DeviceSlot, ExportedBuffer};
use crate::device::choose::{CopyChoice, Means, Speeds};
use crate::device::core::DeviceCore;
use crate::device::cuda::CudaDriver;
use crate::device::driver::{DeviceError, DeviceErrorKind, DeviceMemory, Driver, Priority, Stream};
use crate::device::flight::{Flight, Mark, OwnedEvent};
use crate::device::host::{HostDriver, HostOptions};
use crate::device::lane::{Job, JobPage, Lane, Other, Queue};
use crate::device::opening::{load_kernels, speeds};
use crate::device::options::DeviceOptions;
use crate::device::plan::DevicePlan;
use crate::device::register::Registry;
use crate::device::stats::{DeviceStats, Stats};
use crate::limits::TABLE_BYTES;
use crate::page::Claimed;
use crate::slot::Slot;

/// One page of a copy between device memory and a slot.
#[derive(Clone, Debug)]
pub struct SlotPage {
    /// The slot; the caller holds a lease on it until the flight is done.
    pub slot: PageSlot,
    /// The page in device memory.
    pub plan: DevicePlan,
}

/// Where a slot is.
#[derive(Clone, Debug)]
pub enum PageSlot {
    /// In memory of the host.
    Host(Slot),
    /// In memory of the device, which NICs read and write.
    Device(DeviceSlot),
}

impl From<Slot> for PageSlot {
    fn from(slot: Slot) -> Self {
        Self::Host(slot)
    }
}

impl PageSlot {
    fn bytes(&self) -> usize {
        match self {
            Self::Host(slot) => slot.len(),
            Self::Device(slot) => slot.len(),
        }
    }
}

/// A device. Clones are the same device; its threads end, and its memory is given back, when the last one is
/// dropped and nothing is under way.
#[derive(Clone, Debug)]
pub struct Device {
    inner: Arc<Inner>,
}

/// Names a device without keeping it.
#[derive(Clone, Debug)]
pub struct WeakDevice(Weak<Inner>);

impl WeakDevice {
    /// Whether it is this device.
    #[must_use]
    pub fn is(&self, device: &Device) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&device.inner))
    }

    /// Whether nobody has it any more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

#[derive(Debug)]
struct Inner {
    core: Arc<DeviceCore>,
    offloads: Arc<Queue>,
    reloads: Arc<Queue>,
}

impl Device {
    /// The GPU of this number, in the primary context that the engine uses too.
    ///
    /// # Errors
    /// `Absent`: no driver, or no such GPU. Else as [`Device::with_driver`].
    pub fn cuda(ordinal: u32, options: DeviceOptions) -> Result<Self, DeviceError> {
        Self::with_driver(Arc::new(CudaDriver::open(ordinal)?), options)
    }

    /// How many GPUs this process sees; 0 without a driver.
    #[must_use]
    pub fn cuda_count() -> u32 {
        CudaDriver::count()
    }

    /// Memory and threads of this process behave as a device: for tests, and to try without a GPU.
    ///
    /// # Errors
    /// The options leave no room for what a device needs.
    pub fn host(options: HostOptions) -> Result<Self, DeviceError> {
        let device = options.device.clone();
        Self::with_driver(Arc::new(HostDriver::new(options)), device)
    }

    /// A device on any driver. Takes all that copies need, or nothing, and launches each kernel once: later
    /// copies neither load nor take anything, so that an engine's launches never wait for that. Open it
    /// before the engine works on the device.
    ///
    /// # Errors
    /// Options out of bounds; not enough device or pinned memory; the device is broken.
    pub fn with_driver(driver: Arc<dyn Driver>, options: DeviceOptions) -> Result<Self, DeviceError> {
        options.check()?;
        driver.memory()?;
        let by_kernel = matches!(options.copy, CopyChoice::Auto | CopyChoice::Kernel);
        let kernels = (by_kernel || options.checksum) && load_kernels(&driver)?;
        let stats = Arc::<Stats>::default();
        let calibrated = kernels && options.copy == CopyChoice::Auto;
        let speeds = if calibrated { speeds(&driver, options.kernel_blocks)? } else { Speeds::default() };
        let chunk_bytes = options.chunk_bytes;
        let means = Means { choice: options.copy, batch: true, kernels, chunk_bytes, speeds };
        // Last of what may fail before there is somebody to end its thread.
        let registry = Registry::start(Arc::clone(&driver), Arc::clone(&stats), options.pinned_bytes_max)?;
        let core = Arc::new(DeviceCore {
            driver,
            registry,
            stats,
            means,
            kernel_blocks: options.kernel_blocks,
            checksums: options.checksum,
            stuck_after: options.stuck_after,
            broken: Mutex::default(),
        });
        let lane = |kind| Lane::new(Arc::clone(&core), kind, TABLE_BYTES, options.staging_bytes / 2);
        let (low, offloads) = lane((Priority::Low, true))?;
        let (high, reloads) = lane((Priority::High, false))?;
        let inner = Arc::new(Inner { core, offloads, reloads });
        start(low, "turnkv-offload")?;
        start(high, "turnkv-reload")?;
        Ok(Self { inner })
    }

    /// Its driver.
    #[must_use]
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.inner.core.driver
    }

    /// How much of its memory is free.
    ///
    /// # Errors
    /// The device is broken.
    pub fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        self.check()?;
        self.inner.core.driver.memory()
    }

    /// What its copies came to.
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
        self.inner.core.stats.read()
    }

    /// Whether it may be used.
    ///
    /// # Errors
    /// It broke: why.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.inner.core.broken().map_or(Ok(()), Err)
    }

    /// Takes device memory, after a look at whether there is enough.
    ///
    /// # Errors
    /// There is not: how much is free. Nothing was taken.
    pub fn allocate(&self, bytes: usize) -> Result<Arc<DeviceBuffer>, DeviceError> {
        self.check_room(bytes)?;
        DeviceBuffer::new(&self.inner.core, bytes)
    }

    /// Takes at least so much device memory that NICs can be told of. May wait for the device's driver.
    ///
    /// # Errors
    /// `NoMemory`, `Unsupported`: why, and what to do; memory of the host does instead. The device is broken.
    pub fn export(&self, bytes: usize) -> Result<Arc<ExportedBuffer>, DeviceError> {
        self.check_room(bytes)?;
        let core = &self.inner.core;
        if !(core.checksums && core.means.kernels) {
            let text = "the device takes no checksums, and no CPU can look at pages in its memory: leave `checksum` on";
            return Err(DeviceError::new(DeviceErrorKind::Unsupported, text));
        }
        ExportedBuffer::new(core, bytes)
    }

    /// Names it without keeping it.
    #[must_use]
    pub fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.inner))
    }

    fn check_room(&self, bytes: usize) -> Result<(), DeviceError> {
        let memory = self.memory()?;
        if memory.free_bytes < bytes as u64 {
            let text = format!(
                "{bytes} bytes of device memory are wanted, {} of {} are free: ask for less, or leave the engine less \
                 (vLLM: gpu_memory_utilization, SGLang: mem_fraction_static)",
                memory.free_bytes, memory.total_bytes
            );
            return Err(DeviceError::new(DeviceErrorKind::NoMemory, text));
        }
        Ok(())
    }

    /// Marks where a stream's work is now. Never waits.
    ///
    /// # Errors
    /// `Invalid`: the stream is being captured into a graph. The device is broken.
    pub fn mark(&self, stream: Stream) -> Result<Mark, DeviceError> {
        self.check()?;
        let core = &self.inner.core;
        let event = OwnedEvent::new(&core.driver).and_then(|event| {
            event.check_capture(stream)?;
            event.record(stream).map(|()| event)
        });
        let event = event.inspect_err(|error| {
            if error.kind == DeviceErrorKind::Broken {
                core.fail(error.clone());
            }
        })?;
        Ok(Mark(Arc::new(event)))
    }

    /// A flight that is done when the mark has passed: to wait for an engine without holding up anyone else's
    /// copies.
    ///
    /// # Errors
    /// Too many wait already; the device is broken.
    pub fn passed(&self, mark: &Mark) -> Result<Flight, DeviceError> {
        self.check()?;
        let flight = Flight { shared: Arc::default() };
        self.inner.offloads.watch(mark.clone(), Arc::clone(&flight.shared))?;
        Ok(flight)
    }

    /// Begins to fill slots from device memory, with zeros where a page has gaps, and to take the pages'
    /// checksums.
    ///
    /// # Errors
    /// A page does not fit its slot; somebody else in this process writes a slot; too many copies wait; the
    /// device is broken. Nothing was begun.
    pub fn fill(&self, pages: Vec<SlotPage>, after: Option<Mark>) -> Result<Flight, DeviceError> {
        let pages = of_slots(pages, |slot| match slot {
            PageSlot::Host(slot) => Ok(Other::Filling(Arc::new(slot.claim()?))),
            PageSlot::Device(slot) => Ok(Other::FillingLent(slot)),
        })?;
        self.submit(&self.inner.offloads, pages, Shape { layers: 0, checksums: true }, after)
    }

    /// Begins to fill device memory from slots: in `layers` parts one after another, each with an event (0:
    /// no events).
    ///
    /// # Errors
    /// As [`Device::fill`]; or the pages cannot be divided into so many layers.
    pub fn drain(
        &self,
        pages: Vec<SlotPage>,
        after: Option<Mark>,
        layers: usize,
        checksums: bool,
    ) -> Result<Flight, DeviceError> {
        let pages = of_slots(pages, |slot| match slot {
            PageSlot::Host(slot) => Ok(Other::Slot(slot.page())),
            PageSlot::Device(slot) => Ok(Other::Lent(slot)),
        })?;
        self.submit(&self.inner.reloads, pages, Shape { layers, checksums }, after)
    }

    /// Begins to copy pages within the device, each from the first plan to the second.
    ///
    /// # Errors
    /// As [`Device::fill`], for plans of different sizes.
    pub fn copy(
        &self,
        pages: Vec<(DevicePlan, DevicePlan)>,
        after: Option<Mark>,
        layers: usize,
    ) -> Result<Flight, DeviceError> {
        let fits = |(source, plan): (DevicePlan, DevicePlan)| {
            if source.slot_bytes() != plan.slot_bytes() {
                return Err(misfit(plan.slot_bytes(), source.slot_bytes()));
            }
            Ok(JobPage { plan, other: Other::Source(source) })
        };
        let pages = pages.into_iter().map(fits).collect::<Result<_, _>>()?;
        self.submit(&self.inner.reloads, pages, Shape { layers, checksums: false }, after)
    }

    fn submit(
        &self,
        lane: &Queue,
        pages: Vec<JobPage>,
        shape: Shape,
        after: Option<Mark>,
    ) -> Result<Flight, DeviceError> {
        self.check()?;
        for page in &pages {
            let divided = page.plan.layers(shape.layers.max(1));
            divided.map_err(|error| DeviceError::new(DeviceErrorKind::Invalid, error.to_string()))?;
        }
        let flight = Flight { shared: Arc::default() };
        let Shape { layers, checksums } = shape;
        let job = Job::new(pages, after, layers, checksums, Arc::clone(&flight.shared));
        self.inner.core.stats.flights.add(1);
        lane.submit(job).inspect_err(|_| self.inner.core.stats.flights.sub(1))?;
        Ok(flight)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.offloads.close();
        self.reloads.close();
    }
}

/// What a job is like.
struct Shape {
    layers: usize,
    checksums: bool,
}

fn of_slots(
    pages: Vec<SlotPage>,
    access: impl Fn(PageSlot) -> Result<Other, Claimed>,
) -> Result<Vec<JobPage>, DeviceError> {
    let fits = |SlotPage { slot, plan }: SlotPage| {
        if plan.slot_bytes() != slot.bytes() {
            return Err(misfit(plan.slot_bytes(), slot.bytes()));
        }
        let other = access(slot)
            .map_err(|claimed| DeviceError::new(DeviceErrorKind::Invalid, claimed.to_string()))?;
        Ok(JobPage { plan, other })
    };
    pages.into_iter().map(fits).collect()
}

fn misfit(plan: usize, other: usize) -> DeviceError {
    let text = format!("a plan for pages of {plan} bytes does not fit one of {other}");
    DeviceError::new(DeviceErrorKind::Invalid, text)
}

fn start(lane: Lane, name: &str) -> Result<(), DeviceError> {
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || lane.run());
    spawned.map(drop).map_err(|error| {
        DeviceError::new(DeviceErrorKind::NoMemory, format!("no thread for a device's copies: {error}"))
    })
}

#[cfg(test)]
mod tests;
