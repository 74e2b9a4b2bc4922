//! Notes: what is known of extents that their bytes do not tell. Owns: which of them are dead, which go before others, and of
//! which segments that is not saved yet. Must not know: where notes are kept, why an extent goes.
//!
//! A footer lists what was written, and a start finds all of that again, also what died since: garbage that takes the room of
//! what is needed until it is reclaimed. With its notes a segment is found as it was left. They name the use of the segment by
//! its nonce, and an extent dies once, so old ones are harmless.
//!
//! An extent that was moved is not noted: until the copy is on stable storage it may be what is left.

use super::Log;
use crate::nvme::bits::Bits;
use crate::nvme::format::Nonce;
use crate::nvme::segment::Segment;
use crate::tier::Location;

/// What is known of one segment's extents. Sets of their first blocks, a bit for each block of the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentNote {
    /// Which segment.
    pub segment: u16,
    /// Which use of it.
    pub nonce: [u8; 16],
    /// Those that nobody needs any more.
    pub dead: Vec<u8>,
    /// Those that go before others.
    pub leaving: Vec<u8>,
}

impl SegmentNote {
    fn bytes(&self) -> usize {
        self.dead.len() + self.leaving.len() + size_of::<SegmentNote>()
    }
}

impl Log {
    pub(super) fn note_dead(&mut self, at: Location) {
        let segment = &mut self.segments[usize::from(at.segment)];
        // A segment that has just become free is written anew, which says all.
        if segment.is_current(at) && segment.is_readable() && segment.dead.insert(at.block) {
            self.unsaved.insert(at.segment.into());
        }
    }

    /// An extent goes before others, or does not any more.
    pub(crate) fn note_leaving(&mut self, at: Location, leaving: bool) {
        let Some(segment) = self.segments.get_mut(usize::from(at.segment)) else { return };
        if !segment.is_current(at) || !segment.is_live(at.block) {
            return;
        }
        let bits = &mut segment.leaving;
        if if leaving { bits.insert(at.block) } else { bits.remove(at.block) } {
            self.unsaved.insert(at.segment.into());
        }
    }

    /// Takes the notes that are to be saved, of one segment at least and of so many bytes at most; segments take turns.
    pub(crate) fn take_notes(&mut self, bytes_max: usize) -> Vec<SegmentNote> {
        let (mut notes, mut bytes) = (Vec::new(), 0);
        while bytes < bytes_max
            && let Some(number) =
                self.unsaved.range(self.noted + 1..).next().or(self.unsaved.first()).copied()
        {
            self.unsaved.remove(&number);
            self.noted = number;
            let note = note_of(number, &self.segments[number as usize]);
            bytes += note.bytes();
            notes.push(note);
        }
        notes
    }

    /// Notes that were taken could not be saved.
    pub(crate) fn notes_failed(&mut self, notes: &[SegmentNote]) {
        let is_current = |note: &&SegmentNote| {
            self.segments.get(usize::from(note.segment)).is_some_and(|segment| is_of(note, segment))
        };
        let again: Vec<u32> = notes.iter().filter(is_current).map(|note| note.segment.into()).collect();
        self.unsaved.extend(again);
    }

    /// What was saved is gone: all that is known is to be saved again.
    pub(crate) fn note_all_again(&mut self) {
        let known = |segment: &Segment| !segment.dead.is_empty() || !segment.leaving.is_empty();
        let noted = self.segments.iter().enumerate().filter(|(_, segment)| known(segment));
        self.unsaved.extend(noted.map(|(number, _)| number as u32));
    }

    /// Segments whose notes are to be saved.
    pub(crate) fn notes_waiting(&self) -> usize {
        self.unsaved.len()
    }

    /// What was known of a segment's extents before this start; false: that was another use of it.
    pub(crate) fn recall(&mut self, note: &SegmentNote) -> bool {
        let blocks = self.segment_blocks;
        let segment = self.segments.get_mut(usize::from(note.segment));
        let Some(segment) = segment.filter(|segment| is_of(note, segment)) else { return false };
        segment.dead = Bits::from_bytes(&note.dead, blocks);
        segment.leaving = Bits::from_bytes(&note.leaving, blocks);
        true
    }

    /// Whether an extent was recalled as dead, or as one that goes before others.
    pub(crate) fn recalled(&self, at: Location) -> (bool, bool) {
        let segment = &self.segments[usize::from(at.segment)];
        (segment.dead.has(at.block), segment.leaving.has(at.block))
    }
}

fn note_of(number: u32, segment: &Segment) -> SegmentNote {
    SegmentNote {
        segment: segment.at(number, 0).segment,
        nonce: segment.nonce.0,
        dead: segment.dead.to_bytes(),
        leaving: segment.leaving.to_bytes(),
    }
}

/// Is a note of what a segment holds now?
fn is_of(note: &SegmentNote, segment: &Segment) -> bool {
    segment.is_readable() && segment.nonce == Nonce(note.nonce)
}
