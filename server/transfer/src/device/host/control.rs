//! What a test lets go wrong on a host device, and what it finds. Owns: that switchboard. Must not know:
//! streams' work.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use super::memory::Extent;
use crate::device::driver::{DeviceAddress, DeviceError, DeviceErrorKind, Priority, Stream};

/// Says what goes wrong on a host device while it is in use, and what it found wrong. Clones are the same.
#[derive(Clone, Debug, Default)]
pub struct HostControl {
    shared: Arc<Switches>,
}

#[derive(Debug, Default)]
struct Switches {
    state: Mutex<Faults>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Faults {
    calls: u64,
    fail_at: Option<(u64, DeviceErrorKind)>,
    broken: Option<String>,
    held: HashSet<u64>,
    /// Streams of a priority that is held.
    held_priority: Option<Priority>,
    priorities: HashMap<u64, Priority>,
    all_held: bool,
    checksums_held: bool,
    faults: Vec<String>,
    adopted: Vec<Extent>,
    registered: BTreeMap<u64, Extent>,
    captured: HashSet<u64>,
    /// Why device memory cannot be exported.
    export_refused: Option<DeviceError>,
    flushes: u64,
    closed: bool,
}

impl Faults {
    fn is_held(&self, stream: u64) -> bool {
        let held_priority =
            self.held_priority.is_some() && self.priorities.get(&stream) == self.held_priority.as_ref();
        self.all_held || held_priority || self.held.contains(&stream)
    }
}

impl HostControl {
    /// Lets the call fail that comes after `calls` more ones (of copies, launches, records and waits).
    pub fn fail_after(&self, calls: u64, kind: DeviceErrorKind) {
        let mut state = self.shared.state.lock();
        state.fail_at = Some((state.calls + calls, kind));
    }

    /// Lets no call fail any more.
    pub fn fail_no_more(&self) {
        self.shared.state.lock().fail_at = None;
    }

    /// Breaks the device: every later call says so, and nothing that was enqueued goes on.
    pub fn break_device(&self, why: &str) {
        self.shared.state.lock().broken.get_or_insert(why.to_owned());
        self.shared.changed.notify_all();
    }

    /// Stops a stream before its next call, until it is let go.
    pub fn hold(&self, stream: Stream) {
        self.shared.state.lock().held.insert(stream.raw());
    }

    /// Stops the streams of a priority: of reloads, or of offloads and whoever else is in no hurry.
    pub fn hold_priority(&self, priority: Priority) {
        self.shared.state.lock().held_priority = Some(priority);
    }

    /// Stops all streams.
    pub fn hold_all(&self) {
        self.shared.state.lock().all_held = true;
    }

    /// Stops streams before kernels that take checksums.
    pub fn hold_checksums(&self) {
        self.shared.state.lock().checksums_held = true;
    }

    /// Lets all streams go on.
    pub fn let_go(&self) {
        let mut state = self.shared.state.lock();
        state.held.clear();
        state.held_priority = None;
        (state.all_held, state.checksums_held) = (false, false);
        self.shared.changed.notify_all();
    }

    /// Begins to capture a stream into a graph, as an engine does.
    pub fn begin_capture(&self, stream: Stream) {
        self.shared.state.lock().captured.insert(stream.raw());
    }

    /// Ends the capture.
    pub fn end_capture(&self, stream: Stream) {
        self.shared.state.lock().captured.remove(&stream.raw());
    }

    /// Lets device memory not be exported any more, for this reason.
    pub fn refuse_export(&self, kind: DeviceErrorKind, why: &str) {
        self.shared.state.lock().export_refused = Some(DeviceError::new(kind, why));
    }

    /// How often NICs' writes were flushed.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.shared.state.lock().flushes
    }

    /// Announces memory of an engine, for a strict device.
    pub fn adopt(&self, address: DeviceAddress, bytes: usize) {
        self.shared.state.lock().adopted.push(Extent::new(address, bytes as u64));
    }

    /// What was wrong so far: memory that was used and must not be, work without an order.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        self.shared.state.lock().faults.clone()
    }

    /// How many bytes each registration has that there is now, in order of address; also when the device is
    /// gone.
    #[must_use]
    pub fn registered(&self) -> Vec<u64> {
        self.shared.state.lock().registered.values().map(|span| span.end - span.start).collect()
    }

    /// How many calls were made that could fail.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.shared.state.lock().calls
    }

    pub(super) fn may_export(&self) -> Result<(), DeviceError> {
        self.shared.state.lock().export_refused.clone().map_or(Ok(()), Err)
    }

    pub(super) fn note_flush(&self) {
        self.shared.state.lock().flushes += 1;
    }

    pub(super) fn note_registered(&self, span: Extent) {
        self.shared.state.lock().registered.insert(span.start, span);
    }

    pub(super) fn note_unregistered(&self, span: Extent) {
        self.shared.state.lock().registered.remove(&span.start);
    }

    pub(super) fn is_captured(&self, stream: Stream) -> bool {
        self.shared.state.lock().captured.contains(&stream.raw())
    }

    pub(super) fn adopted(&self) -> Vec<Extent> {
        self.shared.state.lock().adopted.clone()
    }

    pub(super) fn fault(&self, text: String) {
        self.shared.state.lock().faults.push(text);
    }

    pub(super) fn broken(&self) -> Option<DeviceError> {
        let state = self.shared.state.lock();
        state.broken.as_ref().map(|why| DeviceError::new(DeviceErrorKind::Broken, why.clone()))
    }

    /// Counts a call, which may be the one to fail.
    pub(super) fn count(&self) -> Result<(), DeviceError> {
        let mut state = self.shared.state.lock();
        state.calls += 1;
        let due = state.fail_at.filter(|(at, _)| state.calls > *at);
        let Some((_, kind)) = due else { return Ok(()) };
        state.fail_at = None;
        let text = format!("call {} was to fail", state.calls);
        if kind == DeviceErrorKind::Broken {
            state.broken.get_or_insert(text.clone());
            self.shared.changed.notify_all();
        }
        Err(DeviceError::new(kind, text))
    }

    pub(super) fn note_stream(&self, stream: u64, priority: Priority) {
        self.shared.state.lock().priorities.insert(stream, priority);
    }

    /// Waits while a stream is held. False: nothing is to be done any more.
    pub(super) fn may_go_on(&self, stream: u64, checksums: bool) -> bool {
        let mut state = self.shared.state.lock();
        let held = |state: &Faults| state.is_held(stream) || (checksums && state.checksums_held);
        while held(&state) && !state.closed && state.broken.is_none() {
            self.shared.changed.wait(&mut state);
        }
        !state.closed && state.broken.is_none()
    }

    pub(super) fn is_over(&self) -> bool {
        let state = self.shared.state.lock();
        state.closed || state.broken.is_some()
    }

    pub(super) fn close(&self) {
        self.shared.state.lock().closed = true;
        self.shared.changed.notify_all();
    }
}
