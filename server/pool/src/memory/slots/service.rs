//! Slabs in service: where their slots' bytes are, whose they are, how much of them is in use. Owns: the
//! answers, and which slabs serve. Must not know: pages.

use super::{Slab, SlotState, Slots};
use crate::ids::{NONE, SlotKey, SlotPlace};

/// Gauges and counters of the slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotGauges {
    pub(crate) used_bytes: u64,
    pub(crate) leased_bytes: u64,
    /// Leased, being written or read into.
    pub(crate) pinned_bytes: u64,
    /// Slabs cut for another namespace, ever.
    pub(crate) recuts: u64,
    /// Slots that are free in slabs that are in use.
    pub(crate) free_slots: u64,
    pub(crate) retired_slabs: u32,
    /// Bytes of the slabs in service.
    pub(crate) capacity_bytes: u64,
}

impl Slots {
    /// Gauges and counters now.
    pub(crate) fn gauges(&self) -> SlotGauges {
        let without = self.slabs.iter().filter(|slab| slab.retired).count();
        let free_in = |slab: &Slab| match slab.used > 0 && !slab.retired && !slab.draining && !slab.leaving {
            true => u64::from(self.classes[slab.class as usize].per_slab - slab.used),
            false => 0,
        };
        SlotGauges {
            used_bytes: self.used_bytes,
            leased_bytes: self.leased_bytes,
            pinned_bytes: self.pinned_bytes,
            recuts: self.recuts,
            free_slots: self.slabs.iter().map(free_in).sum(),
            retired_slabs: without as u32 - self.absent,
            capacity_bytes: (self.slabs.len() - without) as u64 * self.slab_bytes,
        }
    }

    /// Where a slot's bytes are. None: no such slot as the slab is cut now.
    pub(crate) fn place(&self, slot: SlotKey) -> Option<SlotPlace> {
        let slab = self.slabs.get(slot.slab as usize).filter(|slab| slab.used > 0)?;
        let meta = slab.metas.get(slot.slot as usize)?;
        let class = &self.classes[slab.class as usize];
        let offset = u64::from(slot.slot) * class.slot_bytes;
        let place =
            SlotPlace { slab: slot.slab, generation: slab.generation, offset, bytes: class.shard_bytes };
        (meta.state() != SlotState::Free).then_some(place)
    }

    /// The tenant whose a slab is, as a number, and the slab's generation. None: no such slab, or nobody's
    /// yet.
    pub(crate) fn owner_of_slab(&self, slab: u32) -> Option<(u32, u32)> {
        let slab = self.slabs.get(slab as usize).filter(|slab| slab.tenant != NONE)?;
        Some((slab.tenant, slab.generation))
    }

    /// Slabs that changed tenant since the last call.
    pub(crate) fn take_renewed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.renewed)
    }

    /// Takes a slab out of service: its memory could not be renewed.
    pub(crate) fn retire(&mut self, slab: u32) {
        if self.slabs.get(slab as usize).is_none_or(|slab| slab.retired) {
            return;
        }
        if self.is_linked(slab) {
            self.unlink(slab);
        }
        self.empty.retain(|other| *other != slab);
        self.aside.retain(|other| *other != slab);
        self.renewed.retain(|other| *other != slab);
        self.slabs[slab as usize].retired = true;
    }

    /// A slab that was taken out of service serves again.
    pub(crate) fn return_to_service(&mut self, slab: u32) {
        let Some(this) = self.slabs.get_mut(slab as usize).filter(|slab| slab.retired && !slab.absent) else {
            return;
        };
        this.retired = false;
        if this.used == 0 {
            self.empty.push(slab);
        } else if !this.leaving {
            self.relink(slab);
        }
    }
}
