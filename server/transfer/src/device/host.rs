//! A device made of this process's memory and threads. Owns: the driver's calls on it, what a test wants to go wrong. Must not
//! know: plans, lanes, slots.
//!
//! It obeys CUDA's rules (one thread a stream, work in order, events between them), and it is stricter: work on memory that is
//! not the device's, freed memory, two streams that touch the same bytes without an order between them, and a kernel's first
//! launch beside other streams' work (a GPU's driver loads it then, and others' launches wait) are faults, so that a test fails
//! for what a GPU would forgive by luck.
//!
//! - `memory`: what may be touched; `order`: what must come before what; `worker`: a stream's thread; `kernels`: their work

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::device::driver::{
    CopyRequest, DeviceAddress, DeviceError, DeviceErrorKind, DeviceMemory, Driver, Event, Kernel, Priority,
    Stream,
};
use crate::device::handle::DeviceOptions;
use crate::limits::HOST_STREAM_CALLS_MAX;

mod control;
mod kernels;
mod memory;
mod order;
mod worker;

pub use control::HostControl;
use memory::{Kind, Memory};
use order::{Clock, Order, Touched};
use worker::Call;

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
    /// Work on memory that nobody announced breaks the device, as it breaks a GPU. Else it counts as memory of the engine.
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

/// The driver of a host device.
#[derive(Debug)]
pub(super) struct HostDriver {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: HostOptions,
    control: HostControl,
    memory: Mutex<Memory>,
    events: Mutex<HashMap<u64, EventState>>,
    /// An event passed, or everything ends.
    passed: Condvar,
    streams: Mutex<HashMap<u64, SyncSender<Call>>>,
    order: Mutex<Order>,
    /// Functions that were launched once.
    loaded: Mutex<HashSet<&'static str>>,
    /// The last copy that each stream was given: a kernel's table may be on its way in it.
    last: Mutex<HashMap<u64, CopyRequest>>,
    next: AtomicU64,
}

#[derive(Debug, Default)]
struct EventState {
    recorded: u64,
    passed: u64,
    /// Nobody records it any more; streams that wait for it go on doing so.
    ended: bool,
    /// What was before the last record.
    clock: Clock,
}

impl HostDriver {
    pub(super) fn new(options: HostOptions) -> Self {
        let control = options.control.clone();
        let memory = Mutex::new(Memory::new(options.memory_bytes, options.pinned_bytes));
        let shared = Shared {
            options,
            control,
            memory,
            events: Mutex::default(),
            passed: Condvar::new(),
            streams: Mutex::default(),
            order: Mutex::default(),
            loaded: Mutex::default(),
            last: Mutex::default(),
            next: AtomicU64::new(1),
        };
        Self { shared: Arc::new(shared) }
    }
}

impl Drop for HostDriver {
    fn drop(&mut self) {
        self.shared.control.close();
        self.shared.streams.lock().clear();
        let _events = self.shared.events.lock();
        self.shared.passed.notify_all();
    }
}

impl Shared {
    fn check(&self) -> Result<(), DeviceError> {
        self.control.broken().map_or(Ok(()), Err)
    }

    /// An event of ours in a stream that is captured is part of the graph from then on: whoever asks for it breaks the device.
    fn check_capture(&self, stream: Stream) -> Result<(), DeviceError> {
        if !self.control.is_captured(stream) {
            return Ok(());
        }
        let text = format!("{stream:?} is captured into a graph, and ours with it");
        self.control.fault(text.clone());
        self.control.break_device(&text);
        Err(broken(&text))
    }

    /// One more call that a test may want to fail.
    fn count(&self) -> Result<(), DeviceError> {
        self.check()?;
        self.control.count()
    }

    /// Checks work before it is enqueued: its memory, its order.
    fn enqueue(&self, stream: Stream, touched: Touched, call: Call) -> Result<(), DeviceError> {
        self.count()?;
        let spanning = touched.ranges().find(|range| self.memory.lock().leaves_a_registration(range));
        if let Some(range) = spanning {
            let text = format!("invalid value: {range:?} is not in one registration");
            self.control.fault(text.clone());
            return Err(DeviceError::new(DeviceErrorKind::Invalid, text));
        }
        let unknown = {
            let (memory, adopted) = (self.memory.lock(), self.control.adopted());
            touched.ranges().find(|range| {
                memory.find(range).is_none() && !adopted.iter().any(|known| range.inside(known))
            })
        };
        if let Some(range) = unknown.filter(|_| self.options.strict) {
            let text = format!("illegal address: {range:?} is neither the device's nor pinned");
            self.control.fault(text.clone());
            self.control.break_device(&text);
            return Err(DeviceError::new(DeviceErrorKind::Broken, text));
        }
        if let Some(conflict) = self.order.lock().begin(stream.0, touched) {
            self.control.fault(conflict);
        }
        self.send(stream, call)
    }

    fn send(&self, stream: Stream, call: Call) -> Result<(), DeviceError> {
        let sender = self.streams.lock().get(&stream.0).cloned();
        match sender {
            Some(sender) => sender.send(call).map_err(|_| broken("the stream's thread is gone")),
            None => Err(unknown_stream(stream)),
        }
    }

    fn is_known(&self, stream: Stream) -> bool {
        self.streams.lock().contains_key(&stream.0)
    }
}

fn broken(text: &str) -> DeviceError {
    DeviceError::new(DeviceErrorKind::Broken, text)
}

fn unknown_stream(stream: Stream) -> DeviceError {
    DeviceError::new(DeviceErrorKind::Invalid, format!("{stream:?} is not a stream of this device"))
}

fn unsupported(what: &str) -> DeviceError {
    DeviceError::new(DeviceErrorKind::Unsupported, format!("this host device has no {what}"))
}

// SAFETY: what each call enqueues runs in order on the stream's one thread, with the addresses that it was given and no
// others; an event passes only when its record is reached there.
unsafe impl Driver for HostDriver {
    fn name(&self) -> String {
        "host memory".to_owned()
    }

    fn speed_key(&self) -> Option<String> {
        self.shared.options.speed_key.clone()
    }

    fn numa_node(&self) -> Option<u32> {
        self.shared.options.numa_node
    }

    fn memory(&self) -> Result<DeviceMemory, DeviceError> {
        self.shared.check()?;
        Ok(self.shared.memory.lock().free())
    }

    fn allocate(&self, bytes: usize) -> Result<DeviceAddress, DeviceError> {
        self.shared.check()?;
        let memory = self.shared.memory.lock().allocate(Kind::Device, bytes)?;
        Ok(memory.expose_provenance() as u64)
    }

    unsafe fn free(&self, address: DeviceAddress) -> Result<(), DeviceError> {
        self.shared.check()?;
        self.shared.release(Kind::Device, address as usize)
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<*mut u8, DeviceError> {
        self.shared.check()?;
        self.shared.memory.lock().allocate(Kind::Pinned, bytes)
    }

    unsafe fn free_pinned(&self, memory: *mut u8) -> Result<(), DeviceError> {
        self.shared.check()?;
        self.shared.release(Kind::Pinned, memory.addr())
    }

    unsafe fn register(&self, base: *mut u8, bytes: usize) -> Result<(), DeviceError> {
        self.shared.check()?;
        if !self.shared.options.registers {
            return Err(unsupported("registration"));
        }
        thread::sleep(self.shared.options.register_pause);
        let span = self.shared.memory.lock().register(base, bytes)?;
        self.shared.control.note_registered(span);
        Ok(())
    }

    unsafe fn unregister(&self, base: *mut u8) -> Result<(), DeviceError> {
        self.shared.check()?;
        self.shared.release(Kind::Registered, base.addr())
    }

    fn new_stream(&self, priority: Priority) -> Result<Stream, DeviceError> {
        self.shared.check()?;
        let stream = self.shared.next.fetch_add(1, Ordering::Relaxed);
        self.shared.control.note_stream(stream, priority);
        let (sender, calls) = sync_channel(HOST_STREAM_CALLS_MAX);
        let shared = Arc::clone(&self.shared);
        let spawned = thread::Builder::new()
            .name("turnkv-stream".to_owned())
            .spawn(move || worker::run(&shared, stream, &calls));
        spawned.map_err(|error| DeviceError::new(DeviceErrorKind::NoMemory, error.to_string()))?;
        self.shared.streams.lock().insert(stream, sender);
        Ok(Stream(stream))
    }

    unsafe fn end_stream(&self, stream: Stream) {
        self.shared.streams.lock().remove(&stream.0);
        self.shared.last.lock().remove(&stream.0);
    }

    fn new_event(&self) -> Result<Event, DeviceError> {
        self.shared.check()?;
        let event = self.shared.next.fetch_add(1, Ordering::Relaxed);
        self.shared.events.lock().insert(event, EventState::default());
        Ok(Event(event))
    }

    unsafe fn end_event(&self, event: Event) {
        let mut events = self.shared.events.lock();
        match events.get_mut(&event.0) {
            Some(state) if state.passed < state.recorded => state.ended = true,
            _ => drop(events.remove(&event.0)),
        }
    }

    fn is_capturing(&self, stream: Stream) -> Result<bool, DeviceError> {
        self.shared.check()?;
        Ok(self.shared.control.is_captured(stream))
    }

    unsafe fn record(&self, event: Event, stream: Stream) -> Result<(), DeviceError> {
        self.shared.count()?;
        self.shared.check_capture(stream)?;
        if !self.shared.is_known(stream) && !self.shared.options.strict {
            return Ok(()); // an engine without streams: what it did is done
        }
        let clock = self.shared.order.lock().clock(stream.0);
        let number = {
            let mut events = self.shared.events.lock();
            let state = events.entry(event.0).or_default();
            (state.recorded, state.clock) = (state.recorded + 1, clock);
            state.recorded
        };
        self.shared.send(stream, Call::Record(event.0, number))
    }

    unsafe fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.shared.count()?;
        self.shared.check_capture(stream)?;
        let known =
            self.shared.events.lock().get(&event.0).map(|state| (state.recorded, state.clock.clone()));
        let Some((number, clock)) = known else { return Ok(()) };
        if !self.shared.is_known(stream) && !self.shared.options.strict {
            return self.shared.wait_here(event.0, number);
        }
        self.shared.order.lock().join(stream.0, &clock);
        self.shared.send(stream, Call::Wait(event.0, number))
    }

    fn passed(&self, event: Event) -> Result<bool, DeviceError> {
        self.shared.check()?;
        let events = self.shared.events.lock();
        let Some(state) = events.get(&event.0) else { return Ok(true) };
        let passed = state.passed >= state.recorded;
        if passed {
            self.shared.order.lock().seen(&state.clock);
        }
        Ok(passed)
    }

    unsafe fn copy(&self, request: CopyRequest, stream: Stream) -> Result<(), DeviceError> {
        let touched = Touched::of_copies(&[request]);
        self.shared.last.lock().insert(stream.0, request);
        self.shared.enqueue(stream, touched, Call::Copies(vec![request]))
    }

    unsafe fn copy_batch(&self, requests: &[CopyRequest], stream: Stream) -> Result<(), DeviceError> {
        if !self.shared.options.batches {
            return Err(unsupported("batches"));
        }
        self.shared.enqueue(stream, Touched::of_copies(requests), Call::Copies(requests.to_vec()))
    }

    unsafe fn launch(&self, kernel: Kernel, stream: Stream) -> Result<(), DeviceError> {
        if !self.shared.options.kernels {
            return Err(unsupported("kernels"));
        }
        let function = kernels::function(&kernel);
        if self.shared.loaded.lock().insert(function)
            && let Some(busy) = self.shared.order.lock().busy_beside(stream.0)
        {
            self.shared.control.fault(format!("{function} is loaded while stream {busy} is at work"));
        }
        let last = self.shared.last.lock().get(&stream.0).copied();
        // SAFETY: the caller's promise: the kernel's tables are valid memory, as is where one comes from that is on its way.
        let touched = unsafe { kernels::touched(&kernel, last) };
        self.shared.enqueue(stream, touched, Call::Kernel(kernel))
    }
}

impl Shared {
    /// Takes memory back, which no work under way may use.
    fn release(&self, kind: Kind, base: usize) -> Result<(), DeviceError> {
        let released = self.memory.lock().release(kind, base);
        let Some(range) = released else {
            let text = format!("{kind:?} memory at {base:#x} is given back, and was never taken");
            self.control.fault(text.clone());
            return Err(DeviceError::new(DeviceErrorKind::Invalid, text));
        };
        if kind == Kind::Registered {
            self.control.note_unregistered(range);
        }
        if self.order.lock().uses(&range) {
            self.control.fault(format!("{kind:?} memory {range:?} is given back while a stream uses it"));
        }
        Ok(())
    }

    /// An engine without streams: what it does next comes after what it waits for, so it has to wait itself.
    fn wait_here(&self, event: u64, number: u64) -> Result<(), DeviceError> {
        let mut events = self.events.lock();
        while events.get(&event).is_some_and(|state| state.passed < number) {
            self.check()?;
            self.passed.wait_for(&mut events, Duration::from_millis(10));
        }
        if let Some(state) = events.get(&event) {
            self.order.lock().seen(&state.clock);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
