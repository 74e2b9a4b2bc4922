//! DRAM that becomes smaller: slabs are emptied for good, the one used longest ago first. Owns: what becomes of each page in
//! them, round after round. Must not know: who asked for it, how memory is given back.
//!
//! ```text
//! a page that NVMe has     -> demoted
//! one on its way there     -> waited for
//! one that NVMe could have -> sent there, and waited for
//! a last copy              -> gone, with what hangs on it, as for any room; a protected one stays
//! one under a lease        -> waited for
//! ```
//! A slab gives out no slot once it is on its way, so what is looked at is looked at again only while something keeps it.

use crate::config::Limits;
use crate::ids::{NONE, PageKey};
use crate::index::entry::Cell;
use crate::index::flags::{DIRTY, PROMOTING, PROTECTED, WRITING};
use crate::limits::FIND_PAGES_AT_ONCE;
use crate::memory::slots::{Kept, SlotState};
use crate::store::Store;
use crate::store::going::Search;
use crate::store::search::DrainPart;

/// How far DRAM is on its way to what it is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shrink {
    /// It is not larger than that.
    Done,
    /// There is more to do at once.
    Now,
    /// What is left is read or written, or somebody holds it: look again soon.
    Soon,
}

impl Store {
    /// DRAM is to have so many slabs from now on.
    pub(crate) fn resize_dram(&mut self, slabs: u32) {
        self.slots.want(slabs);
        self.call.note_freed(); // more may fit, or nothing will: whoever waits for a slot looks again
    }

    /// Shares of DRAM are so large from now on.
    pub(crate) fn set_shares(&mut self, shares: &Limits, free_slots_percent: u8) {
        self.config.free_slots_percent = free_slots_percent;
        let limits = &mut self.config.limits;
        limits.client_slots_percent = shares.client_slots_percent;
        limits.user_slots_percent = shares.user_slots_percent;
        limits.all_slots_percent = shares.all_slots_percent;
        self.call.note_freed(); // whoever waits may have more now
    }

    /// The slab that is to have memory next.
    pub(crate) fn slab_to_make(&mut self) -> Option<(u32, u32)> {
        self.call.pass(self.slots.slabs().len() as u64);
        self.slots.slab_to_make()
    }

    /// It has it.
    pub(crate) fn slab_made(&mut self, slab: u32) {
        self.slots.slab_made(slab);
        self.call.note_freed();
    }

    /// Slabs whose memory is to be given back.
    pub(crate) fn take_left_slabs(&mut self, most: usize) -> Vec<(u32, u32)> {
        self.slots.take_left(most)
    }

    /// Empties slabs that are to leave, a little.
    pub(crate) fn shrink_some(&mut self) -> Shrink {
        let mut part = self.drain_part();
        if !self.choose_slabs(&part) {
            return Shrink::Now;
        }
        if self.slots.surplus() == 0 {
            return Shrink::Done;
        }
        let left_before = self.slots.surplus();
        let mut went = false;
        self.slots.turn_leaving();
        for at in (0..self.slots.leaving().len()).rev() {
            went |= self.empty_slab(at, &mut part);
            if part.is_used_up(self.call.steps()) {
                // A look at what cannot go yet is no reason to look on at once.
                return if went { Shrink::Now } else { Shrink::Soon };
            }
        }
        match self.slots.surplus() {
            0 => Shrink::Done,
            left if went || left < left_before => Shrink::Now,
            _ => Shrink::Soon,
        }
    }

    /// Has as many slabs leave as may at a time. False: the slice is over.
    fn choose_slabs(&mut self, part: &DrainPart) -> bool {
        loop {
            self.call.pass(self.slots.slabs().len() as u64);
            if !self.slots.choose_leaving() {
                return true;
            }
            if part.is_used_up(self.call.steps()) {
                return false;
            }
        }
    }

    /// Goes on with one slab, to its end at most. True: pages went.
    fn empty_slab(&mut self, at: usize, part: &mut DrainPart) -> bool {
        let Some(leaving) = self.slots.leaving().get(at).cloned() else { return false };
        let (slab, end) = (leaving.slab, self.slots.slabs()[leaving.slab as usize].metas.len() as u32);
        let is_here = |store: &Store| store.slots.leaving().get(at).is_some_and(|now| now.slab == slab);
        let used = self.slots.slabs()[slab as usize].used;
        let went = |store: &Store| store.slots.slabs()[slab as usize].used < used;
        let mut seen = leaving.seen;
        for slot in leaving.at..end {
            if part.is_used_up(self.call.steps()) {
                self.call.pass(u64::from(slot - leaving.at));
                self.note_round(at, slot, seen, leaving.kept);
                return went(self);
            }
            if let Some(kept) = self.leave_slot(slab, slot, part) {
                seen = seen.plus(kept);
            }
            if !is_here(self) {
                self.call.pass(u64::from(slot - leaving.at));
                return true; // it is empty
            }
        }
        self.call.pass(u64::from(end - leaving.at));
        self.note_round(at, 0, Kept::default(), seen);
        let went = went(self);
        let only_leases = seen.leased > 0 && seen.moving == 0 && seen.protected == 0;
        let now = self.call.now();
        if let Some(leaving) = self.slots.leaving_mut(at) {
            leaving.leased_since = match leaving.leased_since {
                _ if !only_leases => 0,
                0 => now.max(1),
                since => since,
            };
        }
        if only_leases {
            self.call.pass(self.slots.slabs().len() as u64);
            return self.slots.swap_leased(at, now) || went;
        }
        went
    }

    fn note_round(&mut self, at: usize, slot: u32, seen: Kept, kept: Kept) {
        if let Some(leaving) = self.slots.leaving_mut(at) {
            (leaving.at, leaving.seen, leaving.kept) = (slot, seen, kept);
        }
    }

    /// Has what is in a slot go. What keeps it there, if it stays; none also of a slot that was free.
    fn leave_slot(&mut self, slab: u32, at: u32, part: &mut DrainPart) -> Option<Kept> {
        let meta = *self.slots.slot_of(slab, at)?;
        self.call.step();
        if meta.state() != SlotState::Used {
            return Some(if meta.leases() > 0 { Kept::LEASED } else { Kept::MOVING });
        }
        let (owner, key) = (meta.owner, self.pages.key(meta.owner));
        if self.is_last_copy(owner) {
            if self.send(owner) {
                return Some(Kept::MOVING);
            }
            if self.pages[owner].has(PROTECTED) {
                return Some(Kept::PROTECTED);
            }
        }
        let by_lease = self.drain_page(owner, false, Search::NONE, part);
        self.kept_by(slab, at, key, by_lease)
    }

    /// What keeps a page in a slot, a lease on what hangs on it included; none: it is not there any more.
    fn kept_by(&self, slab: u32, at: u32, page: PageKey, by_lease: bool) -> Option<Kept> {
        let meta = self.slots.slot_of(slab, at)?;
        if meta.leases() > 0 || meta.state() != SlotState::Used {
            return Some(if meta.leases() > 0 { Kept::LEASED } else { Kept::MOVING });
        }
        let index = self.pages.resolve(page).filter(|index| *index == meta.owner)?;
        let is_leased = |cell: &Cell| cell.slot != NONE && self.slots.is_leased(cell.slot);
        let leased = self.pages.cells(index).iter().any(is_leased);
        Some(if leased || by_lease { Kept::LEASED } else { Kept::MOVING })
    }

    /// Whether a last copy is on its way to NVMe, or goes there now or soon: it is waited for. What NVMe would not have been
    /// given unasked, and what it has no room for, is not.
    fn send(&mut self, index: u32) -> bool {
        if self.pages.cells(index).iter().any(|cell| cell.has(DIRTY | WRITING | PROMOTING)) {
            return true;
        }
        let wanted = self.nvme.is_alive() && self.nvme.admits_all() && self.pages[index].is_visible();
        let room =
            self.nvme.is_large(self.slots.dram_bytes()) || self.nvme.has_room_again(self.tally.dirty_bytes);
        if !wanted || !room || !self.budget_allows(index) {
            return false;
        }
        // Parents first: NVMe has nothing that cannot be reached there.
        let off = |index: &u32| self.nvme.is_off(&self.pages, *index);
        let mut path: Vec<u32> = self.pages.upward(index).take_while(off).take(FIND_PAGES_AT_ONCE).collect();
        self.call.pass(path.len() as u64);
        while let Some(next) = path.pop() {
            self.admit(next);
        }
        true
    }
}

impl Kept {
    const LEASED: Kept = Kept { leased: 1, moving: 0, protected: 0 };
    const MOVING: Kept = Kept { leased: 0, moving: 1, protected: 0 };
    const PROTECTED: Kept = Kept { leased: 0, moving: 0, protected: 1 };

    fn plus(self, other: Kept) -> Kept {
        Kept {
            leased: self.leased + other.leased,
            moving: self.moving + other.moving,
            protected: self.protected + other.protected,
        }
    }
}
