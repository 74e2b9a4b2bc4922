//! What a lane is asked to copy. Owns: what a job's pages are, and which way they go. Must not know: streams, staging memory,
//! who asks.

use std::sync::Arc;

use crate::device::buffer::DeviceSlot;
use crate::device::choose::Way;
use crate::device::flight::{FlightBoard, Mark};
use crate::device::plan::DevicePlan;
use crate::limits::{LAYERED_SUM_BYTES_MIN, LAYERED_SUMS_MAX};
use crate::page::{Page, PageMut};
use crate::slot::Slot;

/// What the other end of a page's copy is.
#[derive(Debug)]
pub(crate) enum Other {
    /// A slot in host memory that the copy reads.
    Slot(Page),
    /// A slot in host memory that the copy fills. What is staged for it shares the right until it has landed.
    Filling(Arc<PageMut>),
    /// Device memory that the plan's is filled from.
    Source(DevicePlan),
    /// A slot in memory of the device that NICs have written, and the copy reads.
    Lent(DeviceSlot),
    /// A slot in memory of the device that the copy fills, for NICs to read.
    FillingLent(DeviceSlot),
}

impl Other {
    /// The slot in host memory, if it is one.
    pub(crate) fn slot(&self) -> Option<&Slot> {
        match self {
            Other::Slot(page) => Some(page.slot()),
            Other::Filling(page) => Some(page.slot()),
            Other::Source(_) | Other::Lent(_) | Other::FillingLent(_) => None,
        }
    }

    /// Whether no CPU can look at the page there.
    pub(super) fn is_lent(&self) -> bool {
        matches!(self, Other::Lent(_) | Other::FillingLent(_))
    }
}

#[derive(Debug)]
pub(crate) struct JobPage {
    pub(crate) plan: DevicePlan,
    pub(crate) other: Other,
}

/// Copies that one call asked for.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) pages: Vec<JobPage>,
    /// Nothing is read or written before this.
    pub(crate) after: Option<Mark>,
    /// How many parts of all pages are copied one after another, each with an event; 0: no events.
    pub(crate) layers: usize,
    /// Whether the pages' checksums are wanted.
    pub(crate) checksums: bool,
    pub(crate) flight: Arc<FlightBoard>,
    /// Pieces of all its pages, before those that touch are joined.
    pub(super) pieces: usize,
    /// Bytes of all its pages.
    pub(super) bytes: usize,
}

impl Job {
    pub(crate) fn new(
        pages: Vec<JobPage>,
        after: Option<Mark>,
        layers: usize,
        checksums: bool,
        flight: Arc<FlightBoard>,
    ) -> Self {
        let pieces = pages.iter().map(|page| page.plan.pieces().len()).sum();
        let bytes = pages.iter().map(|page| page.plan.slot_bytes()).sum();
        Self { pages, after, layers, checksums, flight, pieces, bytes }
    }

    /// The parts of all pages after which checksums are taken, of what came since they were last: the last one, and where pages come
    /// layer by layer some before it.
    pub(super) fn summed_after(&self) -> impl Iterator<Item = usize> {
        let layers = self.layers.max(1);
        let sums = (self.bytes / LAYERED_SUM_BYTES_MIN).clamp(1, LAYERED_SUMS_MAX);
        let due = move |part: &usize| (part + 1) * sums / layers != part * sums / layers;
        (0..if self.checksums { layers } else { 0 }).filter(due)
    }

    /// Whether it goes from the plans into slots; else the other way.
    pub(super) fn to_slots(&self) -> bool {
        let first = self.pages.first().map(|page| &page.other);
        matches!(first, Some(Other::Filling(_) | Other::FillingLent(_)))
    }

    /// Whether it reads what NICs have written to memory of the device.
    pub(super) fn reads_lent(&self) -> bool {
        self.pages.iter().any(|page| matches!(page.other, Other::Lent(_)))
    }

    /// Which way its pieces go: all of one job go the same. (A reload may read lent memory of both kinds; then what suits the
    /// first page is right for all, if not the fastest.)
    pub(super) fn way(&self) -> Way {
        match self.pages.first().map(|page| &page.other) {
            Some(Other::Filling(_)) => Way::ToSlots,
            Some(Other::Source(_) | Other::Lent(_) | Other::FillingLent(_)) => Way::Within,
            Some(Other::Slot(_)) | None => Way::ToDevice,
        }
    }
}
