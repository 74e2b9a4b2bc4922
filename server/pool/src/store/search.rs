//! The search for room: a slot for a page, an entry for it, a slab for another namespace.
//! Owns: the search for victims, bounded. Must not know: who needs the room.

use crate::ids::{NONE, Now};
use crate::index::entry::Cell;
use crate::index::flags::{DIRTY, WRITING};
use crate::index::list_id::ListId;
use crate::limits::{
    DRAIN_PAGES_PER_CALL_MAX, DRAIN_STEPS_PER_CALL_MAX, ENTRY_SCAN_MAX, PREFETCH_SCAN_MAX,
    REBALANCE_EVERY_EVICTIONS, TOUCH_ANCESTORS_MAX, VICTIM_SCAN_MAX,
};
use crate::memory::slots::Slots;
use crate::store::Store;
use crate::store::going::{Eviction, Removal, Search};

impl Store {
    /// Takes a slot for a shard of a page, from a free one, else a victim of the same namespace, else another's
    /// slab. `returns_at`: for a prefetch, whose session returns then.
    pub(super) fn allocate(&mut self, index: u32, returns_at: Option<Now>) -> Option<u32> {
        let (ns, search) = (self.pages[index].ns, Search { page: index, returns_at });
        let slot = self.search_slot(ns, search, |slots, class| slots.claim(class, index));
        self.unpark(index);
        slot
    }

    /// Takes a slot for a page of a namespace that is not known yet, in the same way.
    pub(crate) fn allocate_reserved(&mut self, ns: u16) -> Option<u32> {
        self.search_slot(ns, Search::NONE, Slots::reserve)
    }

    fn search_slot(
        &mut self,
        ns: u16,
        search: Search,
        claim: impl Fn(&mut Slots, u32) -> Option<u32>,
    ) -> Option<u32> {
        let class = u32::from(ns);
        if let Some(slot) = claim(&mut self.slots, class) {
            return Some(slot);
        }
        if let Some(slot) = self.claim_from_unfinished(search, |store| claim(&mut store.slots, class)) {
            return Some(slot);
        }
        self.rebalance(class, search);
        if search.returns_at.is_some() {
            // A prefetch does without a slot, rather than take one from a deferred page.
            let deferred = self.deferred.len(ns);
            let slot = self
                .evict_until(ns, search, &claim, |store| store.next_victim(ns, PREFETCH_SCAN_MAX, search));
            self.end_prefetch_search(ns, deferred, search);
            return slot.or_else(|| {
                self.drain_for(class, true, search);
                claim(&mut self.slots, class)
            });
        }
        let slot =
            self.evict_until(ns, search, &claim, |store| store.next_victim(ns, VICTIM_SCAN_MAX, search));
        // Nothing else can go, and deferral is no lock.
        let slot =
            slot.or_else(|| self.evict_until(ns, search, &claim, |store| store.next_deferred(ns, search)));
        slot.or_else(|| {
            self.drain_for(class, false, search);
            claim(&mut self.slots, class)
        })
    }

    /// Evicts what `next` says until there is a slot, or the search took long. A victim of several shards
    /// frees slots one by one, one that is still being written frees none yet.
    fn evict_until(
        &mut self,
        ns: u16,
        search: Search,
        claim: &impl Fn(&mut Slots, u32) -> Option<u32>,
        mut next: impl FnMut(&mut Store) -> Option<(u32, Eviction)>,
    ) -> Option<u32> {
        let class = u32::from(ns);
        let until = self.call.steps() + u64::from(VICTIM_SCAN_MAX);
        while self.call.steps() <= until
            && let Some((victim, eviction)) = next(self)
        {
            self.slots.count_eviction(ns);
            self.evict(victim, eviction, search);
            if let Some(slot) = claim(&mut self.slots, class) {
                return Some(slot);
            }
        }
        None
    }

    /// The page of a namespace that gives up its slots next. Pages that cannot are out of the way until they
    /// can, so a search never meets one twice: what it costs is paid by whatever keeps them here.
    pub(super) fn next_victim(&mut self, ns: u16, looks: u32, search: Search) -> Option<(u32, Eviction)> {
        let until = self.call.steps() + 2 * u64::from(looks); // to pass a page takes two
        while self.call.steps() < until {
            let victim = self.coldest(ListId::Dram(ns))?;
            let Some(eviction) = self.evictable(victim, search) else {
                self.park(victim);
                continue;
            };
            let Some(tail) = self.pages.tail_in_dram(victim, &mut self.call) else {
                // Far above what goes first: it must not be found again for each of them.
                self.policy.touch(&mut self.pages, victim);
                if self.coldest(ListId::Dram(ns)) == Some(victim) {
                    return Some((victim, eviction)); // the policy insists: NVMe has it, for it is not a last copy
                }
                continue;
            };
            if (self.goes_last(victim, search) || self.goes_last(tail, search)) && self.defer(victim) {
                continue;
            }
            return self
                .evictable(tail, search)
                .map(|eviction| (tail, eviction))
                .or(Some((victim, eviction)));
        }
        None
    }

    /// The page of a list that the policy says goes next.
    pub(super) fn coldest(&mut self, list: ListId) -> Option<u32> {
        let (page, moves) = self.policy.victim(&mut self.pages, list);
        self.call.add(1 + moves);
        page
    }

    /// Makes room for one more entry under `parent`. False: the index is full of pages that cannot go.
    pub(crate) fn make_entry_room(&mut self, ns: u16, parent: u32) -> bool {
        let room = self.search_entry(ns, Search { page: parent, returns_at: None });
        if parent != NONE {
            self.unpark(parent);
        }
        room
    }

    fn search_entry(&mut self, ns: u16, search: Search) -> bool {
        let has_room = |store: &mut Store| (store.pages.len() < store.config.limits.pages_max).then_some(());
        if has_room(self).or_else(|| self.claim_from_unfinished(search, has_room)).is_some() {
            return true;
        }
        let mut deferrable = None;
        for list in [ListId::Nvme, ListId::Dram(ns)] {
            let until = self.call.steps() + u64::from(ENTRY_SCAN_MAX);
            while self.call.steps() < until {
                let Some(victim) = self.coldest(list) else { break };
                if self.pages[victim].is_leaf() && self.evictable(victim, search).is_some() {
                    if !self.goes_last(victim, search) {
                        self.remove_tail(victim, Removal::Evicted, search);
                        return self.pages.len() < self.config.limits.pages_max;
                    }
                    deferrable = deferrable.or(Some(self.pages.key(victim)));
                }
                self.policy.touch(&mut self.pages, victim);
            }
        }
        match deferrable.and_then(|page| self.pages.resolve(page)) {
            Some(victim) => self.remove_tail(victim, Removal::Evicted, search),
            None => return false,
        }
        self.pages.len() < self.config.limits.pages_max
    }

    /// Demotes clean pages of each namespace until the watermark of free slots is reached; where the slice
    /// ends, the next call goes on with the next namespace.
    pub(super) fn keep_watermark(&mut self) {
        let slice = self.call.slice();
        let mut part = self.drain_part();
        self.drain_step(true, Search::NONE, &mut part);
        let namespaces = self.pages.namespaces();
        for _ in 0..namespaces {
            if self.call.is_over(slice) {
                return;
            }
            let Some(ns) = self.turns.next(namespaces) else { return };
            self.call.pass(1);
            self.review_deferred(ns);
            while !self.call.is_over(slice)
                && self.nvme.is_alive()
                && self.slots.is_below_watermark(ns, self.config.free_slots_percent)
            {
                let Some((victim, eviction)) = self.next_victim(ns, VICTIM_SCAN_MAX, Search::NONE) else {
                    break;
                };
                self.evict(victim, eviction, Search::NONE);
            }
        }
    }

    /// Now and then a namespace that evicts its own pages asks whether another one's slab is colder.
    pub(super) fn rebalance(&mut self, class: u32, search: Search) {
        if !self.slots.comparison_is_due(class as u16, REBALANCE_EVERY_EVICTIONS) {
            return;
        }
        if self.slots.draining().is_none() {
            let own = self.slots.coldest_own(class).map_or(0, |(_, touched)| touched);
            match self.slots.coldest_other(class) {
                Some((slab, touched)) if touched < own => self.slots.start_drain(slab),
                _ => return,
            }
        }
        let mut part = self.drain_part();
        self.drain_step(true, search, &mut part);
    }

    /// Empties a slab of another namespace, as far as one call may: the coldest one that leases let go.
    fn drain_for(&mut self, class: u32, sparing: bool, search: Search) {
        let mut part = self.drain_part();
        if self.slots.draining().is_none() {
            match self.slots.coldest_other(class) {
                Some((slab, _)) => self.slots.start_drain(slab),
                None => return,
            }
        }
        while self.drain_step(sparing, search, &mut part) {
            self.call.pass(self.slots.slabs().len() as u64);
            match self.slots.coldest_other(class) {
                // One that this call gave up was touched by that, so none is met twice.
                Some((slab, touched)) if touched < self.slots.moment() => self.slots.start_drain(slab),
                _ => return,
            }
        }
    }

    /// The part of one call that may go into emptying slabs.
    pub(super) fn drain_part(&self) -> DrainPart {
        let until = self.call.steps() + DRAIN_STEPS_PER_CALL_MAX / 2;
        DrainPart { until, pages: DRAIN_PAGES_PER_CALL_MAX }
    }

    /// Evicts pages of the slab being emptied. Gives it up when what is left cannot go, or (`sparing`) should
    /// go last: a namespace that has no other slot to take spares nothing. True: a lease keeps a page of it,
    /// so it was given up before more of it went in vain.
    fn drain_step(&mut self, sparing: bool, search: Search, part: &mut DrainPart) -> bool {
        let Some((slab, end)) = self.slots.draining() else { return false };
        if self.slots.slabs()[slab as usize].leased > 0 {
            self.slots.stop_drain();
            return true;
        }
        let is_draining = |slots: &Slots| slots.draining().is_some_and(|(draining, _)| draining == slab);
        let from = self.slots.drained();
        for at in from..end {
            if !is_draining(&self.slots) || part.pages == 0 || self.call.steps() >= part.until {
                self.call.pass(u64::from(at - from));
                self.slots.note_drained(at);
                return false;
            }
            let owner = self.slots.owner(slab, at);
            if owner != NONE && self.drain_page(owner, sparing, search, part) {
                self.call.pass(u64::from(at - from));
                self.slots.stop_drain();
                return true;
            }
        }
        self.call.pass(u64::from(end - from));
        if is_draining(&self.slots) {
            self.slots.stop_drain();
        }
        false
    }

    /// Evicts one page, after the pages that hang on it when it is a last copy. One that a long path of such
    /// pages hangs on stays: they go by themselves before it does. True: a lease keeps it, or one of those.
    pub(super) fn drain_page(
        &mut self,
        owner: u32,
        sparing: bool,
        search: Search,
        part: &mut DrainPart,
    ) -> bool {
        let key = self.pages.key(owner);
        // What is still to be written goes by itself once it is: for its sake nothing that hangs on it goes.
        let waits = self.pages.cells(owner).iter().any(|cell| cell.has(DIRTY | WRITING));
        let descends = self.is_last_copy(owner) && !waits;
        let mut victim = if descends { self.pages.first_leaf(owner, &mut self.call) } else { owner };
        while part.pages > 0 {
            part.pages -= 1;
            self.call.step();
            let found =
                self.evictable(victim, search).filter(|_| !(sparing && self.goes_last(victim, search)));
            let Some(eviction) = found else { return self.is_kept_by_lease(victim) };
            let up = self.pages[victim].parent;
            self.evict(victim, eviction, search);
            if victim == owner || eviction == Eviction::Demote || self.pages.resolve(key).is_none() {
                return false;
            }
            // The owner is still here, so the parent is too: it hangs on it, or is it.
            victim = self.pages.first_leaf(up, &mut self.call);
        }
        false
    }

    /// Whether a lease keeps a page in DRAM. If so, the slabs of what leads to it are as warm as that: none of
    /// them can be emptied either, and to find that out once more would cost other pages.
    fn is_kept_by_lease(&mut self, index: u32) -> bool {
        let is_leased = |cell: &Cell| cell.slot != NONE && self.slots.is_leased(cell.slot);
        let is_kept = self.pages.cells(index).iter().any(is_leased);
        if is_kept {
            let ancestors = self.pages.upward(self.pages[index].parent).take(TOUCH_ANCESTORS_MAX as usize);
            let ancestors: Vec<u32> = ancestors.collect();
            self.call.pass(ancestors.len() as u64);
            ancestors.into_iter().for_each(|ancestor| self.touch_slots(ancestor));
        }
        is_kept
    }
}

/// What a call may still do to empty slabs.
pub(super) struct DrainPart {
    /// Steps, ever, at which it ends.
    until: u64,
    /// Pages that it may still look at.
    pages: u32,
}

impl DrainPart {
    /// Whether the call has done its part, after so many steps, ever.
    pub(super) fn is_used_up(&self, steps: u64) -> bool {
        self.pages == 0 || steps >= self.until
    }
}
