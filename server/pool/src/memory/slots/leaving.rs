//! How many slabs there are: slabs that come, and slabs on their way out. Owns: which slabs leave, which of
//! them have memory. Must not know: pages, whose memory it is.
//!
//! ```text
//!           choose                    last slot free               slab to make            slab made
//! IN SERVICE -----> LEAVING ---------------------------> ABSENT -----------------> MAKING ----------> IN SERVICE
//!     ^                |
//!     \---- let stay --/
//! ```
//! The number of a slab is for good, so a slot's number always means one place. A slab that was absent comes back with
//! another generation: nobody who mapped it before takes the new memory for the old.

use super::departure::{Kept, Leaving};
use super::returns::Returns;
use super::{Slab, SlotMeta, SlotState, Slots};
use crate::ids::{NONE, Now};
use crate::limits::{LEAVING_PATIENCE_MS, LEAVING_SLABS_MAX};

impl Slab {
    pub(super) fn new() -> Slab {
        Slab {
            class: NONE,
            tenant: NONE,
            generation: 0,
            retired: false,
            absent: false,
            leaving: false,
            draining: false,
            free_head: NONE,
            used: 0,
            leased: 0,
            mapped: 0,
            seen: false,
            touched: 0,
            next: NONE,
            prev: NONE,
            metas: Vec::new(),
            returns: Returns::default(),
        }
    }
}

impl Slab {
    /// Whether it is on its way out.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// The namespace that it is cut for, as a number.
    pub(crate) fn class_number(&self) -> u32 {
        self.class
    }
}

impl Slots {
    /// Bytes of the slabs that there are and are to stay: what shares are of.
    pub(crate) fn dram_bytes(&self) -> u64 {
        u64::from(self.present().min(self.wanted)) * self.slab_bytes
    }

    /// Bytes of one slab.
    pub(crate) fn slab_bytes(&self) -> u64 {
        self.slab_bytes
    }

    /// The most that ever were: what was granted under that may still be held.
    pub(crate) fn largest_dram_bytes(&self) -> u64 {
        self.slabs.len() as u64 * self.slab_bytes
    }

    /// How many slabs there are to be.
    pub(crate) fn wanted(&self) -> u32 {
        self.wanted
    }

    /// How many there are.
    pub(crate) fn present(&self) -> u32 {
        self.slabs.len() as u32 - self.absent
    }

    /// Whether a slab is one of those.
    pub(crate) fn is_absent(&self, slab: u32) -> bool {
        self.slabs[slab as usize].absent
    }

    /// So many slabs there are to be from now on. Slabs on their way out stay as far as they may.
    pub(crate) fn want(&mut self, slabs: u32) {
        self.wanted = slabs;
        while self.leaving.len() > self.surplus() as usize {
            self.let_stay(self.leaving.len() - 1);
        }
    }

    /// Slabs that are to leave, those on their way included.
    pub(crate) fn surplus(&self) -> u32 {
        self.present().saturating_sub(self.wanted)
    }

    /// Slabs on their way out.
    pub(crate) fn leaving(&self) -> &[Leaving] {
        &self.leaving
    }

    /// The same, to take note of a round.
    pub(crate) fn leaving_mut(&mut self, at: usize) -> Option<&mut Leaving> {
        self.leaving.get_mut(at)
    }

    /// Another one of them is looked at first, so that none waits behind one that stands still.
    pub(crate) fn turn_leaving(&mut self) {
        if !self.leaving.is_empty() {
            self.leaving.rotate_left(1);
        }
    }

    /// Bytes that keep slabs on their way out: under leases, protected.
    pub(crate) fn kept_bytes(&self) -> (u64, u64) {
        let bytes = |slots: u32, slab: u32| match self.slabs[slab as usize].class {
            NONE => 0,
            class => u64::from(slots) * self.classes[class as usize].slot_bytes,
        };
        self.leaving.iter().fold((0, 0), |(leased, protected), one| {
            let (more, kept) = (bytes(one.kept.leased, one.slab), bytes(one.kept.protected, one.slab));
            (leased + more, protected + kept)
        })
    }

    /// Has one more slab leave: one without memory or pages at once, else the one that was used longest ago, one without
    /// leased slots before others and before those that wait for what was found in them. False: enough are on their way, or
    /// there is none.
    pub(crate) fn choose_leaving(&mut self) -> bool {
        if self.leaving.len() >= (self.surplus() as usize).min(LEAVING_SLABS_MAX) {
            return false;
        }
        let idle = |slab: &Slab| slab.used == 0 && slab.retired && !slab.absent;
        let without = self.slabs.iter().position(idle).map(|slab| slab as u32);
        let mut at_once = without.or_else(|| self.empty.pop());
        let unleased = self.coldest(|slab| slab.leased == 0);
        if at_once.is_none() && unleased.is_none() {
            // What a process has mapped stays where it is.
            let unseen = self.aside.iter().rposition(|slab| !self.slabs[*slab as usize].seen);
            at_once = unseen.map(|at| self.aside.remove(at));
        }
        if let Some(slab) = at_once {
            self.leave(slab);
            return true;
        }
        let found = unleased.or_else(|| self.coldest(|_| true));
        let found = found.map(|(slab, _)| slab).or_else(|| self.draining().map(|(slab, _)| slab));
        let Some(slab) = found.or_else(|| self.retired_in_use()) else { return false };
        if self.draining == slab {
            self.stop_drain();
        }
        if self.is_linked(slab) {
            self.unlink(slab);
        }
        let this = &mut self.slabs[slab as usize];
        this.leaving = true;
        let class = &mut self.classes[this.class as usize];
        class.idle += u64::from(class.per_slab - this.used);
        let (seen, kept) = (Kept::default(), Kept::default());
        self.leaving.push(Leaving { slab, at: 0, seen, kept, leased_since: 0 });
        true
    }

    /// A slab that only leases keep for long stays, where another one can leave instead. True: that was so.
    pub(crate) fn swap_leased(&mut self, at: usize, now: Now) -> bool {
        let Some(leaving) = self.leaving.get(at) else { return false };
        let long = leaving.leased_since > 0 && now >= leaving.leased_since + LEAVING_PATIENCE_MS;
        if !long || self.coldest(|slab| slab.leased == 0).is_none() {
            return false;
        }
        self.let_stay(at);
        self.choose_leaving()
    }

    /// A slot of a slab, as far as it was ever given out.
    pub(crate) fn slot_of(&self, slab: u32, at: u32) -> Option<&SlotMeta> {
        let meta = self.slabs[slab as usize].metas.get(at as usize)?;
        (meta.state() != SlotState::Free).then_some(meta)
    }

    /// Slabs that are absent now and whose memory goes, each with the generation that it is absent in. At most so many.
    pub(crate) fn take_left(&mut self, most: usize) -> Vec<(u32, u32)> {
        let taken = self.left.split_off(self.left.len().saturating_sub(most));
        let take = |slab: u32| {
            let this = &mut self.slabs[slab as usize];
            *this = Slab { generation: this.generation, retired: true, absent: true, ..Slab::new() };
            (slab, this.generation)
        };
        taken.into_iter().map(take).collect()
    }

    /// The slab that is to have memory next, and the generation of it. None: there are as many as there are to be.
    pub(crate) fn slab_to_make(&mut self) -> Option<(u32, u32)> {
        if self.present() >= self.wanted {
            return None;
        }
        if self.making == NONE {
            let absent = self.slabs.iter().position(|slab| slab.absent);
            self.making = absent.map_or_else(|| self.add_absent(), |slab| slab as u32);
            self.slabs[self.making as usize].generation += 1;
        }
        Some((self.making, self.slabs[self.making as usize].generation))
    }

    /// The slab has memory: it serves.
    pub(crate) fn slab_made(&mut self, slab: u32) {
        if self.making != slab {
            return;
        }
        self.making = NONE;
        let generation = self.slabs[slab as usize].generation;
        self.slabs[slab as usize] = Slab { generation, ..Slab::new() };
        self.absent -= 1;
        self.left.retain(|other| *other != slab);
        self.empty.push(slab);
    }

    /// Slabs without pages that are not to leave.
    pub(crate) fn spare(&self) -> u32 {
        let to_leave = self.surplus() as usize - self.leaving.len().min(self.surplus() as usize);
        self.uncut().saturating_sub(to_leave) as u32
    }

    /// Slabs without pages, those that wait for what was found in them included.
    pub(crate) fn uncut(&self) -> usize {
        self.empty.len() + self.aside.len()
    }

    /// Whether an empty slab may be cut for a namespace: one that has none yet may take one that is to leave, so that nobody
    /// is without while DRAM shrinks.
    pub(super) fn may_cut(&self, class: u32) -> bool {
        self.spare() > 0 || self.classes[class as usize].slabs == 0 && self.uncut() > 0
    }

    /// An empty slab is absent from now on.
    pub(super) fn leave(&mut self, slab: u32) {
        self.leaving.retain(|other| other.slab != slab);
        self.renewed.retain(|other| *other != slab);
        let this = &mut self.slabs[slab as usize];
        if let Some(class) = self.classes.get_mut(this.class as usize).filter(|_| this.leaving) {
            class.idle -= u64::from(class.per_slab);
        }
        // Its slots are still known, as free ones, until its memory is taken: whoever let go of the last one may look.
        (this.tenant, this.generation) = (NONE, this.generation + 1);
        (this.retired, this.absent, this.leaving) = (true, true, false);
        self.absent += 1;
        self.left.push(slab);
    }

    /// A slab without pages is not one of those of DRAM.
    pub(crate) fn make_absent(&mut self, slab: u32, generation: u32) {
        self.slabs[slab as usize] = Slab { generation, retired: true, absent: true, ..Slab::new() };
        self.absent += 1;
        self.wanted = self.present();
    }

    fn add_absent(&mut self) -> u32 {
        self.slabs.push(Slab { retired: true, absent: true, ..Slab::new() });
        self.absent += 1;
        self.slabs.len() as u32 - 1
    }

    /// A slab on its way out serves again, and is not chosen again soon.
    fn let_stay(&mut self, at: usize) {
        let slab = self.leaving.swap_remove(at).slab;
        let this = &mut self.slabs[slab as usize];
        this.leaving = false;
        this.touched = self.tick;
        let class = &mut self.classes[this.class as usize];
        class.idle -= u64::from(class.per_slab - this.used);
        self.relink(slab);
    }

    /// A slab without memory of which slots are still held.
    fn retired_in_use(&self) -> Option<u32> {
        let held = |slab: &Slab| slab.retired && !slab.absent && !slab.leaving && slab.used > 0;
        self.slabs.iter().position(held).map(|slab| slab as u32)
    }
}
