//! Space on NVMe: the bytes that are to stay in each segment, and those that may move. Owns: these sums, and how
//! the tier cuts its space. Must not know: which pages these are of, which segment is emptied.

use crate::ids::NvmePlace;
use crate::limits::{KEPT_PERCENT_MIN, NVME_KEPT_PERCENT, REWRITE_BURST_SHARE};

/// Share of a tier of so many segments that pages may keep, percent, if so many (`spare`) are kept free: of
/// the rest a tenth, and two segments, are for what leaves, or emptying segments would move too much.
pub fn kept_percent(segments: u64, spare: u64) -> u8 {
    let used = segments.saturating_sub(spare + 1); // one is being filled
    let kept = (used * 90).saturating_sub(200);
    (kept / segments.max(1)).max(KEPT_PERCENT_MIN) as u8
}

/// How the tier cuts its space.
#[derive(Clone, Copy, Debug)]
pub(super) struct NvmeShape {
    pub(super) kept_percent: u8,
    /// Bytes of a segment, and of a block: one is before each extent, two are the segment's own. 0: extents
    /// are but their bytes.
    pub(super) segment_bytes: u64,
    pub(super) block_bytes: u64,
}

/// Bytes that are to stay on NVMe.
#[derive(Debug)]
pub(super) struct NvmeSpace {
    pub(super) by_segment: Vec<u64>,
    pub(super) bytes: u64,
    /// Of these, bytes of pages that somebody was promised.
    pub(super) promised: u64,
    /// Bytes that may be written again: a share of those that came.
    pub(super) credit: u64,
    /// Bytes that may move before anything else is written. Where moving makes no room, however often, pages
    /// go.
    pub(super) moves_left: u64,
    /// Bytes of pages that a hundred bytes of the tier hold: more where they are packed.
    pub(super) packing_percent: u64,
    pub(super) shape: NvmeShape,
}

impl NvmeSpace {
    /// Nothing is on a tier of so many bytes.
    pub(super) fn new(nvme_bytes: u64) -> NvmeSpace {
        let shape = NvmeShape { kept_percent: NVME_KEPT_PERCENT, segment_bytes: 0, block_bytes: 0 };
        NvmeSpace {
            by_segment: Vec::new(),
            bytes: 0,
            promised: 0,
            moves_left: nvme_bytes,
            credit: nvme_bytes / REWRITE_BURST_SHARE,
            packing_percent: 100,
            shape,
        }
    }

    /// So many bytes at a place are to stay.
    pub(super) fn add(&mut self, place: NvmePlace, bytes: u64, promised: bool) {
        let segment = usize::from(place.segment);
        if segment >= self.by_segment.len() {
            self.by_segment.resize(segment + 1, 0);
        }
        self.by_segment[segment] += bytes;
        self.bytes += bytes;
        self.promised += if promised { bytes } else { 0 };
    }

    /// They are not any more.
    pub(super) fn take(&mut self, place: NvmePlace, bytes: u64, promised: bool) {
        self.by_segment[usize::from(place.segment)] -= bytes;
        self.bytes -= bytes;
        self.promised -= if promised { bytes } else { 0 };
    }
}
