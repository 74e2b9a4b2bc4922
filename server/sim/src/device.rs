//! The simulated NVMe device: a log of segments, and when its reads and writes are done.
//! Owns: places and times. Must not know: pages' worth (the pool judges), policies.

use turnkv_pool::{Now, NvmePlace, emptying_gain, kept_percent};

#[cfg(test)]
mod tests;

/// Segments of a simulated log, as a server has them whose tier is large: the one being filled and the free ones hardly count.
const SEGMENTS: u64 = 512;
/// Room is made from so few free segments on, or this share of all, as in the server's tier.
const FREE_SEGMENTS_MIN: u64 = 2;
const FREE_SEGMENTS_SHARE: u64 = 64;

/// How fast the device is. None: its operations are done at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Speed {
    /// Bytes read in a second.
    pub read_bytes_s: Option<u64>,
    /// Bytes written in a second.
    pub write_bytes_s: Option<u64>,
}

/// A log-structured device that holds pages of one size.
pub struct Device {
    segments: Vec<Segment>,
    free: Vec<u32>,
    open: Option<u32>,
    segment_pages: usize,
    sealed: u64,
    read: Lane,
    write: Lane,
}

#[derive(Default)]
struct Segment {
    /// What was written, in order, and whether it is still needed.
    extents: Vec<(u32, bool)>,
    live: usize,
    sealed_at: u64,
}

/// Operations one after another.
struct Lane {
    page_us: u64,
    free_at_us: u64,
}

impl Device {
    /// Share of a device for so many pages that the pool may count on.
    pub fn kept_percent(pages: u64) -> u8 {
        // Small devices get their spare segments on top.
        if pages < SEGMENTS { 100 } else { kept_percent(SEGMENTS, spare(SEGMENTS)) }
    }

    /// Pages of one segment of a device for so many.
    pub fn segment_pages(pages: u64) -> u64 {
        (pages / SEGMENTS).max(1)
    }

    /// A device for so many pages of `page_bytes` (as the real model has them).
    pub fn new(pages: u64, page_bytes: u64, speed: Speed) -> Device {
        let segment_pages = Device::segment_pages(pages);
        // Small devices get their spare segments on top, or they would be nothing but spare.
        let spare = if pages < SEGMENTS { 1 + FREE_SEGMENTS_MIN } else { 0 };
        let count = (pages / segment_pages).max(1) + spare;
        Device {
            segments: (0..count).map(|_| Segment::default()).collect(),
            free: (0..count as u32).rev().collect(),
            open: None,
            segment_pages: segment_pages as usize,
            sealed: 0,
            read: Lane::new(page_bytes, speed.read_bytes_s),
            write: Lane::new(page_bytes, speed.write_bytes_s),
        }
    }

    /// Whether segments must be emptied before much more is written.
    pub fn needs_room(&self) -> bool {
        self.free.len() as u64 <= spare(self.segments.len() as u64)
    }

    /// Whether one page more can be written.
    pub fn has_room(&self) -> bool {
        self.open.is_some() || !self.free.is_empty()
    }

    /// A place for a block. None: there is no room.
    pub fn append(&mut self, block: u32) -> Option<NvmePlace> {
        let segment = match self.open {
            Some(segment) => segment,
            None => self.free.pop()?,
        };
        self.open = Some(segment);
        let this = &mut self.segments[segment as usize];
        this.extents.push((block, true));
        this.live += 1;
        let place = place(segment, this.extents.len() - 1);
        if this.extents.len() == self.segment_pages {
            self.sealed += 1;
            this.sealed_at = self.sealed;
            self.open = None;
        }
        Some(place)
    }

    /// Nobody needs a place any more; said once of each.
    pub fn forget(&mut self, place: NvmePlace) {
        let this = &mut self.segments[usize::from(place.segment)];
        let needed = std::mem::replace(&mut this.extents[place.block as usize].1, false);
        this.live -= usize::from(needed);
        if this.live == 0 && self.open != Some(place.segment.into()) && needed {
            this.extents.clear();
            self.free.push(place.segment.into());
        }
    }

    /// The full segment whose emptying pays best: little in it is to be kept (`kept`: pages, by segment), and that is old.
    pub fn worst_segment(&self, kept: impl Fn(usize) -> u64) -> Option<u32> {
        let full = self
            .segments
            .iter()
            .enumerate()
            .filter(|(_, segment)| segment.extents.len() == self.segment_pages);
        let gain = |(at, segment): &(usize, &Segment)| {
            let kept = kept(*at) as f64 / self.segment_pages as f64;
            let age = (self.sealed - segment.sealed_at) as f64 + 1.0;
            emptying_gain(kept, age)
        };
        let best = full.max_by(|one, other| gain(one).total_cmp(&gain(other)));
        best.map(|(at, _)| at as u32)
    }

    /// What of a segment is still needed, in the order written.
    pub fn live_extents(&self, segment: u32) -> Vec<(u32, NvmePlace)> {
        let extents = self.segments[segment as usize].extents.iter().enumerate();
        let live = extents.filter(|(_, (_, live))| *live);
        live.map(|(at, (block, _))| (*block, place(segment, at))).collect()
    }

    /// When a read that starts now is done.
    pub fn read_done(&mut self, now: Now) -> Now {
        self.read.done(now)
    }

    /// When a write that starts now is done.
    pub fn write_done(&mut self, now: Now) -> Now {
        self.write.done(now)
    }
}

/// Every extent is forgotten once, before its segment is used anew: one generation is enough.
fn place(segment: u32, extent: usize) -> NvmePlace {
    debug_assert!(u64::from(segment) < 2 * SEGMENTS, "there are about as many segments as in a server");
    NvmePlace { segment: segment as u16, generation: 0, block: extent as u32 }
}

/// Segments that are kept free.
fn spare(segments: u64) -> u64 {
    FREE_SEGMENTS_MIN.max(segments / FREE_SEGMENTS_SHARE)
}

impl Lane {
    fn new(page_bytes: u64, bytes_s: Option<u64>) -> Lane {
        let page_us = bytes_s.map_or(0, |rate| page_bytes.saturating_mul(1_000_000) / rate.max(1));
        Lane { page_us, free_at_us: 0 }
    }

    fn done(&mut self, now: Now) -> Now {
        if self.page_us == 0 {
            return now;
        }
        self.free_at_us = self.free_at_us.max(now * 1000) + self.page_us;
        self.free_at_us.div_ceil(1000)
    }
}
