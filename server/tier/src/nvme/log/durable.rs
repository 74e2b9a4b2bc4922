//! What a sync covers. Owns: the count of changes that are on stable storage, and the rule of reuse.
//! Must not know: who asks for a sync, how a file is synced.
//!
//! What is written and not synced may be gone after power loss, or may be there, in any order: also the
//! header under which a segment is used anew. So a segment that was released may be written again only when
//! everything written before its release is on stable storage: the copies that were moved out of it, and
//! whatever replaced an extent of it.

use super::Log;
use crate::limits::{RELEASE_WAIT, RELEASES_PER_SYNC};
use crate::nvme::segment_file::SegmentFile;
use std::sync::Arc;
use std::time::Instant;

/// One sync: these files hold every change up to a point. Several may be under way at once.
#[derive(Debug)]
pub(crate) struct Round {
    pub(crate) files: Vec<Arc<SegmentFile>>,
    upto: u64,
}

impl Log {
    /// What is to be synced now. A segment counts as changed until [`Log::sync_ended`], so that whoever asks
    /// meanwhile waits for it too.
    pub(crate) fn begin_sync(&self) -> Round {
        let mut files: Vec<Arc<SegmentFile>> = Vec::new();
        for file in self
            .segments
            .iter()
            .filter(|segment| segment.changed_at > 0)
            .filter_map(|segment| segment.file.as_ref())
        {
            if !files.iter().any(|other| other.same_file(file)) {
                files.push(Arc::clone(file));
            }
        }
        Round { files, upto: self.changes }
    }

    /// All files of a round are synced.
    pub(crate) fn sync_ended(&mut self, round: &Round) {
        self.synced = self.synced.max(round.upto);
        for segment in &mut self.segments {
            if segment.changed_at <= round.upto {
                segment.changed_at = 0;
            }
        }
        self.waiting_since = None;
    }

    /// Released segments that are not used again before a sync.
    pub(crate) fn waiting_segments(&self) -> u64 {
        let released = self.vacant.iter().chain(&self.leaving);
        released.filter(|number| self.waits(**number)).count() as u64
    }

    /// Is a change that a segment's reuse rests on not synced yet?
    fn waits(&self, number: u32) -> bool {
        self.segments[number as usize].released_at > self.synced
    }

    /// Is it time to sync for released segments? One sync serves all of them, so it is put off while others
    /// are free.
    pub(super) fn sync_is_due(&mut self, now: Instant) -> bool {
        let waiting = self.waiting_segments();
        if waiting == 0 {
            return false;
        }
        let since = *self.waiting_since.get_or_insert(now);
        let wanted = self.wants_segment();
        wanted || waiting >= RELEASES_PER_SYNC || now >= since + RELEASE_WAIT
    }

    /// When the wait for company ends.
    pub(super) fn sync_due_at(&self) -> Option<Instant> {
        self.waiting_since.map(|since| since + RELEASE_WAIT)
    }

    /// A released segment that may be written again.
    pub(super) fn take_vacant(&mut self) -> Option<u32> {
        let position = self.vacant.iter().position(|number| !self.waits(*number))?;
        self.vacant.remove(position)
    }

    /// An empty surplus segment that may be given back.
    pub(super) fn take_leaving(&mut self) -> Option<u32> {
        let position = self.leaving.iter().position(|number| !self.waits(*number))?;
        self.leaving.remove(position)
    }
}
