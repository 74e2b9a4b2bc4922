//! What recovery puts into the books of a new log, before anything else happens. Owns: the state that a
//! segment found on the device begins with. Must not know: how it was found.

use super::super::format::{Nonce, Record, entry_blocks};
use super::super::segment::{Segment, SegmentState};
use super::super::segment_file::SegmentFile;
use super::Log;
use crate::tier::Location;
use std::sync::Arc;

impl Log {
    /// A segment found on the device. `sealed`: it has a footer.
    pub(crate) fn restore(&mut self, number: u32, file: Option<SegmentFile>, found: Found) {
        self.absent.retain(|absent| *absent != number);
        if number as usize >= self.segments.len() {
            self.segments.resize_with(number as usize + 1, Segment::absent);
        }
        let segment = &mut self.segments[number as usize];
        segment.file = file.map(Arc::new);
        match found {
            Found::Vacant => {
                segment.state = SegmentState::Vacant;
                self.vacant.push_back(number);
            }
            Found::Blank => {
                segment.state = SegmentState::Blank;
                self.blank.push_back(number);
            }
            Found::Lost => segment.state = SegmentState::Retired,
            Found::Extents { nonce, records, sealed } => {
                segment.nonce = nonce;
                segment.cursor = records.last().map_or(1, |last| last.block + last.blocks());
                records.iter().for_each(|record| segment.add(record));
                segment.filled_at = records.iter().map(|record| record.sequence).max().unwrap_or(0);
                if sealed {
                    segment.state = SegmentState::Sealed; // a footer is written after its extents were synced
                } else {
                    segment.state = SegmentState::Full;
                    segment.changed_at = self.changes;
                    segment.records = records;
                    self.full.push_back(number);
                }
            }
        }
    }

    /// An extent of a restored segment is the newest of its shard.
    pub(crate) fn restore_live(&mut self, at: Location, payload_bytes: u32) {
        self.live_bytes += self.segments[usize::from(at.segment)].revive(at.block, payload_bytes);
        self.live_extents += 1;
    }

    /// The tier's sequence goes on above `highest`.
    pub(crate) fn restore_sequence(&mut self, highest: u64) {
        self.next_sequence = self.next_sequence.max(highest.saturating_add(1));
    }

    /// Goes on filling a restored segment that has no footer.
    pub(crate) fn resume(&mut self, number: u32) {
        assert!(self.open.is_none(), "one segment is open at a time");
        self.full.retain(|full| *full != number);
        self.segments[number as usize].state = SegmentState::Open;
        self.open = Some(number);
    }

    /// Is there enough room behind these records to go on?
    pub(crate) fn worth_resuming(&self, records: &[Record]) -> bool {
        let cursor = records.last().map_or(1, |last| last.block + last.blocks());
        let footer = entry_blocks(records.len()) + 1;
        cursor.saturating_add(footer) <= self.segment_blocks - self.segment_blocks / 8
    }

    /// Restored segments without a live extent are free, once a sync covers what replaced theirs.
    pub(crate) fn release_empty(&mut self) {
        for number in 0..self.segments.len() as u32 {
            let segment = &self.segments[number as usize];
            if segment.state == SegmentState::Sealed && segment.live_extents == 0 {
                self.leave(number);
            }
        }
    }
}

/// What recovery found in one segment.
#[derive(Debug)]
pub(crate) enum Found {
    /// Nothing that counts.
    Vacant,
    /// An empty footer.
    Blank,
    /// Nothing that can be read, or something that is no segment: it is left alone.
    Lost,
    /// Extents, in order of their blocks.
    Extents { nonce: Nonce, records: Vec<Record>, sealed: bool },
}
