//! Slots as memory. Owns: the DRAM tier's slabs, waiting for one that is being given to another tenant, and trying again to
//! renew one that the system had no memory or descriptor for. Must not know: which page is in a slot, or why.

use super::Engine;
use crate::limits::{SLAB_RENEW_RETRY_MS, SLAB_RENEW_WAIT_MS};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use turnkv_pool::{SlabAction, SlotPlace};
use turnkv_proto::{Error, ErrorKind, NamespaceId};
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

    fn region(&self, slab: u32, generation: u32) -> Result<Arc<Region>, Error> {
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

    /// A slab is to be renewed once the system has what that takes.
    fn postpone(&self, slab: u32, generation: u32, now: Duration) {
        let mut postponed = self.postponed.lock();
        postponed.slabs.insert(slab, generation);
        postponed.retry_at = now + Duration::from_millis(SLAB_RENEW_RETRY_MS);
    }

    /// A slab that is worth another try now.
    fn take_postponed(&self, now: Duration) -> Option<(u32, u32)> {
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

impl Engine {
    /// Gives slabs that change tenant their fresh memfds. Called after every decision that may re-cut slabs, outside
    /// the pool's lock, before the answer leaves: touching a slab's memory takes milliseconds.
    pub(super) fn renew_slabs(&self, actions: Vec<SlabAction>) {
        for SlabAction::Renew { slab, generation, .. } in actions {
            self.renew_slab(slab, generation);
        }
    }

    /// Tries again to renew a slab that the system had nothing for: one at a time, because touching its memory takes long.
    pub(super) fn renew_postponed(&self) {
        let Some((slab, generation)) = self.slabs.take_postponed(self.clock.now()) else { return };
        if self.renew_slab(slab, generation) {
            self.decide().pool.slab_renewed(slab);
            tracing::info!(slab, "a slab that changes tenant has its memory: it serves again");
        }
    }

    /// Gives a slab its fresh memfd; says whether it has one now. Without, it is out of service: until the system has what it
    /// was short of, or for good where asking again would not help.
    fn renew_slab(&self, slab: u32, generation: u32) -> bool {
        let began = Instant::now();
        let renewed = self.slabs.dram.renew(slab, generation);
        self.metrics.tier_seconds.renew.record(began.elapsed());
        let has_memory = match renewed {
            None => true, // another thread has renewed it further already
            Some(Ok(region)) => {
                if let Some(nvme) = &self.nvme {
                    nvme.register(slab as usize, region);
                }
                true
            }
            Some(Err(error)) => {
                self.decide().pool.retire_slab(slab);
                if error.is_short() {
                    self.slabs.postpone(slab, generation, self.clock.now());
                    tracing::warn!(slab, %error, "a slab that changes tenant waits: it is tried again");
                } else {
                    tracing::error!(slab, %error, "no memory for a slab that changes tenant: taken out of service");
                }
                false
            }
        };
        let gate = self.slabs.gate.lock();
        self.slabs.renewed.notify_all();
        drop(gate);
        has_memory
    }

    /// The memfd of a slab, for a client of the namespace whose tenant it serves.
    pub(crate) fn attach_slab(
        &self,
        namespace: &NamespaceId,
        slab: u32,
        generation: u32,
    ) -> Result<Arc<Region>, Error> {
        let ns = self.find_namespace(namespace)?;
        {
            let core = self.decide();
            let own = core.pool.namespace_desc(ns).map(|desc| (desc.tenant.as_str(), generation));
            if own.is_none() || core.pool.slab_tenant(slab) != own {
                return Err(gone(slab, generation));
            }
        }
        self.slabs.region(slab, generation)
    }

    /// The memory of a slot that the pool has just named.
    pub(super) fn slot(&self, place: SlotPlace) -> Result<Slot, Error> {
        self.slabs.slot(place)
    }
}

fn gone(slab: u32, generation: u32) -> Error {
    let text =
        format!("slab {slab} generation {generation} does not serve this namespace (any more): begin again");
    Error::new(ErrorKind::LeaseUnknown, text)
}
