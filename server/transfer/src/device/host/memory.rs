//! Memory that a host device may touch. Owns: what was taken, pinned or registered, and the limits. Must not
//! know: who uses it.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::device::driver::{DeviceAddress, DeviceError, DeviceErrorKind, DeviceMemory};
use crate::region::{HugePages, Region, RegionOptions};

/// Device memory begins at multiples of this, as CUDA's does.
const DEVICE_ALIGN: usize = 256;
/// Pinned memory begins on a page.
const PINNED_ALIGN: usize = 4096;
/// What fresh memory holds: nothing that a test could take for zeros.
const FRESH: u8 = 0xA5;

/// Bytes from an address on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Extent {
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Extent {
    pub(super) fn new(start: u64, bytes: u64) -> Self {
        Self { start, end: start.saturating_add(bytes) }
    }

    pub(super) fn inside(&self, other: &Self) -> bool {
        self.start >= other.start && self.end <= other.end
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:#x}+{:#x}", self.start, self.end - self.start)
    }
}

/// How memory became the device's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Device,
    Pinned,
    Registered,
}

#[derive(Debug)]
struct Known {
    span: Extent,
    kind: Kind,
    /// What to give back to the allocator at the end.
    taken: Option<(*mut u8, Layout)>,
    /// What memory that is exported lies in.
    _exported: Option<Arc<Region>>,
}

// SAFETY: an entry owns its memory, which belongs to no thread.
unsafe impl Send for Known {}

#[derive(Debug)]
pub(super) struct Memory {
    known: BTreeMap<u64, Known>,
    /// Given back: kept to the end, so that work that still uses it does no harm beyond its fault.
    past: Vec<Known>,
    device_bytes: u64,
    device_bytes_max: u64,
    pinned_bytes: u64,
    pinned_bytes_max: u64,
}

impl Memory {
    pub(super) fn new(device_bytes_max: u64, pinned_bytes_max: u64) -> Self {
        Self {
            known: BTreeMap::new(),
            past: Vec::new(),
            device_bytes: 0,
            device_bytes_max,
            pinned_bytes: 0,
            pinned_bytes_max,
        }
    }

    pub(super) fn free(&self) -> DeviceMemory {
        DeviceMemory {
            free_bytes: self.device_bytes_max - self.device_bytes,
            total_bytes: self.device_bytes_max,
        }
    }

    pub(super) fn allocate(&mut self, kind: Kind, bytes: usize) -> Result<*mut u8, DeviceError> {
        self.charge(kind, bytes as u64)?;
        let align = if kind == Kind::Device { DEVICE_ALIGN } else { PINNED_ALIGN };
        let none = || DeviceError::new(DeviceErrorKind::NoMemory, format!("no memory of {bytes} bytes"));
        let layout = Layout::from_size_align(bytes.max(1), align).map_err(|_| none())?;
        // SAFETY: the layout has a size of at least 1.
        let memory = unsafe { alloc(layout) };
        if memory.is_null() {
            return Err(none());
        }
        // SAFETY: as many bytes were just taken.
        unsafe { memory.write_bytes(FRESH, bytes) };
        let span = Extent::new(memory.expose_provenance() as u64, bytes as u64);
        self.known.insert(span.start, Known { span, kind, taken: Some((memory, layout)), _exported: None });
        Ok(memory)
    }

    /// Device memory in a memfd, which stands in for a dma-buf of it.
    pub(super) fn allocate_exported(
        &mut self,
        bytes: usize,
    ) -> Result<(DeviceAddress, OwnedFd), DeviceError> {
        self.charge(Kind::Device, bytes as u64)?;
        let options = RegionOptions {
            bytes,
            huge_pages: HugePages::Off,
            touch: false,
            lock: false,
            name: "turnkv-host-device".to_owned(),
        };
        let made = Region::create(&options).and_then(|(region, _)| {
            let dma_buf = region.fd().try_clone_to_owned()?;
            Ok((region, dma_buf))
        });
        let (region, dma_buf) = made.map_err(|error| {
            self.device_bytes -= bytes as u64;
            DeviceError::new(DeviceErrorKind::NoMemory, format!("no memory of {bytes} bytes: {error}"))
        })?;
        let base = region.as_ptr();
        // SAFETY: the mapping has so many bytes, and nobody knows of it yet.
        unsafe { base.write_bytes(FRESH, bytes) };
        let span = Extent::new(base.expose_provenance() as u64, bytes as u64);
        self.known
            .insert(span.start, Known { span, kind: Kind::Device, taken: None, _exported: Some(region) });
        Ok((span.start, dma_buf))
    }

    pub(super) fn register(&mut self, base: *mut u8, bytes: usize) -> Result<Extent, DeviceError> {
        let span = Extent::new(base.expose_provenance() as u64, bytes as u64);
        let before = self.known.range(..span.end).next_back();
        if before.is_some_and(|(_, known)| known.span.end > span.start) {
            let text = format!("{span:?} is registered already, at least in part");
            return Err(DeviceError::new(DeviceErrorKind::Invalid, text));
        }
        self.charge(Kind::Registered, bytes as u64)?;
        self.known.insert(span.start, Known { span, kind: Kind::Registered, taken: None, _exported: None });
        Ok(span)
    }

    /// Takes memory of a kind out; `None`: there is none that begins there.
    pub(super) fn release(&mut self, kind: Kind, base: usize) -> Option<Extent> {
        let known = self.known.remove(&(base as u64)).filter(|known| known.kind == kind)?;
        let (span, bytes) = (known.span, known.span.end - known.span.start);
        match kind {
            Kind::Device => self.device_bytes -= bytes,
            Kind::Pinned | Kind::Registered => self.pinned_bytes -= bytes,
        }
        self.past.push(known);
        Some(span)
    }

    /// Whether a span begins in one registration and ends behind it: no copy may, even where another one
    /// follows.
    pub(super) fn leaves_a_registration(&self, span: &Extent) -> bool {
        let before = self.known.range(..=span.start).next_back();
        before.is_some_and(|(_, known)| {
            known.kind == Kind::Registered && span.start < known.span.end && span.end > known.span.end
        })
    }

    /// The memory that a span lies in.
    pub(super) fn find(&self, span: &Extent) -> Option<Kind> {
        let (_, known) = self.known.range(..=span.start).next_back()?;
        span.inside(&known.span).then_some(known.kind)
    }

    fn charge(&mut self, kind: Kind, bytes: u64) -> Result<(), DeviceError> {
        let (used, most, what) = match kind {
            Kind::Device => (&mut self.device_bytes, self.device_bytes_max, "device"),
            Kind::Pinned | Kind::Registered => (&mut self.pinned_bytes, self.pinned_bytes_max, "pinned"),
        };
        match used.checked_add(bytes).filter(|sum| *sum <= most) {
            Some(sum) => *used = sum,
            None => {
                let text =
                    format!("{bytes} bytes of {what} memory are wanted, {} of {most} are free", most - *used);
                return Err(DeviceError::new(DeviceErrorKind::NoMemory, text));
            }
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let known = std::mem::take(&mut self.known).into_values().chain(std::mem::take(&mut self.past));
        for (memory, layout) in known.filter_map(|known| known.taken) {
            // SAFETY: it came from `alloc` with this layout and is given back once; no thread of the device
            // is left.
            unsafe { dealloc(memory, layout) };
        }
    }
}
