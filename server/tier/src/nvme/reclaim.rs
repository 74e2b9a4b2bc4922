//! Reclaim's side of the tier: which segment, what is alive in it, and letting it go. Owns: reading a sealed
//! segment's extents back. Must not know: which pages are worth keeping.

use super::NvmeTier;
use super::buffer::AlignedBuffer;
use super::config::{Candidate, SealedSegment};
use super::core::Core;
use super::format::{Nonce, Record, decode_extent};
use super::log::spare_segments;
use super::recover::read_footer;
use super::segment_file::SegmentFile;
use crate::limits::BLOCK;
use std::sync::Arc;

impl NvmeTier {
    /// Is free space low enough to reclaim?
    pub fn needs_reclaim(&self) -> bool {
        let core = &self.placer.core;
        core.poisoned().is_none() && core.books.lock().log.needs_reclaim()
    }

    /// Claims the sealed segment of which the most is gained, as its caller says, with what is alive in it.
    /// Reads its footer from the device: call it where blocking for that is fine. Then forget or
    /// [`NvmeTier::rewrite`] what matters and [`NvmeTier::release`] it, or [`NvmeTier::keep`] it.
    pub fn reclaim_candidate(&self, gain: impl Fn(&SealedSegment) -> f64) -> Option<Candidate> {
        let core = &self.placer.core;
        if core.check_open().is_err() {
            return None;
        }
        let (segment, file, nonce) = {
            let mut books = core.books.lock();
            let segment = books.log.claim(gain)?;
            let claimed = books.log.segment(segment);
            (segment, Arc::clone(claimed.file.as_ref()?), claimed.nonce)
        };
        Some(self.live_extents(segment, &file, &nonce))
    }

    /// Segments that there are, how many of them reclaim keeps free, and the bytes of one.
    pub fn geometry(&self) -> (u64, u64, u64) {
        let device = &self.placer.core.device;
        (device.segments.into(), spare_segments(device.segments.into()), device.segment_bytes)
    }

    /// Bytes of the largest extent that there is room to move, now or soon. Where there is none, a segment is
    /// emptied only by what is dropped.
    pub fn movable_bytes(&self) -> u32 {
        self.placer.core.books.lock().log.movable_bytes()
    }

    /// Bytes that the tier can have now, and the share of them that reclaim keeps free, in segments: less
    /// than configured while the disk is full.
    pub fn capacity(&self) -> (u64, u64) {
        let segments = self.placer.core.books.lock().log.capacity_segments();
        (segments, spare_segments(segments))
    }

    /// Bytes that what is alive would take as it is, for each hundred bytes that it takes: more than 100 where pages are packed.
    pub fn packing_percent(&self) -> u64 {
        self.placer.core.books.lock().log.packing_percent()
    }

    /// Everything in a claimed segment is dead. It is reused when reads in flight on it have ended, and when
    /// what was written until now, so also what was moved out of it, is on stable storage.
    pub fn release(&self, segment: u16) {
        let core = &self.placer.core;
        if !core.books.lock().log.release(segment.into()) {
            tracing::debug!(segment, "a segment that is not claimed is not released");
        }
        core.chore.notify_one();
    }

    /// Gives a claimed segment back unreclaimed.
    pub fn keep(&self, segment: u16) {
        self.placer.core.books.lock().log.keep(segment.into());
    }

    fn live_extents(&self, segment: u32, file: &SegmentFile, nonce: &Nonce) -> Candidate {
        let core = &self.placer.core;
        let footer = match read_footer(file, segment, nonce, core.device.segment_blocks()) {
            Ok(footer) => footer,
            Err(error) => {
                if core.books.lock().log.wear(segment) {
                    tracing::warn!(segment, %error, "a footer cannot be read: its segment is not written again");
                }
                None
            }
        };
        let records = footer.unwrap_or_else(|| self.read_headers(core, segment, file, nonce));
        let books = core.books.lock();
        let claimed = books.log.segment(segment);
        let live = records.into_iter().filter(|record| claimed.is_live(record.block));
        let extents = live.map(|record| (record.meta, claimed.at(segment, record.block))).collect();
        let surplus = books.log.is_surplus(segment);
        Candidate {
            segment: claimed.at(segment, 0).segment,
            surplus,
            live_bytes: claimed.live_bytes,
            extents,
        }
    }

    /// The footer rotted, or there is none: every live extent also says itself what it is. One that does not
    /// is left to whoever knows of it.
    fn read_headers(&self, core: &Core, segment: u32, file: &SegmentFile, nonce: &Nonce) -> Vec<Record> {
        let blocks = core.books.lock().log.segment(segment).live_blocks();
        tracing::warn!(
            segment,
            extents = blocks.len(),
            "no footer verifies: extents' headers are read instead"
        );
        let mut buffer = AlignedBuffer::new(BLOCK);
        let mut records = Vec::new();
        for block in blocks {
            let read = file.read(block, &mut buffer).map_err(|error| error.to_string());
            let record = read.and_then(|()| {
                decode_extent(&buffer, segment, block, nonce).ok_or_else(|| "it does not verify".to_owned())
            });
            match record {
                Ok(record) => records.push(record),
                Err(why) => {
                    // Written again, the segment would lose an extent that its owner counts on.
                    tracing::warn!(
                        segment,
                        block,
                        why,
                        "an extent's header cannot be read: its segment is not written again"
                    );
                    core.books.lock().log.wear(segment);
                }
            }
        }
        records
    }
}
