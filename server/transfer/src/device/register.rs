//! Pinning mapped slabs for a device. Owns: which regions are registered and how far, one piece at a time in
//! the background, their end. Must not know: slots' contents, copies.
//!
//! ```text
//!   unknown --first use--> waiting --piece by piece--> whole --nobody else has it mapped, or closed--> unregistered, unmapped
//!                             \--> refused (no room, or the system says no): copies of the rest are staged
//! ```
//! A driver pins under locks that every process of the machine needs, so a slab is registered in pieces with
//! pauses, and copies use the pieces that are there. A registered region is kept mapped by its entry here;
//! copies under way keep it too, through their slots. So it is unregistered exactly when entries of devices are
//! its last owners, or when the device is closed and nothing is under way: before it is unmapped, and never
//! under a copy.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::device::driver::{DeviceError, DeviceErrorKind, Driver};
use crate::device::stats::Stats;
use crate::limits::{REGIONS_MAX, REGISTER_PAUSE_MAX, REGISTER_PAUSE_MIN, REGISTER_PIECE_BYTES, SWEEP_PAUSE};
use crate::region::{Region, RegionPin};
use crate::slot::Slot;

/// Where a region's memory begins: its name, as long as it is mapped.
type Base = usize;

#[derive(Debug)]
pub(crate) struct Registry {
    driver: Arc<dyn Driver>,
    stats: Arc<Stats>,
    /// None: all memory of the host.
    bytes_max: Option<u64>,
    state: Mutex<Registrations>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Registrations {
    entries: HashMap<Base, Entry>,
    waiting: VecDeque<Base>,
    bytes: u64,
    closed: Option<Closed>,
}

/// How a device was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closed {
    /// Nothing is under way.
    Quiet,
    /// It is broken: copies that were given up may use any region that somebody else holds.
    Broken,
}

#[derive(Debug)]
enum Entry {
    /// A region of which some is pinned, or will be.
    Pinned(Pinned),
    /// A region that could not be pinned, and whether that may change when another one goes.
    Refused(Weak<Region>, bool),
}

#[derive(Debug)]
struct Pinned {
    region: RegionPin,
    /// Leading bytes that are registered, in pieces that begin at multiples of [`REGISTER_PIECE_BYTES`].
    bytes: usize,
    rest: Rest,
}

/// What becomes of the bytes that are not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    /// There are none.
    None,
    Waiting,
    /// They could not be, and whether that may change when another region goes.
    Refused(bool),
}

/// Where a copy between a slot and a device must be cut: at these offsets in a region another registration
/// begins.
pub(crate) fn cut_after(offset: usize) -> usize {
    REGISTER_PIECE_BYTES - offset % REGISTER_PIECE_BYTES
}

impl Registry {
    /// A registry with its thread. It ends when [`Registry::close`] is called.
    pub(crate) fn start(
        driver: Arc<dyn Driver>,
        stats: Arc<Stats>,
        bytes_max: Option<u64>,
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

    /// Whether copies may use the slot directly, cut where [`cut_after`] says. The first question has its
    /// region registered, beside whatever else goes on.
    pub(crate) fn is_direct(&self, slot: &Slot) -> bool {
        let region = slot.region();
        let base = region.as_ptr().addr();
        let mut state = self.state.lock();
        match state.entries.get(&base) {
            Some(Entry::Pinned(pinned)) => return slot.offset() + slot.len() <= pinned.bytes,
            Some(Entry::Refused(known, _)) if std::ptr::eq(known.as_ptr(), Arc::as_ptr(region)) => {
                return false;
            }
            Some(Entry::Refused(..)) | None => {}
        }
        if state.entries.len() < REGIONS_MAX && state.closed.is_none() {
            let pinned = Pinned { region: RegionPin::of(region), bytes: 0, rest: Rest::Waiting };
            state.entries.insert(base, Entry::Pinned(pinned));
            state.waiting.push_back(base);
            self.changed.notify_all();
        }
        false
    }

    /// Looks at once for regions that nobody else uses any more.
    pub(crate) fn sweep_soon(&self) {
        self.changed.notify_all();
    }

    /// Ends all registrations, and the thread: the device has nothing under way any more. On a broken one
    /// copies that were given up may go on; what they may use stays registered and mapped as long as the
    /// process lives.
    pub(crate) fn close(&self, broken: bool) {
        self.state.lock().closed = Some(if broken { Closed::Broken } else { Closed::Quiet });
        self.changed.notify_all();
    }

    fn run(&self) {
        loop {
            self.sweep();
            let mut state = self.state.lock();
            if let Some(closed) = state.closed {
                drop(state);
                return self.end_all(closed);
            }
            if let Some(base) = state.waiting.pop_front() {
                drop(state);
                let begun = Instant::now();
                self.register_piece(base);
                self.pause(begun.elapsed());
            } else if state.entries.is_empty() {
                self.changed.wait(&mut state);
            } else {
                self.changed.wait_for(&mut state, SWEEP_PAUSE);
            }
        }
    }

    /// Lets others have the driver's locks, for as long as we had them; not where the device is closed.
    fn pause(&self, taken: Duration) {
        let until = Instant::now() + taken.clamp(REGISTER_PAUSE_MIN, REGISTER_PAUSE_MAX);
        let mut state = self.state.lock();
        while state.closed.is_none() && Instant::now() < until {
            self.changed.wait_until(&mut state, until);
        }
    }

    /// Registers the next piece of a region.
    fn register_piece(&self, base: Base) {
        let (region, from, room) = {
            let state = self.state.lock();
            let Some(Entry::Pinned(Pinned { region, bytes, rest: Rest::Waiting })) = state.entries.get(&base)
            else {
                return;
            };
            let piece = piece_bytes(region, *bytes) as u64;
            let bytes_max = self.bytes_max.unwrap_or_else(host_memory_bytes);
            let room = bytes_max.saturating_sub(state.bytes) >= piece;
            (Arc::clone(&**region), *bytes, room)
        };
        let bytes = piece_bytes(&region, from);
        let registered = if room {
            // SAFETY: a piece of the region's mapping, which begins on a page, as pieces do; the entry keeps
            // it mapped until the piece is unregistered.
            unsafe { self.driver.register(region.as_ptr().add(from), bytes) }
        } else {
            Err(DeviceError::new(DeviceErrorKind::NoMemory, "pinned_bytes_max is reached"))
        };
        let mut state = self.state.lock();
        if registered.is_ok() {
            state.bytes += bytes as u64;
            self.stats.registered_bytes.add(bytes as u64);
            if self.is_far(&region) {
                self.stats.far_bytes.add(bytes as u64);
            }
        } else {
            self.stats.refused.add(1);
        }
        let entry = match (registered, from) {
            (Ok(()), _) => {
                let bytes = from + bytes;
                let whole = bytes == region.mapped_bytes();
                if !whole {
                    state.waiting.push_front(base);
                }
                let rest = if whole { Rest::None } else { Rest::Waiting };
                Entry::Pinned(Pinned { region: RegionPin::of(&region), bytes, rest })
            }
            (Err(_), 0) => Entry::Refused(Arc::downgrade(&region), !room),
            (Err(_), bytes) => {
                let rest = Rest::Refused(!room);
                Entry::Pinned(Pinned { region: RegionPin::of(&region), bytes, rest })
            }
        };
        state.entries.insert(base, entry);
    }

    /// Whether a region lies on another NUMA node than the device. Pinned memory does not move, so the answer
    /// stays.
    fn is_far(&self, region: &Region) -> bool {
        self.driver.numa_node().zip(region.numa_node()).is_some_and(|(device, memory)| device != memory)
    }

    /// Ends the registrations of regions that nobody else uses any more.
    fn sweep(&self) {
        for pinned in self.take(Entry::is_unused) {
            self.unregister(pinned);
        }
    }

    fn end_all(&self, closed: Closed) {
        for pinned in self.take(|_| true) {
            if closed == Closed::Quiet {
                self.unregister(pinned);
            } else {
                self.quarantine(pinned);
            }
        }
    }

    fn unregister(&self, pinned: Pinned) {
        let mut ended = true;
        for piece in (0..pinned.bytes).step_by(REGISTER_PIECE_BYTES) {
            let begun = Instant::now();
            // SAFETY: the piece was registered, and no copy under way has a slot in it: devices are the region's
            // only owners, or nothing is under way at all.
            ended &= unsafe { self.driver.unregister(pinned.region.as_ptr().add(piece)) }.is_ok();
            self.pause(begun.elapsed());
        }
        if !ended {
            self.quarantine(pinned);
        }
    }

    /// The device may still write to it: it stays mapped for as long as the process lives.
    fn quarantine(&self, pinned: Pinned) {
        self.stats.quarantined_bytes.add(pinned.bytes as u64);
        std::mem::forget(pinned.region);
    }

    /// Takes entries out, and gives those of which something is registered.
    fn take(&self, wanted: impl Fn(&Entry) -> bool) -> Vec<Pinned> {
        let mut state = self.state.lock();
        let bases: Vec<Base> =
            state.entries.iter().filter(|(_, entry)| wanted(entry)).map(|e| *e.0).collect();
        let mut taken = Vec::new();
        for base in bases {
            if let Some(Entry::Pinned(pinned)) = state.entries.remove(&base) {
                let bytes = pinned.bytes as u64;
                state.bytes -= bytes;
                self.stats.registered_bytes.sub(bytes);
                if self.is_far(&pinned.region) {
                    self.stats.far_bytes.sub(bytes);
                }
                taken.push(pinned);
            }
        }
        if taken.iter().any(|pinned| pinned.bytes > 0) {
            state.ask_again();
        }
        taken
    }
}

impl Registrations {
    /// There is room again for those that found none: their next use asks anew, and what is pinned in part
    /// goes on.
    fn ask_again(&mut self) {
        self.entries.retain(|_, entry| !matches!(entry, Entry::Refused(_, true)));
        for (base, entry) in &mut self.entries {
            if let Entry::Pinned(pinned) = entry
                && pinned.rest == Rest::Refused(true)
            {
                pinned.rest = Rest::Waiting;
                self.waiting.push_back(*base);
            }
        }
    }
}

impl Entry {
    fn is_unused(&self) -> bool {
        match self {
            Entry::Pinned(pinned) => !pinned.region.is_used(),
            Entry::Refused(region, _) => region.strong_count() == 0,
        }
    }
}

/// Bytes of the piece that begins there.
fn piece_bytes(region: &Region, from: usize) -> usize {
    REGISTER_PIECE_BYTES.min(region.mapped_bytes() - from)
}

/// All memory of this host now: no more can be pinned.
fn host_memory_bytes() -> u64 {
    // SAFETY: `sysconf` only reads a setting of the system.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).unwrap_or(0).saturating_mul(rustix::param::page_size() as u64)
}
