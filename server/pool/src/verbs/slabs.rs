//! Slabs, as their memory's keeper asks of them. Owns: the verbs. Must not know: memory files.

use crate::Pool;
use crate::ids::{SlotKey, SlotPlace};

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
