//! What cannot be read. Owns: how many unreadable extents a segment may have, and what becomes of it then.
//! Must not know: why a read failed.
//!
//! A worn segment is never written again, not even a footer: a device that loses sectors is not to be trusted
//! with more in the same place, and a write that fails would take all of it out of service.
//!
//! That a segment is worn is not kept across starts, and what forgetting it costs is bounded: a start finds
//! by itself what it cannot read (headers, footers, all of a segment without one), and of the rest each
//! unreadable extent is one miss, after [`UNREADABLE_EXTENTS_MAX`] of which the segment is worn again. A page
//! that is offloaded anew has a later copy elsewhere, so the next start does not try the old one. Sectors
//! that lost what they held are mostly well again once they are written, and errors on the way to the device
//! (a cable, a controller) are nobody's fault for ever: a start is how an operator who has mended that gets
//! the space back.

use super::Log;
use crate::limits::UNREADABLE_EXTENTS_MAX;
use crate::nvme::segment::SegmentState;
use crate::tier::Location;

impl Log {
    /// An extent cannot be read: it is dead. True: its segment had too many of these, so it is worn from now
    /// on.
    pub(crate) fn unreadable(&mut self, at: Location, payload_bytes: u32) -> bool {
        let Some(segment) = self.segments.get_mut(usize::from(at.segment)) else { return false };
        if !segment.is_current(at) || !segment.is_live(at.block) {
            return false;
        }
        segment.unreadable += 1;
        let worn = segment.unreadable >= UNREADABLE_EXTENTS_MAX && self.wear(at.segment.into());
        self.kill(at, payload_bytes); // it may be read again after the next start
        worn
    }

    /// A segment is not to be written again. False: that was known.
    pub(crate) fn wear(&mut self, number: u32) -> bool {
        if self.open == Some(number) {
            self.fill_open();
        }
        let Some(segment) = self.segments.get_mut(number as usize) else { return false };
        !std::mem::replace(&mut segment.worn, true)
    }

    /// Segments that are not written again, also those in which something is still alive.
    pub(crate) fn worn_segments(&self) -> u64 {
        self.segments.iter().filter(|segment| segment.worn).count() as u64
    }

    /// Segments of the capacity that are no longer part of it.
    pub(super) fn retired_segments(&self) -> u64 {
        let within = &self.segments[..self.limit as usize];
        within.iter().filter(|segment| segment.state == SegmentState::Retired).count() as u64
    }
}
