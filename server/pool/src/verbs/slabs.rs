//! Slabs, as their memory's keeper asks of them: how many there are, which change tenant, fail, come and go. Owns: the verbs.
//! Must not know: memory files.

use crate::Pool;
use crate::config::Limits;
use crate::ids::{Now, SlotKey, SlotPlace};
use crate::store::shrink::Shrink;

/// What must be done to a slab before grants in it are handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlabAction {
    /// The slab changed tenant: it needs a fresh memory file.
    Renew {
        /// Which slab.
        slab: u32,
        /// The generation of the new file.
        generation: u32,
        /// Whose it is now.
        tenant: String,
    },
}

impl Pool {
    /// Where a slot's bytes are. None: no such slot as the slab is cut now.
    pub fn slot_place(&self, slot: SlotKey) -> Option<SlotPlace> {
        self.store.slots().place(slot)
    }

    /// Whose slab it is and its generation. None: no such slab, or nobody's yet.
    pub fn slab_tenant(&self, slab: u32) -> Option<(&str, u32)> {
        let (tenant, generation) = self.store.slots().owner_of_slab(slab)?;
        Some((self.namespaces.tenant(tenant), generation))
    }

    /// DRAM is to have so many slabs from now on, one at least. It grows by [`Pool::slab_to_make`], and shrinks by
    /// [`Pool::shrink_some`]; what was asked for before does not count any more.
    pub fn resize_dram(&mut self, slabs: u32, now: Now) {
        self.store.tick(now);
        self.store.resize_dram(slabs.max(1));
    }

    /// Shares of DRAM are as large as these say from now on: what clients, users and all may lease, and what is kept free. What
    /// was granted under others stays.
    pub fn set_shares(&mut self, shares: &Limits, free_slots_percent: u8) {
        self.store.set_shares(shares, free_slots_percent);
    }

    /// Empties slabs that are too many, the one used longest ago first, a little: call it until it says that it is done.
    pub fn shrink_some(&mut self, now: Now) -> Shrink {
        self.store.tick(now);
        self.store.shrink_some()
    }

    /// Slabs that are not among those of DRAM any more, each with the generation in which it has no memory: its memory goes
    /// back. At most so many at a time.
    pub fn take_left_slabs(&mut self, most: usize) -> Vec<(u32, u32)> {
        self.store.take_left_slabs(most)
    }

    /// The slab that is to have memory next, and its generation then. None: there are as many as there are to be.
    pub fn slab_to_make(&mut self) -> Option<(u32, u32)> {
        self.store.call.begin();
        self.store.slab_to_make()
    }

    /// It has its memory, of zeros: it serves.
    pub fn slab_made(&mut self, slab: u32) {
        self.store.slab_made(slab);
    }

    /// Takes a slab out of service, until [`Pool::slab_renewed`]: its memory could not be renewed. Leases in
    /// it end as any do.
    pub fn retire_slab(&mut self, slab: u32) {
        self.store.retire_slab(slab);
    }

    /// A slab that was taken out of service has memory: it serves again.
    pub fn slab_renewed(&mut self, slab: u32) {
        self.store.return_slab(slab);
    }
}
