//! Notes: what is known of extents that their bytes do not tell. Owns: which of them are dead, which go before others, and of
//! which segments that is not saved yet. Must not know: where notes are kept, why an extent goes.
//!
//! A footer lists what was written, and a start finds all of that again, also what died since: garbage that takes the room of
//! what is needed until it is reclaimed. With its notes a segment is found as it was left. They name the use of the segment by
//! its nonce, and an extent dies once, so old ones are harmless: but for the extent that was lost with the power after it was
//! noted. Another one may be in its place, in the same use of the segment. So a note also says up to where the tier's sequence
//! had come, it speaks of no extent after that, and what is written once it was recalled comes after it.
//!
//! An extent that was moved is not noted: until the copy is on stable storage it may be what is left.

use super::Log;
use crate::nvme::bits::Bits;
use crate::nvme::format::Nonce;
use crate::nvme::segment::Segment;
use crate::tier::Location;
use std::collections::HashMap;

/// What is known of one segment's extents. Sets of their first blocks, a bit for each block of the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentNote {
    /// Which segment.
    pub segment: u16,
    /// Which use of it.
    pub nonce: [u8; 16],
    /// The tier's sequence when this was noted: of extents from here on it says nothing.
    pub upto: u64,
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
            let note = self.note_of(number);
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

    /// What was known of segments' extents before this start, of those that are in the same use.
    pub(crate) fn recall(&mut self, notes: &[SegmentNote]) -> Recalled {
        let mut recalled = Recalled::default();
        for note in notes {
            self.restore_sequence(note.upto);
            let segment = self.segments.get(usize::from(note.segment));
            if segment.is_some_and(|segment| is_of(note, segment)) {
                let bits = |bytes: &[u8]| Bits::from_bytes(bytes, self.segment_blocks);
                let known = Known { upto: note.upto, dead: bits(&note.dead), leaving: bits(&note.leaving) };
                recalled.0.insert(note.segment, known);
            }
        }
        recalled
    }

    /// An extent that was found is dead, or goes before others, as was known before this start.
    pub(crate) fn recall_extent(&mut self, at: Location, dead: bool, leaving: bool) {
        let segment = &mut self.segments[usize::from(at.segment)];
        if dead {
            segment.dead.insert(at.block);
        }
        if leaving {
            segment.leaving.insert(at.block);
        }
    }

    /// There may be notes that nobody can read now: what is written from here on comes after all of which they could speak.
    pub(crate) fn pass_unread_notes(&mut self) {
        let most = (self.segments.len() as u64).saturating_mul(self.segment_blocks.into());
        self.restore_sequence(self.next_sequence.saturating_add(most));
    }

    fn note_of(&self, number: u32) -> SegmentNote {
        let segment = &self.segments[number as usize];
        SegmentNote {
            segment: segment.at(number, 0).segment,
            nonce: segment.nonce.0,
            upto: self.next_sequence,
            dead: segment.dead.to_bytes(),
            leaving: segment.leaving.to_bytes(),
        }
    }
}

/// What notes said of segments that are in the same use.
#[derive(Default)]
pub(crate) struct Recalled(HashMap<u16, Known>);

struct Known {
    upto: u64,
    dead: Bits,
    leaving: Bits,
}

impl Recalled {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an extent is dead, or goes before others.
    pub(crate) fn of(&self, at: Location, sequence: u64) -> (bool, bool) {
        let known = self.0.get(&at.segment).filter(|known| sequence < known.upto);
        known.map_or((false, false), |known| (known.dead.has(at.block), known.leaving.has(at.block)))
    }
}

/// Is a note of what a segment holds now?
fn is_of(note: &SegmentNote, segment: &Segment) -> bool {
    segment.is_readable() && segment.nonce == Nonce(note.nonce)
}
