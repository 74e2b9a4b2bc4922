//! Slots as memory. Owns: the DRAM tier's slabs, waiting for one that is being given to another tenant, and trying again to
//! renew one that the system had no memory or descriptor for. Must not know: which page is in a slot, or why.

use crate::limits::{SLAB_RENEW_RETRY_MS, SLAB_RENEW_WAIT_MS};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_pool::SlotPlace;
use turnkv_proto::{Error, ErrorKind};
use turnkv_tier::dram::DramTier;
use turnkv_transfer::{Region, Slot};

/// The slabs, and a bell for those who wait for a renewed one.
pub(super) struct Slabs {
    pub(super) dram: DramTier,
    renewed: Condvar,
    gate: Mutex<()>,
    postponed: Mutex<Postponed>,
}

/// Slabs out of service until the system has memory and a descriptor for them: the generation of each. Bounded by the number
/// of slabs.
#[derive(Default)]
struct Postponed {
    slabs: BTreeMap<u32, u32>,
    /// Not tried again before.
    retry_at: Duration,
}

impl Slabs {
    pub(super) fn new(dram: DramTier) -> Slabs {
        Slabs { dram, renewed: Condvar::new(), gate: Mutex::new(()), postponed: Mutex::default() }
    }

    /// The memory of a place. A slab that another thread is renewing right now is waited for, within a bound.
    pub(super) fn slot(&self, place: SlotPlace) -> Result<Slot, Error> {
        let find = || self.dram.slot(place.slab, place.generation, place.offset, place.bytes);
        self.wait_for(place.slab, place.generation, find)
    }

    /// The memory of a whole slab, waited for likewise.
    pub(super) fn region(&self, slab: u32, generation: u32) -> Result<Arc<Region>, Error> {
        let find =
            || self.dram.region(slab).filter(|(_, current)| *current == generation).map(|(region, _)| region);
        self.wait_for(slab, generation, find)
    }

    /// What an operator should know of the page memory; empty when all is well.
    pub(super) fn note(&self) -> String {
        let report = self.dram.report();
        let postponed = self.postponed.lock().slabs.len();
        let short = (postponed > 0).then(|| {
            format!("{postponed} slabs wait for memory or file descriptors: free memory, or raise the limit of open files")
        });
        let notes = [report.lock_warning, report.huge_warning, short];
        notes.into_iter().flatten().collect::<Vec<String>>().join("; ")
    }

    /// A slab has its memory, or is out of service: whoever waits for it looks again.
    pub(super) fn tell_renewed(&self) {
        let gate = self.gate.lock();
        self.renewed.notify_all();
        drop(gate);
    }

    /// A slab is to be renewed once the system has what that takes.
    pub(super) fn postpone(&self, slab: u32, generation: u32, now: Duration) {
        let mut postponed = self.postponed.lock();
        postponed.slabs.insert(slab, generation);
        postponed.retry_at = now + Duration::from_millis(SLAB_RENEW_RETRY_MS);
    }

    /// A slab that is worth another try now.
    pub(super) fn take_postponed(&self, now: Duration) -> Option<(u32, u32)> {
        let mut postponed = self.postponed.lock();
        if now < postponed.retry_at { None } else { postponed.slabs.pop_first() }
    }

    /// What is found in a slab of this generation; waits only for a renewal that another thread has still to make.
    fn wait_for<T>(&self, slab: u32, generation: u32, find: impl Fn() -> Option<T>) -> Result<T, Error> {
        let deadline = Instant::now() + Duration::from_millis(SLAB_RENEW_WAIT_MS);
        let mut gate = None;
        loop {
            if let Some(found) = find() {
                return Ok(found);
            }
            let waited = match &mut gate {
                None => false,
                Some(gate) => self.renewed.wait_until(gate, deadline).timed_out(),
            };
            if waited || !self.dram.awaits(slab, generation) {
                return find().ok_or_else(|| gone(slab, generation));
            }
            gate.get_or_insert_with(|| self.gate.lock());
        }
    }
}

/// A slab that is not of who asks for it.
pub(super) fn gone(slab: u32, generation: u32) -> Error {
    let text =
        format!("slab {slab} generation {generation} does not serve this namespace (any more): begin again");
    Error::new(ErrorKind::LeaseUnknown, text)
}
