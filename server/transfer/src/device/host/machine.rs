//! The machine behind a host device. Owns: its memory, streams, events, and the checks of what is enqueued.
//! Must not know: the driver's calls, who runs a stream.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::SyncSender;

use parking_lot::{Condvar, Mutex};

use super::control::HostControl;
use super::memory::{Kind, Memory};
use super::options::HostOptions;
use super::order::{Clock, Order, Touched};
use crate::device::driver::{CopyRequest, DeviceError, DeviceErrorKind, Kernel, Stream};
use crate::limits::HOST_LOOK;

/// What a driver, its streams' threads and its tests share.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) options: HostOptions,
    pub(super) control: HostControl,
    pub(super) memory: Mutex<Memory>,
    pub(super) events: Mutex<HashMap<u64, EventState>>,
    /// An event passed, or everything ends.
    pub(super) passed: Condvar,
    pub(super) streams: Mutex<HashMap<u64, SyncSender<Call>>>,
    pub(super) order: Mutex<Order>,
    /// Functions that were launched once.
    pub(super) loaded: Mutex<HashSet<&'static str>>,
    /// The last copy that each stream was given: a kernel's table may be on its way in it.
    pub(super) last: Mutex<HashMap<u64, CopyRequest>>,
    pub(super) next: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct EventState {
    pub(super) recorded: u64,
    pub(super) passed: u64,
    /// Nobody records it any more; streams that wait for it go on doing so.
    pub(super) ended: bool,
    /// What was before the last record.
    pub(super) clock: Clock,
}

/// What a stream's thread is to do next.
#[derive(Debug)]
pub(super) enum Call {
    Copies(Vec<CopyRequest>),
    Kernel(Kernel),
    /// The event, and which record of it.
    Record(u64, u64),
    Wait(u64, u64),
}

impl Machine {
    pub(super) fn new(options: HostOptions) -> Machine {
        let control = options.control.clone();
        let memory = Mutex::new(Memory::new(options.memory_bytes, options.pinned_bytes));
        Machine {
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
        }
    }

    pub(super) fn check(&self) -> Result<(), DeviceError> {
        self.control.broken().map_or(Ok(()), Err)
    }

    /// An event of ours in a stream that is captured is part of the graph from then on: whoever asks for it
    /// breaks the device.
    pub(super) fn check_capture(&self, stream: Stream) -> Result<(), DeviceError> {
        if !self.control.is_captured(stream) {
            return Ok(());
        }
        let text = format!("{stream:?} is captured into a graph, and ours with it");
        self.control.fault(text.clone());
        self.control.break_device(&text);
        Err(broken(&text))
    }

    /// One more call that a test may want to fail.
    pub(super) fn count(&self) -> Result<(), DeviceError> {
        self.check()?;
        self.control.count()
    }

    /// Checks work before it is enqueued: its memory, its order.
    pub(super) fn enqueue(&self, stream: Stream, touched: Touched, call: Call) -> Result<(), DeviceError> {
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

    pub(super) fn send(&self, stream: Stream, call: Call) -> Result<(), DeviceError> {
        let sender = self.streams.lock().get(&stream.0).cloned();
        match sender {
            Some(sender) => sender.send(call).map_err(|_| broken("the stream's thread is gone")),
            None => Err(unknown_stream(stream)),
        }
    }

    pub(super) fn is_known(&self, stream: Stream) -> bool {
        self.streams.lock().contains_key(&stream.0)
    }

    /// Takes memory back, which no work under way may use.
    pub(super) fn release(&self, kind: Kind, base: usize) -> Result<(), DeviceError> {
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
    pub(super) fn wait_here(&self, event: u64, number: u64) -> Result<(), DeviceError> {
        let mut events = self.events.lock();
        while events.get(&event).is_some_and(|state| state.passed < number) {
            self.check()?;
            self.passed.wait_for(&mut events, HOST_LOOK);
        }
        if let Some(state) = events.get(&event) {
            self.order.lock().seen(&state.clock);
        }
        Ok(())
    }
}

fn broken(text: &str) -> DeviceError {
    DeviceError::new(DeviceErrorKind::Broken, text)
}

fn unknown_stream(stream: Stream) -> DeviceError {
    DeviceError::new(DeviceErrorKind::Invalid, format!("{stream:?} is not a stream of this device"))
}
