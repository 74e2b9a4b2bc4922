//! One segment's books. Owns: its state, its cursor, which of its extents are live, operations in flight on
//! it. Must not know: other segments, files' contents, threads.
//!
//! ```text
//! Absent -> Making -> Ready -> Open -> Full -> Sealing -> Sealed -> Claimed
//!              ^                                             |         |
//!            Blank <- Blanking <- Vacant <- Leaving <--------+---------+
//!                                              |                       |
//!                                              +-------> Retired <-----+
//! ```
//!
//! A worn segment, one in which several extents could not be read, goes the same way without being written
//! again: it is sealed without a footer, and ends as retired, where what is still alive in it can be read
//! until it is forgotten.

use super::bits::Bits;
use super::format::{Nonce, Record, extent_blocks};
use super::packed::PackedExtents;
use super::segment_file::SegmentFile;
use crate::limits::BLOCK_BYTES;
use crate::tier::Location;
use std::sync::Arc;

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// It has no file yet.
    Absent,
    /// It has a file; nothing in it counts. It is not overwritten before what replaced its extents is synced.
    Vacant,
    /// The keeper is writing an empty footer under a new nonce.
    Blanking,
    /// Empty, and says so on the device.
    Blank,
    /// The keeper is preparing it for extents.
    Making,
    /// Empty and next in line.
    Ready,
    /// Takes extents.
    Open,
    /// Takes no more; writes in flight must end before its footer is written.
    Full,
    /// The keeper is writing its footer.
    Sealing,
    /// Has its footer.
    Sealed,
    /// Handed out as a candidate for reclaim.
    Claimed,
    /// Released; reads in flight must end first.
    Leaving,
    /// Never written again.
    Retired,
}

/// One segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) state: SegmentState,
    pub(crate) file: Option<Arc<SegmentFile>>,
    pub(crate) nonce: Nonce,
    /// The next free block.
    pub(crate) cursor: u32,
    /// Extents placed, until the footer has them.
    pub(crate) records: Vec<Record>,
    /// The tier's sequence when it was filled: its age.
    pub(crate) filled_at: u64,
    pub(crate) live_bytes: u64,
    /// What live extents would take if none were packed.
    pub(crate) plain_bytes: u64,
    pub(crate) live_extents: u32,
    pub(crate) reads: u32,
    pub(crate) writes: u32,
    /// Which use of the segment this is: places of an earlier one name nothing.
    pub(crate) generation: u16,
    /// The log's count of changes at the last one in here that no sync has covered; 0 when all are covered.
    pub(crate) changed_at: u64,
    /// The log's count of changes when nothing in here was needed any more: a sync must cover these before it
    /// is overwritten.
    pub(crate) released_at: u64,
    /// It is not to be written again.
    pub(crate) worn: bool,
    /// Extents that could not be read, in this process's time.
    pub(crate) unreadable: u32,
    /// Extents that take fewer bytes than their payloads have.
    packed: PackedExtents,
    /// Extents that somebody needs.
    live: Bits,
    /// Extents that nobody needs any more, which their bytes do not tell.
    pub(crate) dead: Bits,
    /// Extents that go before others, as their owner says.
    pub(crate) leaving: Bits,
}

impl Segment {
    /// A segment without a file.
    pub(crate) fn absent() -> Segment {
        Segment {
            state: SegmentState::Absent,
            file: None,
            nonce: Nonce([0; 16]),
            cursor: 1,
            records: Vec::new(),
            filled_at: 0,
            live_bytes: 0,
            plain_bytes: 0,
            live_extents: 0,
            reads: 0,
            writes: 0,
            generation: 0,
            changed_at: 0,
            released_at: 0,
            worn: false,
            unreadable: 0,
            packed: PackedExtents::default(),
            live: Bits::default(),
            dead: Bits::default(),
            leaving: Bits::default(),
        }
    }

    /// May its extents be read?
    pub(crate) fn is_readable(&self) -> bool {
        let states = [
            SegmentState::Open,
            SegmentState::Full,
            SegmentState::Sealing,
            SegmentState::Sealed,
            SegmentState::Claimed,
            SegmentState::Retired,
        ];
        states.contains(&self.state)
    }

    /// Does it take space that a new extent could not have? What is retired is no longer part of the tier's
    /// space.
    pub(crate) fn is_used(&self) -> bool {
        self.state != SegmentState::Retired && (self.is_readable() || self.state == SegmentState::Leaving)
    }

    /// The place of an extent in this use of the segment.
    pub(crate) fn at(&self, number: u32, block: u32) -> Location {
        Location { generation: self.generation, ..first_use(number, block) }
    }

    /// Does a place name this use of the segment?
    pub(crate) fn is_current(&self, at: Location) -> bool {
        self.generation == at.generation
    }

    /// Empties the books, for the next use under a new nonce: places that were given out name nothing any
    /// more.
    pub(crate) fn clear(&mut self) {
        debug_assert!(
            self.reads == 0 && self.writes == 0,
            "nothing is in flight on a segment that is reused"
        );
        self.cursor = 1;
        self.records = Vec::new();
        self.packed = PackedExtents::default();
        (self.live, self.dead, self.leaving) = (Bits::default(), Bits::default(), Bits::default());
        self.live_bytes = 0;
        self.plain_bytes = 0;
        self.live_extents = 0;
        self.changed_at = 0;
        self.generation = self.generation.wrapping_add(1);
    }

    /// An extent has its place.
    pub(crate) fn add(&mut self, record: &Record) {
        if record.is_packed() {
            self.packed.insert(record.block, record.stored_bytes);
        }
    }

    /// Is any extent of it packed?
    pub(crate) fn has_packed(&self) -> bool {
        !self.packed.is_empty()
    }

    /// Bytes of an extent's payload on the device.
    pub(crate) fn stored_bytes(&self, block: u32, payload_bytes: u32) -> u32 {
        self.packed.get(block).unwrap_or(payload_bytes)
    }

    pub(crate) fn is_live(&self, block: u32) -> bool {
        self.live.has(block)
    }

    /// Marks an extent live; returns the bytes it adds.
    pub(crate) fn revive(&mut self, block: u32, payload_bytes: u32) -> u64 {
        let is_new = self.live.insert(block);
        debug_assert!(is_new, "an extent comes alive once");
        let bytes = extent_bytes(self.stored_bytes(block, payload_bytes));
        self.live_bytes += bytes;
        self.plain_bytes += extent_bytes(payload_bytes);
        self.live_extents += 1;
        bytes
    }

    /// Marks an extent dead; returns the bytes that frees, 0 if it was not live.
    pub(crate) fn kill(&mut self, block: u32, payload_bytes: u32) -> u64 {
        if !self.live.remove(block) {
            return 0;
        }
        let bytes = extent_bytes(self.stored_bytes(block, payload_bytes)).min(self.live_bytes);
        self.live_bytes -= bytes;
        self.plain_bytes -= extent_bytes(payload_bytes).min(self.plain_bytes);
        self.live_extents -= 1;
        bytes
    }

    /// Live extents' header blocks, ascending.
    pub(crate) fn live_blocks(&self) -> Vec<u32> {
        self.live.blocks().collect()
    }
}

/// The place of an extent in what recovery finds.
pub(crate) fn first_use(number: u32, block: u32) -> Location {
    let segment = u16::try_from(number).unwrap_or(u16::MAX);
    debug_assert_eq!(u32::from(segment), number, "SEGMENTS_MAX numbers fit");
    Location { segment, generation: 0, block }
}

/// Bytes an extent takes.
pub(crate) fn extent_bytes(payload_bytes: u32) -> u64 {
    u64::from(extent_blocks(payload_bytes)) * BLOCK_BYTES
}
