//! A device made of this process's memory and threads. Owns: the driver's calls on it, what a test wants to
//! go wrong. Must not know: plans, lanes, slots.
//!
//! It obeys CUDA's rules (one thread a stream, work in order, events between them), and it is stricter: work
//! on memory that is not the device's, freed memory, two streams that touch the same bytes without an order
//! between them, and a kernel's first launch beside other streams' work (a GPU's driver loads it then, and
//! others' launches wait) are faults, so that a test fails for what a GPU would forgive by luck.
//!
//! - `machine`: what its parts share; `options`, `control`: what it is like, what is to go wrong
//! - `memory`: what may be touched; `order`: what must come before what; `worker`: a stream's thread;
//!   `kernels`: their work

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread;

use crate::device::driver::{
    CopyRequest, DeviceAddress, DeviceError, DeviceErrorKind, DeviceMemory, Driver, Event, Kernel, Priority,
    Stream,
};
use crate::limits::HOST_STREAM_CALLS_MAX;

mod control;
mod kernels;
mod machine;
mod memory;
mod options;
mod order;
mod worker;

pub use control::HostControl;
use machine::{Call, EventState, Machine};
use memory::Kind;
pub use options::HostOptions;
use order::Touched;

/// The driver of a host device.
#[derive(Debug)]
pub(super) struct HostDriver {
    machine: Arc<Machine>,
}

impl HostDriver {
    pub(super) fn new(options: HostOptions) -> Self {
        Self { machine: Arc::new(Machine::new(options)) }
    }
}

impl Drop for HostDriver {
    fn drop(&mut self) {
        self.machine.control.close();
        self.machine.streams.lock().clear();
        let _events = self.machine.events.lock();
        self.machine.passed.notify_all();
    }
}

fn unsupported(what: &str) -> DeviceError {
    DeviceError::new(DeviceErrorKind::Unsupported, format!("this host device has no {what}"))
}

// SAFETY: what each call enqueues runs in order on the stream's one thread, with the addresses that it was
// given and no others; an event passes only when its record is reached there.
unsafe impl Driver for HostDriver {
    fn name(&self) -> String {
        "host memory".to_owned()
    }

    fn speed_key(&self) -> Option<String> {
        self.machine.options.speed_key.clone()
    }

    fn numa_node(&self) -> Option<u32> {
        self.machine.options.numa_node
    }

    fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        self.machine.check()?;
        Ok(self.machine.memory.lock().free())
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceAddress, DeviceError> {
        self.machine.check()?;
        let memory = self.machine.memory.lock().allocate(Kind::Device, bytes)?;
        Ok(memory.expose_provenance() as u64)
    }

    fn allocate_exported(&self, bytes: usize) -> Result<(DeviceAddress, OwnedFd), DeviceError> {
        self.machine.check()?;
        self.machine.control.may_export()?;
        self.machine.memory.lock().allocate_exported(bytes)
    }

    fn flush_nic_writes(&self) -> Result<(), DeviceError> {
        self.machine.check()?;
        self.machine.control.note_flush();
        Ok(())
    }

    unsafe fn free(&self, address: DeviceAddress) -> Result<(), DeviceError> {
        self.machine.check()?;
        self.machine.release(Kind::Device, address as usize)
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        self.machine.check()?;
        self.machine.memory.lock().allocate(Kind::Pinned, bytes)
    }

    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<(), DeviceError> {
        self.machine.check()?;
        self.machine.release(Kind::Pinned, memory.addr())
    }

    unsafe fn register(&self, base: *mut u8, bytes: usize) -> Result<(), DeviceError> {
        self.machine.check()?;
        if !self.machine.options.registers {
            return Err(unsupported("registration"));
        }
        thread::sleep(self.machine.options.register_pause);
        let span = self.machine.memory.lock().register(base, bytes)?;
        self.machine.control.note_registered(span);
        Ok(())
    }

    unsafe fn unregister(&self, base: *mut u8) -> Result<(), DeviceError> {
        self.machine.check()?;
        self.machine.release(Kind::Registered, base.addr())
    }

    fn new_stream(&self, priority: Priority) -> Result<Stream, DeviceError> {
        self.machine.check()?;
        let stream = self.machine.next.fetch_add(1, Ordering::Relaxed);
        self.machine.control.note_stream(stream, priority);
        let (sender, calls) = sync_channel(HOST_STREAM_CALLS_MAX);
        let machine = Arc::clone(&self.machine);
        let spawned = thread::Builder::new()
            .name("turnkv-stream".to_owned())
            .spawn(move || worker::run(&machine, stream, &calls));
        spawned.map_err(|error| DeviceError::new(DeviceErrorKind::NoMemory, error.to_string()))?;
        self.machine.streams.lock().insert(stream, sender);
        Ok(Stream(stream))
    }

    unsafe fn end_stream(&self, stream: Stream) {
        self.machine.streams.lock().remove(&stream.0);
        self.machine.last.lock().remove(&stream.0);
    }

    fn new_event(&self) -> Result<Event, DeviceError> {
        self.machine.check()?;
        let event = self.machine.next.fetch_add(1, Ordering::Relaxed);
        self.machine.events.lock().insert(event, EventState::default());
        Ok(Event(event))
    }

    unsafe fn end_event(&self, event: Event) {
        let mut events = self.machine.events.lock();
        match events.get_mut(&event.0) {
            Some(state) if state.passed < state.recorded => state.ended = true,
            _ => drop(events.remove(&event.0)),
        }
    }

    fn is_capturing(&self, stream: Stream) -> Result<bool, DeviceError> {
        self.machine.check()?;
        Ok(self.machine.control.is_captured(stream))
    }

    unsafe fn record(&self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        self.machine.count()?;
        self.machine.check_capture(stream)?;
        if !self.machine.is_known(stream) && !self.machine.options.strict {
            return Ok(()); // an engine without streams: what it did is done
        }
        let clock = self.machine.order.lock().clock(stream.0);
        let number = {
            let mut events = self.machine.events.lock();
            let state = events.entry(event.0).or_default();
            (state.recorded, state.clock) = (state.recorded + 1, clock);
            state.recorded
        };
        self.machine.send(stream, Call::Record(event.0, number))
    }

    unsafe fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.machine.count()?;
        self.machine.check_capture(stream)?;
        let known =
            self.machine.events.lock().get(&event.0).map(|state| (state.recorded, state.clock.clone()));
        let Some((number, clock)) = known else { return Ok(()) };
        if !self.machine.is_known(stream) && !self.machine.options.strict {
            return self.machine.wait_here(event.0, number);
        }
        self.machine.order.lock().join(stream.0, &clock);
        self.machine.send(stream, Call::Wait(event.0, number))
    }

    fn passed(&self, event: Event) -> Result<bool, DeviceError> {
        self.machine.check()?;
        let events = self.machine.events.lock();
        let Some(state) = events.get(&event.0) else { return Ok(true) };
        let passed = state.passed >= state.recorded;
        if passed {
            self.machine.order.lock().seen(&state.clock);
        }
        Ok(passed)
    }

    unsafe fn copy(&self, request: CopyRequest, stream: Stream) -> Result<(), DeviceError> {
        let touched = Touched::of_copies(&[request]);
        self.machine.last.lock().insert(stream.0, request);
        self.machine.enqueue(stream, touched, Call::Copies(vec![request]))
    }

    unsafe fn copy_batch(&self, requests: &[CopyRequest], stream: Stream) -> Result<(), DeviceError> {
        if !self.machine.options.batches {
            return Err(unsupported("batches"));
        }
        self.machine.enqueue(stream, Touched::of_copies(requests), Call::Copies(requests.to_vec()))
    }

    unsafe fn launch(&self, kernel: Kernel, stream: Stream) -> Result<(), DeviceError> {
        if !self.machine.options.kernels {
            return Err(unsupported("kernels"));
        }
        let function = kernels::function(&kernel);
        if self.machine.loaded.lock().insert(function)
            && let Some(busy) = self.machine.order.lock().busy_beside(stream.0)
        {
            self.machine.control.fault(format!("{function} is loaded while stream {busy} is at work"));
        }
        let last = self.machine.last.lock().get(&stream.0).copied();
        // SAFETY: the caller's promise: the kernel's tables are valid memory, as is where one comes from that
        // is on its way.
        let touched = unsafe { kernels::touched(&kernel, last) };
        self.machine.enqueue(stream, touched, Call::Kernel(kernel))
    }
}

#[cfg(test)]
mod tests;
