//! Slabs that change tenant. Owns: giving them fresh memory, trying again where the system had none, and whom a slab is shown
//! to. Must not know: which page is in a slot, why a slab changes its tenant.

use super::Engine;
use super::slabs::gone;
use std::sync::Arc;
use std::time::Instant;
use turnkv_pool::{SlabAction, SlotPlace};
use turnkv_proto::{Error, NamespaceId};
use turnkv_transfer::{Region, Slot};

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
        // Nobody has a lease on it, so no transfer touches it. Its pages go back to the system only when no NIC has them.
        if let Some((before, old)) = self.slabs.dram.region(slab).filter(|(_, current)| *current < generation)
        {
            self.remote.detach(&before);
            if let Some(outliving) = &self.outliving {
                outliving.let_go(slab, old);
            }
        }
        let renewed = self.slabs.dram.renew(slab, generation);
        self.metrics.tier_seconds.renew.record(began.elapsed());
        let has_memory = match renewed {
            None => true, // another thread has renewed it further already
            Some(Ok(region)) => {
                self.remote.attach(&region);
                if let Some(outliving) = &self.outliving {
                    outliving.keep(slab, generation, &region);
                }
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
        self.slabs.tell_renewed();
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
