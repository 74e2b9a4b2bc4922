//! A GPU through CUDA's driver library, loaded at run time. Owns: the driver's side of the seam for one device. Must not know:
//! plans, slots, pages of a pool.
//!
//! - `api`: the library's functions, found by name
//! - `context`: the device's primary context
//! - `error`: what the library's numbers mean
//! - `export`: device memory for NICs
//! - `module`: our kernels
//! - `registered`: host memory that several devices of this process share

mod api;
mod context;
mod error;
mod export;
mod module;
mod registered;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;

use cudarc::driver::sys;
use sys::CUdevice_attribute as Attribute;

use self::api::{Api, CopyBatch};
use self::context::Context;
use self::error::NOT_READY;
use self::export::Exports;
use self::module::Module;
use self::registered::OF_PROCESS;
use crate::device::driver::{
    CopyRequest, DeviceAddress, DeviceError, DeviceErrorKind, DeviceMemory, Driver, Event, Kernel, Priority,
    Stream,
};
use crate::limits::{COPY_BATCH_MAX, DEVICE_NAME_BYTES, PCI_ID_BYTES};

/// One device of this machine.
pub struct CudaDriver {
    /// Dropped by hand before `context`: it is unloaded in it.
    module: Module,
    context: Context,
    name: String,
    numa_node: Option<u32>,
    /// Numbers of the least and the most urgent stream: greater is less urgent.
    priorities: (c_int, c_int),
    /// Whether registered memory has the same address on both sides; else it cannot be registered for us.
    same_address: bool,
    /// Major and minor.
    compute: (u32, u32),
    exports: Exports,
}

impl CudaDriver {
    /// How many devices there are: 0 without a driver that works.
    #[must_use]
    pub fn count() -> u32 {
        let Ok(api) = Api::of_machine() else { return 0 };
        let mut count = 0;
        // SAFETY: `count` has room for a number.
        let code = unsafe { (api.device_count)(&raw mut count) };
        if code == 0 { u32::try_from(count).unwrap_or(0) } else { 0 }
    }

    /// Opens a device: its primary context, which an engine in this process uses too.
    ///
    /// # Errors
    /// `Absent`: no driver, one that is too old, or no such device. `Unsupported`: a device without one address space for
    /// itself and the host.
    pub fn open(ordinal: u32) -> Result<CudaDriver, DeviceError> {
        Self::open_through(Api::of_machine()?, ordinal)
    }

    fn open_through(api: &'static Api, ordinal: u32) -> Result<CudaDriver, DeviceError> {
        let mut device = 0;
        // SAFETY: `device` has room for a number.
        let code =
            unsafe { (api.device_get)(&raw mut device, c_int::try_from(ordinal).unwrap_or(c_int::MAX)) };
        api.check(code, &format!("opening CUDA device {ordinal}"))?;
        if api.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)? == 0 {
            let message = format!("CUDA device {ordinal} has no unified addressing: it cannot be used");
            return Err(DeviceError::new(DeviceErrorKind::Unsupported, message));
        }
        let context = Context::retain(api, device)?;
        let compute = compute_capability(api, device)?;
        let same =
            api.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)?;
        let mappable = api.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)?;
        Ok(CudaDriver {
            module: Module::new(),
            name: describe(api, device, ordinal, compute)?,
            numa_node: numa_node(api, device),
            priorities: stream_priorities(&context)?,
            same_address: same != 0 && mappable != 0,
            compute,
            exports: Exports::of(api, device)?,
            context,
        })
    }

    /// Major and minor compute capability.
    #[must_use]
    pub fn compute_capability(&self) -> (u32, u32) {
        self.compute
    }

    /// Whether copies can go in batches: a driver of CUDA 12.8 or later.
    #[must_use]
    pub fn has_batches(&self) -> bool {
        self.api().copy_batch.is_some()
    }

    fn api(&self) -> &'static Api {
        self.context.api
    }

    /// Runs one call of the library in the device's context.
    fn call(&self, tried: &str, call: impl FnOnce(&Api) -> u32) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        self.api().check(call(self.api()), tried)
    }

    /// One chunk of a batch. The caller is in the context.
    ///
    /// # Safety
    /// As [`Driver::copy_batch`].
    unsafe fn enqueue_batch(
        &self,
        batch: CopyBatch,
        requests: &[CopyRequest],
        stream: Stream,
    ) -> Result<(), DeviceError> {
        let mut targets: Vec<u64> = requests.iter().map(|request| request.target).collect();
        let mut sources: Vec<u64> = requests.iter().map(|request| request.source).collect();
        let mut sizes: Vec<usize> = requests.iter().map(|request| request.bytes).collect();
        let nowhere =
            sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, id: 0 };
        let mut attributes = sys::CUmemcpyAttributes {
            srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            srcLocHint: nowhere,
            dstLocHint: nowhere,
            flags: 0,
        };
        let (mut attribute_of, mut failed) = (0_usize, usize::MAX);
        // SAFETY: three arrays of as many as are told, one attribute that holds from copy 0 on; the driver copies them all
        // before it returns. The caller vouches for the ranges.
        let code = unsafe {
            batch(
                targets.as_mut_ptr(),
                sources.as_mut_ptr(),
                sizes.as_mut_ptr(),
                requests.len(),
                &raw mut attributes,
                &raw mut attribute_of,
                1,
                &raw mut failed,
                handle(stream),
            )
        };
        self.api().check(code, "enqueueing a batch of copies")
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // Out of the context nothing can be unloaded; the kernels then go with it.
        if let Ok(_entered) = self.context.enter() {
            self.module.unload(self.context.api);
        }
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CudaDriver").field("name", &self.name).finish_non_exhaustive()
    }
}

// SAFETY: every method hands exactly what it was given to the function of the driver library that does what the method says,
// and CUDA's streams and events keep the order that the seam asks for.
unsafe impl Driver for CudaDriver {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn speed_key(&self) -> Option<String> {
        Some(self.name.clone())
    }

    fn numa_node(&self) -> Option<u32> {
        self.numa_node
    }

    fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both have room for a number.
        self.call("asking for the free memory", |api| unsafe {
            (api.memory_info)(&raw mut free, &raw mut total)
        })?;
        Ok(DeviceMemory { free_bytes: free as u64, total_bytes: total as u64 })
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceAddress, DeviceError> {
        let mut address = 0;
        // SAFETY: `address` has room for an address.
        self.call(&format!("allocating {bytes} bytes of device memory"), |api| unsafe {
            (api.memory_take)(&raw mut address, bytes)
        })?;
        Ok(address)
    }

    fn allocate_exported(&self, bytes: usize) -> Result<(DeviceAddress, OwnedFd), DeviceError> {
        self.exports.check()?;
        let address = self.allocate(bytes)?;
        let exported =
            self.context.enter().and_then(|_entered| self.exports.export(self.api(), address, bytes));
        match exported {
            Ok(dma_buf) => Ok((address, dma_buf)),
            Err(error) => {
                // SAFETY: just allocated, and nobody knows of it. A driver that does not take it back is broken, and says so
                // the next time.
                unsafe { self.free(address) }.ok();
                Err(error)
            }
        }
    }

    fn flush_nic_writes(&self) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        self.exports.flush(self.api())
    }

    unsafe fn free(&self, address: DeviceAddress) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches that it came from `allocate` and is out of use.
        self.call("freeing device memory", |api| unsafe { (api.memory_give)(address) })
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        // Never write-combined: the CPU reads it.
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        let mut memory = std::ptr::null_mut();
        // SAFETY: `memory` has room for an address.
        self.call(&format!("allocating {bytes} bytes of pinned memory"), |api| unsafe {
            (api.pinned_take)(&raw mut memory, bytes, flags)
        })?;
        Ok(memory.cast())
    }

    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches that it came from `allocate_pinned` and is out of use.
        self.call("freeing pinned memory", |api| unsafe { (api.pinned_give)(memory.cast()) })
    }

    unsafe fn register(&self, base: *mut u8, bytes: usize) -> Result<(), DeviceError> {
        if !self.same_address {
            let message =
                "this device gives registered memory an address of its own: copies of it are staged";
            return Err(DeviceError::new(DeviceErrorKind::Unsupported, message));
        }
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        OF_PROCESS.add(base.addr(), bytes, || {
            // SAFETY: the caller vouches for the mapping.
            self.call(&format!("registering {bytes} bytes of host memory"), |api| unsafe {
                (api.host_register)(base.cast(), bytes, flags)
            })
        })
    }

    unsafe fn unregister(&self, base: *mut u8) -> Result<(), DeviceError> {
        OF_PROCESS.remove(base.addr(), || {
            // SAFETY: the caller vouches that it is registered, and every user that it is out of use.
            self.call("ending a registration", |api| unsafe { (api.host_unregister)(base.cast()) })
        })
    }

    fn new_stream(&self, priority: Priority) -> Result<Stream, DeviceError> {
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        let number = match priority {
            Priority::Low => self.priorities.0,
            Priority::High => self.priorities.1,
        };
        let mut stream = std::ptr::null_mut();
        // SAFETY: `stream` has room for a handle.
        self.call("making a stream", |api| unsafe { (api.stream_new)(&raw mut stream, flags, number) })?;
        Ok(Stream(stream.expose_provenance() as u64))
    }

    unsafe fn end_stream(&self, stream: Stream) {
        // A broken context takes its streams along: there is nothing to do about a failure.
        // SAFETY: the caller vouches that nobody uses the stream again.
        self.call("ending a stream", |api| unsafe { (api.stream_end)(handle(stream)) }).ok();
    }

    fn new_event(&self) -> Result<Event, DeviceError> {
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        let mut event = std::ptr::null_mut();
        // SAFETY: `event` has room for a handle.
        self.call("making an event", |api| unsafe { (api.event_new)(&raw mut event, flags) })?;
        Ok(Event(event.expose_provenance() as u64))
    }

    unsafe fn end_event(&self, event: Event) {
        // As for streams.
        // SAFETY: the caller vouches that nobody uses the event again.
        self.call("ending an event", |api| unsafe { (api.event_end)(event_handle(event)) }).ok();
    }

    fn is_capturing(&self, stream: Stream) -> Result<bool, DeviceError> {
        let mut status = 0;
        // SAFETY: `status` has room for a number; streams are made by this driver, or vouched for by who named them.
        self.call("asking whether a stream is being captured", |api| unsafe {
            (api.stream_capturing)(handle(stream), &raw mut status)
        })?;
        Ok(status != 0) // 1: it is; 2: it is, and went wrong
    }

    unsafe fn record(&self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for both.
        self.call("recording an event", |api| unsafe {
            (api.event_record)(event_handle(event), handle(stream))
        })
    }

    unsafe fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for both.
        self.call("making a stream wait", |api| unsafe {
            (api.stream_wait)(handle(stream), event_handle(event), 0)
        })
    }

    fn passed(&self, event: Event) -> Result<bool, DeviceError> {
        let broken = |mut failed: DeviceError| {
            failed.kind = DeviceErrorKind::Broken; // whatever it is: nobody knows what the device still does
            failed
        };
        let _entered = self.context.enter().map_err(broken)?;
        // SAFETY: events are made by this driver; one that is not is an error of the library, not undefined behaviour.
        let code = unsafe { (self.api().event_query)(event_handle(event)) };
        if code == NOT_READY {
            return Ok(false);
        }
        self.api().check(code, "asking for an event").map(|()| true).map_err(broken)
    }

    unsafe fn copy(&self, request: CopyRequest, stream: Stream) -> Result<(), DeviceError> {
        // SAFETY: the caller vouches for the ranges and the stream.
        self.call("enqueueing a copy", |api| unsafe {
            (api.copy)(request.target, request.source, request.bytes, handle(stream))
        })
    }

    unsafe fn copy_batch(&self, requests: &[CopyRequest], stream: Stream) -> Result<(), DeviceError> {
        let Some(batch) = self.api().copy_batch else {
            let message = "copies in batches need a driver of CUDA 12.8 (570) or later";
            return Err(DeviceError::new(DeviceErrorKind::Unsupported, message));
        };
        if stream == Stream(0) {
            let message = "copies in batches cannot go to the legacy default stream";
            return Err(DeviceError::new(DeviceErrorKind::Unsupported, message));
        }
        let _entered = self.context.enter()?;
        for (at, chunk) in requests.chunks(COPY_BATCH_MAX).enumerate() {
            // SAFETY: the caller vouches for the ranges and the stream.
            unsafe { self.enqueue_batch(batch, chunk, stream) }.map_err(|mut failed| {
                if at > 0 && failed.kind == DeviceErrorKind::Unsupported {
                    failed.kind = DeviceErrorKind::Invalid; // some are enqueued: not the answer that says none is
                }
                failed
            })?;
        }
        Ok(())
    }

    unsafe fn launch(&self, kernel: Kernel, stream: Stream) -> Result<(), DeviceError> {
        let _entered = self.context.enter()?;
        // SAFETY: we are in the context; the caller vouches for the tables and what they name.
        unsafe { self.module.launch(self.api(), kernel, handle(stream)) }
    }
}

fn handle(stream: Stream) -> sys::CUstream {
    std::ptr::with_exposed_provenance_mut(stream.0 as usize)
}

fn event_handle(event: Event) -> sys::CUevent {
    std::ptr::with_exposed_provenance_mut(event.0 as usize)
}

fn compute_capability(api: &Api, device: sys::CUdevice) -> Result<(u32, u32), DeviceError> {
    let major = api.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = api.attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok((u32::try_from(major).unwrap_or(0), u32::try_from(minor).unwrap_or(0)))
}

fn describe(
    api: &Api,
    device: sys::CUdevice,
    ordinal: u32,
    compute: (u32, u32),
) -> Result<String, DeviceError> {
    let (mut name, mut version) = ([0_u8; DEVICE_NAME_BYTES], 0);
    // SAFETY: the name has room for as many bytes as are told, the last of which is zero.
    let code = unsafe { (api.device_name)(name.as_mut_ptr().cast(), DEVICE_NAME_BYTES as c_int, device) };
    api.check(code, "asking for the device's name")?;
    // SAFETY: `version` has room for a number.
    let code = unsafe { (api.driver_version)(&raw mut version) };
    api.check(code, "asking for the driver's version")?;
    let name = text(&name);
    let (major, minor) = compute;
    let (cuda, cuda_minor) = (version / 1000, version % 1000 / 10);
    Ok(format!("{name} (cuda {ordinal}, compute {major}.{minor}, driver of CUDA {cuda}.{cuda_minor})"))
}

fn stream_priorities(context: &Context) -> Result<(c_int, c_int), DeviceError> {
    let _entered = context.enter()?;
    let (mut least, mut greatest) = (0, 0);
    // SAFETY: both have room for a number.
    let code = unsafe { (context.api.stream_priorities)(&raw mut least, &raw mut greatest) };
    context.api.check(code, "asking for the priorities of streams")?;
    Ok((least, greatest))
}

/// What Linux says of the device's PCI slot; None on a machine of one node, or where the slot is not to be seen.
fn numa_node(api: &Api, device: sys::CUdevice) -> Option<u32> {
    let mut bus = [0_u8; PCI_ID_BYTES];
    // SAFETY: the buffer has room for as many bytes as are told, the last of which is zero.
    let code = unsafe { (api.device_bus)(bus.as_mut_ptr().cast::<c_char>(), PCI_ID_BYTES as c_int, device) };
    if code != 0 {
        return None;
    }
    numa_node_of(Path::new("/sys/bus/pci/devices"), &text(&bus))
}

fn numa_node_of(devices: &Path, bus: &str) -> Option<u32> {
    let node = std::fs::read_to_string(devices.join(bus.to_lowercase()).join("numa_node")).ok()?;
    node.trim().parse().ok() // -1: not known
}

fn text(bytes: &[u8]) -> String {
    CStr::from_bytes_until_nul(bytes).map(CStr::to_string_lossy).unwrap_or_default().into_owned()
}

#[cfg(test)]
mod tests;

const _: () = assert!(size_of::<*mut c_void>() == size_of::<u64>(), "handles and addresses have 64 bits");
