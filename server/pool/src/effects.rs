//! What follows from decisions: whoever keeps the bytes carries it out once the lock around the pool is free.
//! Owns: the list of it. Must not know: how any of it is done.

use crate::Pool;
use crate::ids::{NvmePlace, PlaceNote};
use crate::store::presence::PageChange;
use crate::store::records::{MappedChange, SlabChange, SlotChange, SlotUse};
use crate::verbs::slabs::SlabAction;

/// What follows from the decisions since effects were taken last. Reads are not among it: a verb that wants
/// pages read names them in its answer, because its caller has to know which.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "what was decided has to be carried out"]
pub struct Effects {
    /// Slabs that changed tenant: they get fresh memory before anybody is told of slots in them.
    pub renew: Vec<SlabAction>,
    /// What became of extents, in order.
    pub notes: Vec<(NvmePlace, PlaceNote)>,
    /// Slots that changed what they hold, in order, and slabs that processes have mapped: noted in the table that outlives
    /// the process before anybody else gets the pool. Nothing unless that was asked for.
    pub slots: Vec<SlotChange>,
    /// See `slots`.
    pub mapped: Vec<MappedChange>,
    /// See `slots`.
    pub slabs: Vec<SlabChange>,
    /// Pages in DRAM that were used, in order: noted likewise, for the order in which they would leave.
    pub used: Vec<SlotUse>,
    /// Whole pages that came to a tier, or left it, in order. Nothing unless that was asked for.
    pub pages: Vec<PageChange>,
    /// Pages wait to be written that did not before.
    pub writes_ready: bool,
    /// Slots are free, or can be made free, that were not.
    pub freed: bool,
}

impl Pool {
    /// Takes what follows from the verbs called since the last time: to be carried out by whoever called them.
    pub fn take_effects(&mut self) -> Effects {
        let (notes, writes_ready) = self.store.take_nvme_effects();
        let (slots, mapped, slabs) = self.store.take_changes(&self.namespaces);
        let (used, pages) = (self.store.take_uses(), self.store.take_presence(&self.namespaces));
        let (renew, freed) = (self.take_renewals(), self.store.call.take_freed());
        Effects { renew, notes, slots, mapped, slabs, used, pages, writes_ready, freed }
    }

    fn take_renewals(&mut self) -> Vec<SlabAction> {
        let renewed = self.store.take_renewed().into_iter();
        let action = |slab: u32| {
            let (tenant, generation) = self.store.slots().owner_of_slab(slab)?;
            Some(SlabAction::Renew { slab, generation, tenant: self.namespaces.tenant(tenant).to_owned() })
        };
        renewed.filter_map(action).collect()
    }
}
