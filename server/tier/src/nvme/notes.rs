//! Notes about extents: the tier's side of keeping them across restarts. Owns: handing them out, and taking
//! them in again at a start. Must not know: where they are kept.

use super::NvmeTier;
use super::config::Recovered;
use super::log::SegmentNote;
use crate::tier::Location;

impl NvmeTier {
    /// An extent has another place now. As [`NvmeTier::forget`], but nothing is noted: until that copy is
    /// on stable storage, this one may be what a start finds.
    pub fn forget_moved(&self, at: Location, payload_bytes: u32) {
        self.end_extent(|log| {
            log.kill(at, payload_bytes);
        });
    }

    /// An extent goes before others, or does not any more: said again by [`NvmeTier::recall`] after a
    /// restart.
    pub fn note_leaving(&self, at: Location, leaving: bool) {
        self.placer.core.books.lock().log.note_leaving(at, leaving);
    }

    /// Takes the notes of segments that changed, about so many bytes: to be kept for [`NvmeTier::recall`],
    /// where a later one of a segment replaces an earlier one.
    pub fn take_notes(&self, bytes_max: usize) -> Vec<SegmentNote> {
        self.placer.core.books.lock().log.take_notes(bytes_max)
    }

    /// Notes that were taken could not be kept: they are handed out again.
    pub fn notes_failed(&self, notes: &[SegmentNote]) {
        self.placer.core.books.lock().log.notes_failed(notes);
    }

    /// All that was kept is lost: all that is known is handed out again.
    pub fn note_all_again(&self) {
        self.placer.core.books.lock().log.note_all_again();
    }

    /// Segments whose notes are to be taken.
    pub fn notes_waiting(&self) -> usize {
        self.placer.core.books.lock().log.notes_waiting()
    }

    /// Before anything else is asked of a tier that was just opened: what was noted of the extents that it
    /// found. Those that nobody needed any more go from the list, and their space is free; of the others it
    /// says which go first. Returns how many went.
    pub fn recall(&self, notes: &[SegmentNote], recovered: &mut Vec<Recovered>) -> u64 {
        let recalled = self.placer.core.books.lock().log.recall(notes);
        if recalled.is_empty() {
            return 0;
        }
        let before = recovered.len();
        recovered.retain_mut(|extent| {
            let (dead, leaving) = recalled.of(extent.at, extent.sequence);
            extent.leaving = leaving;
            self.placer.core.books.lock().log.recall_extent(extent.at, dead, leaving);
            if dead {
                self.forget_moved(extent.at, extent.meta.payload_bytes);
            }
            !dead
        });
        (before - recovered.len()) as u64
    }

    /// In place of [`NvmeTier::recall`], where what was noted cannot be read now: once it can, it must not be
    /// taken for a word about extents that are written from here on.
    pub fn recall_nothing(&self) {
        self.placer.core.books.lock().log.pass_unread_notes();
    }
}
