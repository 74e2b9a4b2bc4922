//! Slots and slabs. Owns: how slabs are cut, which slot is whose, who holds it. Must not know: hashes,
//! sessions, NVMe.
//!
//! ```text
//!        claim             disown while held          last hold ends
//! FREE --------> USED ------------------------> DOOMED ------------> FREE
//!   |              ^\------- disown, not held ------------------------^
//!   |              | adopt                         ^
//!   \-----------> RESERVED ------------------------/
//!      reserve                 give up
//! ```
//! What another process left in a slot of a slab that was kept is FOUND until a page has it (USED) or it is dropped
//! (FREE): `found_slabs`.

mod changes;
mod class;
mod classes;
mod departure;
mod leaving;
mod meta;
mod returns;
mod service;

pub(crate) use changes::Changes;
pub(crate) use class::SlotClass;
pub(crate) use departure::{Kept, Leaving};
pub(crate) use meta::{SlotMeta, SlotState};
pub(crate) use service::SlotGauges;

use crate::ids::{NONE, SlotKey};
use crate::limits::SLOT_ALIGN_BYTES;
use meta::SLOT_LEASES_MAX;
use returns::Returns;

/// One slab.
pub(crate) struct Slab {
    /// The namespace it is (or was last) cut for.
    pub(super) class: u32,
    pub(super) tenant: u32,
    pub(crate) generation: u32,
    /// Without memory, so out of service.
    pub(crate) retired: bool,
    /// Retired because DRAM is smaller now: not one of its slabs, until it grows again.
    absent: bool,
    /// Being emptied for good: gives out no slots, and goes when the last of them is free.
    pub(super) leaving: bool,
    /// Being emptied: gives out no slots.
    pub(super) draining: bool,
    pub(super) free_head: u32,
    pub(crate) used: u32,
    /// Slots under leases: until these end the slab cannot be emptied.
    pub(crate) leased: u32,
    /// Times that processes have one of its slots mapped.
    pub(crate) mapped: u32,
    /// Set aside while processes have slots of it mapped: its memory may not be taken away.
    pub(super) seen: bool,
    /// When one of its pages was used last.
    pub(super) touched: u64,
    next: u32,
    prev: u32,
    pub(crate) metas: Vec<SlotMeta>,
    returns: Returns,
}

/// All slabs.
pub(crate) struct Slots {
    slab_bytes: u64,
    stride: u32,
    pub(super) slabs: Vec<Slab>,
    /// Slabs without pages.
    pub(super) empty: Vec<u32>,
    /// Slabs without pages whose memory another process left: the last to be cut anew.
    pub(super) aside: Vec<u32>,
    pub(super) classes: Vec<SlotClass>,
    /// How many slabs there are to be.
    wanted: u32,
    /// Slabs that are absent.
    absent: u32,
    /// Slabs on their way out.
    leaving: Vec<Leaving>,
    /// Slabs that became absent and whose memory was not taken away yet.
    left: Vec<u32>,
    /// The slab that is being given memory.
    making: u32,
    /// The slab being emptied.
    draining: u32,
    /// Slots of it before this one are empty: none is given out again while it is being emptied.
    drained: u32,
    pub(super) used_bytes: u64,
    leased_bytes: u64,
    pinned_bytes: u64,
    recuts: u64,
    pub(super) tick: u64,
    renewed: Vec<u32>,
    /// Where somebody keeps a table of what slots hold.
    pub(super) changes: Option<Changes>,
}

impl Slots {
    pub(crate) fn new(slab_bytes: u64, slab_count: u32) -> Slots {
        Slots {
            slab_bytes,
            stride: (slab_bytes / SLOT_ALIGN_BYTES) as u32,
            slabs: (0..slab_count).map(|_| Slab::new()).collect(),
            empty: (0..slab_count).rev().collect(),
            aside: Vec::new(),
            classes: Vec::new(),
            wanted: slab_count,
            absent: 0,
            leaving: Vec::new(),
            left: Vec::new(),
            making: NONE,
            draining: NONE,
            drained: 0,
            used_bytes: 0,
            leased_bytes: 0,
            pinned_bytes: 0,
            recuts: 0,
            tick: 0,
            renewed: Vec::new(),
            changes: None,
        }
    }

    /// Takes a free slot for a page's shard; cuts an empty slab if need be.
    pub(crate) fn claim(&mut self, class: u32, owner: u32) -> Option<u32> {
        let mut slab = self.classes[class as usize].partial;
        if slab == NONE {
            slab = self.cut(class)?;
        }
        let per_slab = self.classes[class as usize].per_slab;
        let meta = SlotMeta::new(owner, SlotState::Used);
        let this = &mut self.slabs[slab as usize];
        let slot = if this.free_head == NONE {
            if this.metas.len() == this.metas.capacity() {
                let room = per_slab as usize - this.metas.len();
                this.metas.reserve_exact(room.min(this.metas.len() / 4 + 64));
            }
            this.metas.push(meta);
            this.metas.len() as u32 - 1
        } else {
            let slot = this.free_head;
            this.free_head = this.metas[slot as usize].owner;
            this.metas[slot as usize] = meta;
            this.returns.set(slot, 0);
            slot
        };
        this.used += 1;
        this.touched = self.tick;
        if this.used == per_slab {
            self.unlink(slab);
        }
        let class = &mut self.classes[class as usize];
        class.used += 1;
        self.used_bytes += class.slot_bytes;
        Some(slab * self.stride + slot)
    }

    /// The slot's page lets go of it. It is free at once, or when nobody holds it any more.
    pub(crate) fn disown(&mut self, slot: u32) {
        let meta = self.meta_mut(slot);
        debug_assert_eq!(meta.state(), SlotState::Used, "a page lets go once");
        meta.become_state(SlotState::Doomed);
        meta.owner = NONE;
        self.note_change(slot);
        self.free_if_unheld(slot);
    }

    pub(crate) fn lease(&mut self, slot: u32) {
        let bytes = self.slot_bytes(slot);
        let meta = self.meta_mut(slot);
        let (first, pinned) = (meta.leases() == 0, !meta.is_held());
        meta.add_lease();
        self.leased_bytes += if first { bytes } else { 0 };
        let class = self.class_of(slot) as usize;
        self.classes[class].leased += u64::from(first);
        self.slabs[(slot / self.stride) as usize].leased += u32::from(first);
        self.pinned_bytes += if pinned { bytes } else { 0 };
    }

    pub(crate) fn unlease(&mut self, slot: u32) {
        let bytes = self.slot_bytes(slot);
        let meta = self.meta_mut(slot);
        meta.drop_lease();
        let (last, unpinned) = (meta.leases() == 0, !meta.is_held());
        self.leased_bytes -= if last { bytes } else { 0 };
        let class = self.class_of(slot) as usize;
        self.classes[class].leased -= u64::from(last);
        self.slabs[(slot / self.stride) as usize].leased -= u32::from(last);
        self.pinned_bytes -= if unpinned { bytes } else { 0 };
        if last {
            self.note_unleased(slot);
        }
        self.free_if_unheld(slot);
    }

    /// A read or write of the slot starts.
    pub(crate) fn begin_io(&mut self, slot: u32) {
        let bytes = self.slot_bytes(slot);
        let meta = self.meta_mut(slot);
        let pinned = !meta.is_held();
        meta.add_io();
        self.pinned_bytes += if pinned { bytes } else { 0 };
    }

    pub(crate) fn end_io(&mut self, slot: u32) {
        let bytes = self.slot_bytes(slot);
        let meta = self.meta_mut(slot);
        meta.drop_io();
        let unpinned = !meta.is_held();
        self.pinned_bytes -= if unpinned { bytes } else { 0 };
        self.free_if_unheld(slot);
    }

    pub(crate) fn is_leased(&self, slot: u32) -> bool {
        self.meta(slot).leases() > 0
    }

    /// When a slot's page is needed again, in `RETURN_UNIT_MS`; 0: unknown.
    pub(crate) fn returns(&self, slot: u32) -> u32 {
        let key = self.key(slot);
        self.slabs[key.slab as usize].returns.get(key.slot)
    }

    /// A slot's page is needed again then; 0: nobody knows.
    pub(crate) fn set_returns(&mut self, slot: u32, returns: u32) {
        let key = self.key(slot);
        self.slabs[key.slab as usize].returns.set(key.slot, returns);
    }

    /// Whether a slot can be under one more lease.
    pub(crate) fn may_lease(&self, slot: u32) -> bool {
        self.meta(slot).leases() < SLOT_LEASES_MAX
    }

    pub(crate) fn is_held(&self, slot: u32) -> bool {
        self.meta(slot).is_held()
    }

    /// All slabs.
    pub(crate) fn slabs(&self) -> &[Slab] {
        &self.slabs
    }

    /// Slabs without pages.
    pub(crate) fn empty(&self) -> &[u32] {
        &self.empty
    }

    /// The slab that is being emptied, and how many slots it is cut into.
    pub(crate) fn draining(&self) -> Option<(u32, u32)> {
        let slab = Some(self.draining).filter(|slab| *slab != NONE)?;
        Some((slab, self.slabs[slab as usize].metas.len() as u32))
    }

    /// Slots of the slab that is being emptied which are empty, from the first on: none is given out again
    /// meanwhile.
    pub(crate) fn drained(&self) -> u32 {
        self.drained
    }

    /// So many of them are now.
    pub(crate) fn note_drained(&mut self, slots: u32) {
        self.drained = slots;
    }

    /// A new moment for `touch`.
    pub(crate) fn advance(&mut self) {
        self.tick += 1;
    }

    /// This moment.
    pub(crate) fn moment(&self) -> u64 {
        self.tick
    }

    pub(crate) fn touch(&mut self, slot: u32) {
        let slab = (slot / self.stride) as usize;
        self.slabs[slab].touched = self.tick;
    }

    /// The slab of other namespaces that was used longest ago, and when. One with a leased slot is passed
    /// over: it cannot be emptied, and whoever froze while filling it would hold up everybody else.
    pub(crate) fn coldest_other(&self, class: u32) -> Option<(u32, u64)> {
        self.coldest(|slab| slab.class != class && slab.leased == 0)
    }

    /// When the slab of this namespace that was used longest ago was used.
    pub(crate) fn coldest_own(&self, class: u32) -> Option<(u32, u64)> {
        self.coldest(|slab| slab.class == class)
    }

    /// Stops giving out slots of a slab, so that it becomes empty.
    pub(crate) fn start_drain(&mut self, slab: u32) {
        debug_assert_eq!(self.draining, NONE, "one slab at a time");
        if self.is_linked(slab) {
            self.unlink(slab);
        }
        self.slabs[slab as usize].draining = true;
        (self.draining, self.drained) = (slab, 0);
    }

    /// Gives up emptying: the slab serves its namespace again, and is not tried again soon.
    pub(crate) fn stop_drain(&mut self) {
        let slab = std::mem::replace(&mut self.draining, NONE);
        if slab == NONE {
            return;
        }
        self.slabs[slab as usize].draining = false;
        self.slabs[slab as usize].touched = self.tick;
        if self.slabs[slab as usize].used > 0 && self.has_room(slab) {
            self.relink(slab);
        }
    }

    pub(crate) fn key(&self, slot: u32) -> SlotKey {
        SlotKey { slab: slot / self.stride, slot: slot % self.stride }
    }

    pub(crate) fn slot_bytes(&self, slot: u32) -> u64 {
        self.classes[self.class_of(slot) as usize].slot_bytes
    }

    /// The namespace that a slot is cut for.
    pub(crate) fn class_of(&self, slot: u32) -> u32 {
        self.slabs[(slot / self.stride) as usize].class
    }

    pub(crate) fn meta(&self, slot: u32) -> &SlotMeta {
        &self.slabs[(slot / self.stride) as usize].metas[(slot % self.stride) as usize]
    }

    /// The page in a slot of a slab, NONE for none.
    pub(crate) fn owner(&self, slab: u32, slot: u32) -> u32 {
        let meta =
            self.slabs[slab as usize].metas.get(slot as usize).filter(|meta| meta.state() == SlotState::Used);
        meta.map_or(NONE, |meta| meta.owner)
    }

    pub(crate) fn number(&self, slab: u32, slot: u32) -> u32 {
        slab * self.stride + slot
    }

    pub(crate) fn bytes(&self) -> usize {
        let of_slab = |slab: &Slab| slab.metas.capacity() * size_of::<SlotMeta>() + slab.returns.bytes();
        self.slabs.iter().map(of_slab).sum::<usize>() + self.slabs.len() * size_of::<Slab>()
    }

    pub(super) fn meta_mut(&mut self, slot: u32) -> &mut SlotMeta {
        &mut self.slabs[(slot / self.stride) as usize].metas[(slot % self.stride) as usize]
    }

    pub(super) fn slab_mut(&mut self, slab: u32) -> &mut Slab {
        &mut self.slabs[slab as usize]
    }

    fn coldest(&self, wanted: impl Fn(&Slab) -> bool) -> Option<(u32, u64)> {
        let in_use = |slab: &Slab| slab.used > 0 && !slab.draining && !slab.leaving && !slab.retired;
        let slabs = self.slabs.iter().enumerate().filter(|(_, slab)| in_use(slab) && wanted(slab));
        slabs.map(|(at, slab)| (at as u32, slab.touched)).min_by_key(|(at, touched)| (*touched, *at))
    }

    /// Cuts an empty slab: one that was cut alike, else one of the same tenant, else any.
    fn cut(&mut self, class: u32) -> Option<u32> {
        if !self.may_cut(class) {
            return None;
        }
        let tenant = self.classes[class as usize].tenant;
        let cost = |slab: &Slab| match slab {
            slab if slab.class == class => 0,
            slab if slab.tenant == tenant => 1,
            slab if slab.tenant == NONE => 2,
            _ => 3,
        };
        let best =
            self.empty.iter().enumerate().rev().min_by_key(|(_, slab)| cost(&self.slabs[**slab as usize]));
        let slab = match best.map(|(at, _)| at) {
            Some(at) => self.empty.swap_remove(at),
            None => self.give_up_aside()?,
        };
        let this = &mut self.slabs[slab as usize];
        if this.class != class {
            self.recuts += u64::from(this.class != NONE);
            this.metas = Vec::new();
            this.returns = Returns::default();
            this.free_head = NONE;
        }
        if this.tenant != tenant {
            if this.tenant != NONE {
                this.generation += 1;
                self.renewed.retain(|other| *other != slab);
                self.renewed.push(slab);
            }
            this.tenant = tenant;
        }
        this.class = class;
        self.classes[class as usize].slabs += 1;
        self.relink(slab);
        Some(slab)
    }

    /// What was found in a slab is given up for whoever has no other: it gets fresh memory, for it was somebody's.
    fn give_up_aside(&mut self) -> Option<u32> {
        let at = self.aside.iter().rposition(|slab| !self.slabs[*slab as usize].seen)?;
        let slab = self.aside.remove(at);
        self.slabs[slab as usize].generation += 1;
        self.renewed.push(slab);
        Some(slab)
    }

    fn free_if_unheld(&mut self, slot: u32) {
        let (slab, at) = (slot / self.stride, slot % self.stride);
        let this = &mut self.slabs[slab as usize];
        let meta = &mut this.metas[at as usize];
        if meta.state() != SlotState::Doomed || meta.is_held() {
            return;
        }
        meta.become_state(SlotState::Free);
        meta.owner = this.free_head;
        this.free_head = at;
        this.used -= 1;
        let (used, closed) = (this.used, this.draining || this.leaving);
        let class = &mut self.classes[this.class as usize];
        class.used -= 1;
        class.idle += u64::from(this.leaving);
        self.used_bytes -= class.slot_bytes;
        if used == 0 {
            self.put_back(slab);
        } else if !closed && !self.is_linked(slab) {
            self.relink(slab);
        }
    }

    /// The slab is empty.
    pub(super) fn put_back(&mut self, slab: u32) {
        if self.is_linked(slab) {
            self.unlink(slab);
        }
        let this = &mut self.slabs[slab as usize];
        self.classes[this.class as usize].slabs -= 1;
        this.draining = false;
        if self.draining == slab {
            self.draining = NONE;
        }
        if self.slabs[slab as usize].leaving {
            self.leave(slab);
        } else if !self.slabs[slab as usize].retired {
            self.empty.push(slab);
        }
    }

    fn has_room(&self, slab: u32) -> bool {
        let this = &self.slabs[slab as usize];
        !this.retired && !this.leaving && this.used < self.classes[this.class as usize].per_slab
    }

    fn is_linked(&self, slab: u32) -> bool {
        let this = &self.slabs[slab as usize];
        this.class != NONE && (this.prev != NONE || self.classes[this.class as usize].partial == slab)
    }

    pub(super) fn relink(&mut self, slab: u32) {
        if !self.has_room(slab) {
            return;
        }
        let class = self.slabs[slab as usize].class as usize;
        let next = std::mem::replace(&mut self.classes[class].partial, slab);
        (self.slabs[slab as usize].next, self.slabs[slab as usize].prev) = (next, NONE);
        if next != NONE {
            self.slabs[next as usize].prev = slab;
        }
    }

    fn unlink(&mut self, slab: u32) {
        let (class, next, prev) = {
            let this = &mut self.slabs[slab as usize];
            let links = (this.class as usize, this.next, this.prev);
            (this.next, this.prev) = (NONE, NONE);
            links
        };
        match prev {
            NONE => self.classes[class].partial = next,
            prev => self.slabs[prev as usize].next = next,
        }
        if next != NONE {
            self.slabs[next as usize].prev = prev;
        }
    }
}

#[cfg(test)]
mod tests;
