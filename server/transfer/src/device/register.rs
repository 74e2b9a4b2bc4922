//! Pinning mapped slabs for a device. Owns: which regions are registered, one registration at a time in the background, their
//! end. Must not know: slots, copies.
//!
//! ```text
//!   unknown --first use--> waiting --> registered --nobody else has it mapped--> unregistered, unmapped
//!                             \--> refused (no room, or the system says no): its copies are staged
//! ```
//! A registered region is kept mapped by its entry here; copies under way keep it too, through their slots. So it is
//! unregistered exactly when the entry is its last owner: before it is unmapped, and never under a copy.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::{Condvar, Mutex};

use crate::device::driver::{DeviceError, DeviceErrorKind, Driver};
use crate::device::stats::Stats;
use crate::limits::{REGIONS_MAX, SWEEP_PAUSE};
use crate::region::Region;

/// Where a region's memory begins: its name, as long as it is mapped.
type Base = usize;

#[derive(Debug)]
pub(crate) struct Registry {
    driver: Arc<dyn Driver>,
    stats: Arc<Stats>,
    bytes_max: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<Base, Entry>,
    waiting: VecDeque<Base>,
    bytes: u64,
    closed: bool,
}

#[derive(Debug)]
enum Entry {
    Waiting(Arc<Region>),
    Registered(Arc<Region>),
    /// A region that could not be pinned, and whether that may change when another one goes.
    Refused(Weak<Region>, bool),
}

impl Registry {
    /// A registry with its thread. It ends when [`Registry::close`] is called.
    pub(crate) fn start(
        driver: Arc<dyn Driver>,
        stats: Arc<Stats>,
        bytes_max: u64,
    ) -> Result<Arc<Self>, DeviceError> {
        let state = Mutex::default();
        let registry = Arc::new(Self { driver, stats, bytes_max, state, changed: Condvar::new() });
        let ours = Arc::clone(&registry);
        let spawned = thread::Builder::new().name("turnkv-pin".to_owned()).spawn(move || ours.run());
        spawned.map_err(|error| {
            DeviceError::new(DeviceErrorKind::NoMemory, format!("no thread to pin slabs: {error}"))
        })?;
        Ok(registry)
    }

    /// Whether copies may use the region directly. The first question has it registered, beside whatever else goes on.
    pub(crate) fn is_direct(&self, region: &Arc<Region>) -> bool {
        let base = region.as_ptr().addr();
        let mut state = self.state.lock();
        match state.entries.get(&base) {
            Some(Entry::Registered(_)) => return true,
            Some(Entry::Waiting(_)) => return false,
            Some(Entry::Refused(known, _)) if std::ptr::eq(known.as_ptr(), Arc::as_ptr(region)) => {
                return false;
            }
            Some(Entry::Refused(..)) | None => {}
        }
        if state.entries.len() < REGIONS_MAX && !state.closed {
            state.entries.insert(base, Entry::Waiting(Arc::clone(region)));
            state.waiting.push_back(base);
            self.changed.notify_all();
        }
        false
    }

    /// Looks at once for regions that nobody else uses any more.
    pub(crate) fn sweep_soon(&self) {
        self.changed.notify_all();
    }

    /// Ends the thread, and all registrations that no lost copy may be using.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        loop {
            self.sweep();
            let mut state = self.state.lock();
            let Some(base) = state.waiting.pop_front() else {
                if state.closed {
                    return;
                }
                if state.entries.is_empty() {
                    self.changed.wait(&mut state);
                } else {
                    self.changed.wait_for(&mut state, SWEEP_PAUSE);
                }
                continue;
            };
            let Some(Entry::Waiting(region)) = state.entries.get(&base) else { continue };
            let region = Arc::clone(region);
            let room = self.bytes_max.saturating_sub(state.bytes) >= region.len() as u64;
            drop(state);
            self.register(base, region, room);
        }
    }

    fn register(&self, base: Base, region: Arc<Region>, room: bool) {
        let bytes = region.mapped_bytes();
        let registered = if room {
            // SAFETY: the region's whole mapping, which begins on a page; the entry keeps it mapped until `unregister`.
            unsafe { self.driver.register(region.as_ptr(), bytes) }
        } else {
            Err(DeviceError::new(DeviceErrorKind::NoMemory, "pinned_bytes_max is reached"))
        };
        let mut state = self.state.lock();
        if registered.is_ok() {
            state.bytes += bytes as u64;
            if self.is_far(&region) {
                self.stats.far_bytes.add(bytes as u64);
            }
            self.stats.registered_bytes.add(bytes as u64);
            state.entries.insert(base, Entry::Registered(region));
        } else {
            self.stats.refused.add(1);
            state.entries.insert(base, Entry::Refused(Arc::downgrade(&region), !room));
        }
    }

    /// Whether a region lies on another NUMA node than the device. Pinned memory does not move, so the answer stays.
    fn is_far(&self, region: &Region) -> bool {
        self.driver.numa_node().zip(region.numa_node()).is_some_and(|(device, memory)| device != memory)
    }

    /// Ends the registrations of regions that nobody else uses any more.
    fn sweep(&self) {
        for region in self.take_unused() {
            // SAFETY: it was registered (only such are taken), and we are its only owner: no copy under way has a slot in it.
            let ended = unsafe { self.driver.unregister(region.as_ptr()) };
            if ended.is_err() {
                // The device may still write to it: it stays mapped for as long as the process lives.
                self.stats.quarantined_bytes.add(region.len() as u64);
                std::mem::forget(region);
            }
        }
    }

    fn take_unused(&self) -> Vec<Arc<Region>> {
        let mut state = self.state.lock();
        let unused: Vec<Base> =
            state.entries.iter().filter(|(_, entry)| entry.is_unused()).map(|e| *e.0).collect();
        let mut ended = Vec::new();
        for base in unused {
            if let Some(Entry::Registered(region)) = state.entries.remove(&base) {
                state.bytes -= region.mapped_bytes() as u64;
                self.stats.registered_bytes.sub(region.mapped_bytes() as u64);
                if self.is_far(&region) {
                    self.stats.far_bytes.sub(region.mapped_bytes() as u64);
                }
                ended.push(region);
            }
        }
        if !ended.is_empty() {
            // There is room again for those that found none: their next use asks anew.
            state.entries.retain(|_, entry| !matches!(entry, Entry::Refused(_, true)));
        }
        ended
    }
}

impl Entry {
    fn is_unused(&self) -> bool {
        match self {
            Entry::Waiting(region) | Entry::Registered(region) => Arc::strong_count(region) == 1,
            Entry::Refused(region, _) => region.strong_count() == 0,
        }
    }
}
