//! Pages whose slots are memory of the device itself, which NICs read and write. Owns: the pieces between it and the engine's
//! memory, the zeros where a page has gaps. Must not know: NICs, who is told of that memory.
//!
//! Nothing crosses the link to the host here: pieces of all sizes go as within the device.

use std::ops::Range;

use super::enqueue::request;
use super::{Act, Job, JobPage, Lane};
use crate::device::buffer::DeviceSlot;
use crate::device::choose::{by_engine, push_merged};
use crate::device::driver::{CopyRequest, DeviceError};
use crate::limits::STAGED_PIECE_BYTES_MAX;

impl Lane {
    /// The pieces between a part of a lent slot and a page's memory.
    pub(super) fn push_lent(
        &self,
        job: &Job,
        page: &JobPage,
        slot: &DeviceSlot,
        part: Range<usize>,
        pieces: &mut Vec<CopyRequest>,
    ) {
        self.core.stats.device_bytes.add(part.len() as u64);
        self.core.stats.lent_bytes.add(part.len() as u64);
        for run in page.plan.within(part) {
            let place = slot.address() + run.slot_offset as u64;
            push_merged(pieces, request(job.to_slots(), run.memory, place, run.bytes));
        }
    }

    /// Enqueues zeros for the gaps of a page: what another page left there is sent to nobody.
    pub(super) fn blank_lent(
        &mut self,
        job: &Job,
        page: &JobPage,
        slot: &DeviceSlot,
    ) -> Result<(), DeviceError> {
        let Some(longest) = page.plan.gaps().map(|gap| gap.len()).max() else { return Ok(()) };
        let piece_bytes = longest.min(STAGED_PIECE_BYTES_MAX).min(self.staging.len() / 2);
        let zeros = self.take_staging(job, piece_bytes)?;
        // SAFETY: the piece was just taken: nothing that is enqueued uses it.
        unsafe { zeros.bytes_mut() }.fill(0);
        let mut pieces = Vec::new();
        for gap in page.plan.gaps() {
            for start in gap.clone().step_by(piece_bytes) {
                let (target, bytes) = (slot.address() + start as u64, piece_bytes.min(gap.end - start));
                pieces.push(CopyRequest { target, source: zeros.address(), bytes });
            }
        }
        let mut work = Vec::new();
        by_engine(pieces, self.means, &mut work);
        work.into_iter().try_for_each(|work| self.work(job, work, self.stream))?;
        self.used.staging = self.staging.end();
        self.step(Act::Nothing);
        Ok(())
    }
}
