//! What was found at a start, on NVMe and in slabs of another process, becomes pages once its namespace is opened. Owns:
//! what is taken in, page by page. Must not know: segments, files; the order (the adoption has it).

use crate::ids::{ClientId, NONE, NamespaceIndex, Now, PageKey, SlotKey};
use crate::limits::STRANGERS_MS_MAX;
use crate::memory::found_slabs::TakenIn;
use crate::namespaces::table::Namespaces;
use crate::nvme::adoption::{Adopted, Adoption};
use crate::nvme::found::FoundSlab;
use crate::nvme::strangers::Stranger;
use crate::store::Store;
use turnkv_proto::NamespaceId;

impl Store {
    /// Begins to take in what was found of a namespace that was just opened.
    pub(crate) fn begin_adoption(&mut self, namespaces: &Namespaces, ns: NamespaceIndex) -> Option<Adoption> {
        let id = namespaces.get(ns)?.id;
        let (on_nvme, slabs) = (self.nvme.strangers_of(&id), self.found.take(&id));
        if on_nvme.is_none() && slabs.is_empty() {
            return None;
        }
        Some(Adoption::new(ns, id, on_nvme.unwrap_or_default(), slabs))
    }

    /// A slab that another process left is the namespace's of its pages from now on. `held`: slots without a page that somebody
    /// may still be writing, or has mapped, ascending; the caller leases them. False: it serves others by now.
    pub(crate) fn take_in(&mut self, ns: u16, slab: &FoundSlab, held: &[u32]) -> bool {
        if !self.slots.is_aside(slab.slab) {
            return false;
        }
        let per_slab = self.slots.class_at(ns).per_slab;
        let free = |slot: &u32| *slot < per_slab && held.binary_search(slot).is_err();
        let found: Vec<u32> = slab.slots.iter().map(|slot| slot.slot).filter(free).collect();
        self.call.pass(u64::from(per_slab));
        self.slots.take_in(slab.slab, u32::from(ns), &TakenIn { found: &found, held });
        true
    }

    /// A client that another process left is nobody any more: slabs that only it had mapped may serve others.
    pub(crate) fn forget_reader(&mut self, client: ClientId) {
        for slab in self.found.forget_reader(client) {
            self.slots.end_seen(slab);
        }
    }

    /// Whether slabs wait for a namespace.
    pub(crate) fn has_found(&self, id: &NamespaceId) -> bool {
        self.found.wait_for(id)
    }

    /// Takes in some of the pages that were planned, of those trees whose last page was written no later than
    /// `until`, so that several namespaces come in one order.
    pub(crate) fn adopt(&mut self, namespaces: &Namespaces, adoption: &mut Adoption, until: u64) -> bool {
        let (ns, id) = adoption.namespace();
        let open = namespaces.get(ns).is_some_and(|desc| desc.id == id);
        for _ in 0..adoption.pages_per_call() {
            if open && adoption.next_newest().is_some_and(|newest| newest > until) {
                return true;
            }
            let Some(shards) = adoption.next_shards() else {
                let Some(stray) = adoption.next_stray() else { break };
                self.drop_found(stray);
                continue;
            };
            let adopted = if open { self.adopt_page(ns.0, adoption, shards) } else { Adopted::Not };
            if !matches!(adopted, Adopted::Visible(_)) {
                adoption.next_slots().iter().flatten().for_each(|slot| self.drop_found(*slot));
            }
            self.tally.crowded_out += u64::from(matches!(adopted, Adopted::CrowdedOut(_)));
            adoption.note(adopted);
        }
        let more = open && adoption.has_more() || adoption.has_slots();
        if !more {
            self.nvme.doom_strangers(&id);
        }
        more
    }

    /// A page whose parent is here, and which is not, is visible from now on.
    fn adopt_page(&mut self, ns: u16, adoption: &Adoption, shards: &[u32]) -> Adopted {
        let first = *adoption.extent(shards[0]);
        if self.pages.find(ns, &first.hash).is_some() {
            return Adopted::Not;
        }
        if first.parent.is_some_and(|parent| adoption.is_crowded_out(&parent)) {
            return Adopted::CrowdedOut(first.hash);
        }
        let parent = first.parent.map_or(Some(NONE), |hash| self.pages.find_visible(ns, &hash));
        let Some(parent) = parent else { return Adopted::Not };
        let on_nvme = self.is_found_on_nvme(adoption, shards, parent);
        let slots: Vec<Option<u32>> =
            adoption.next_slots().iter().map(|slot| self.found_slot(*slot)).collect();
        if !on_nvme && !slots.iter().all(Option::is_some) {
            return Adopted::Not;
        }
        if self.pages.len() >= self.config.limits.pages_max {
            return Adopted::CrowdedOut(first.hash);
        }
        let index = self.pages.insert(ns, first.hash, parent);
        self.pages.set_tail_tokens(index, first.tail_tokens);
        self.pages[index].cell.set_uses(adoption.next_reads());
        for (at, slot) in shards.iter().zip(&slots) {
            let found = *adoption.extent(*at);
            if on_nvme {
                self.set_found_place(index, adoption, *at);
            }
            self.pages.expect_checksum(index, found.shard, found.checksum);
            if let Some(slot) = *slot {
                self.slots.give_found(slot, index);
                self.pages.grant(index, found.shard, slot);
                self.pages.fill(index, found.shard, found.checksum);
                self.tally.found += 1;
            }
        }
        if on_nvme {
            self.promise(index); // whether somebody was told of it is not known any more
        }
        self.settle(index);
        self.settle_durable(index);
        if first.leaving && slots.iter().all(Option::is_none) {
            self.leave_again(index);
        }
        Adopted::Visible(self.pages.key(index))
    }

    /// These pages were used in this order, before anything that this process knows of.
    pub(crate) fn use_again(&mut self, pages: &[PageKey]) {
        self.call.begin();
        for page in pages {
            // Each at a moment of its own: by these slabs leave.
            self.slots.advance();
            if let Some(index) = self.pages.resolve(*page) {
                self.make_recent(index);
            }
        }
    }

    /// Whether NVMe has all shards of a page still, and what it hangs on.
    fn is_found_on_nvme(&self, adoption: &Adoption, shards: &[u32], parent: u32) -> bool {
        let (_, id) = adoption.namespace();
        let there = |at: &u32| adoption.is_extent(*at) && self.nvme.has_stranger(&id, *at as usize);
        let reachable = parent == NONE || !self.nvme.is_off(&self.pages, parent);
        self.nvme.is_alive() && reachable && shards.iter().all(there)
    }

    fn set_found_place(&mut self, index: u32, adoption: &Adoption, at: u32) {
        let (_, id) = adoption.namespace();
        if let Some(stranger) = self.nvme.take_stranger(&id, at as usize) {
            self.set_place(index, stranger.shard, stranger.place);
        }
    }

    /// A slot that holds what was found in it, as a number.
    fn found_slot(&self, slot: Option<SlotKey>) -> Option<u32> {
        let slot = slot.map(|key| self.slots.number(key.slab, key.slot))?;
        self.slots.is_found(slot).then_some(slot)
    }

    fn drop_found(&mut self, slot: SlotKey) {
        self.call.step();
        self.slots.drop_found(self.slots.number(slot.slab, slot.slot));
    }

    /// A slab begins with memory of this generation; with what another process left in it, if it did.
    pub(crate) fn begin_slab(&mut self, slab: u32, generation: u32, found: Option<FoundSlab>) {
        let seen = found.as_ref().is_some_and(|found| !found.mapped.is_empty());
        self.slots.begin_slab(slab, generation, found.is_some(), seen);
        if let Some(found) = found {
            self.found.keep(found);
        }
    }

    /// A slab begins without memory.
    pub(crate) fn begin_absent(&mut self, slab: u32, generation: u32) {
        self.slots.begin_absent(slab, generation);
    }

    /// Takes all that was found on NVMe at start, before any namespace is open.
    #[must_use = "what does not fit is lost, and has to be said"]
    pub(crate) fn keep_strangers(&mut self, found: impl Iterator<Item = (NamespaceId, Stranger)>) -> u64 {
        if !self.nvme.is_alive() {
            return 0;
        }
        self.tally.crowded_out += self.nvme.keep_strangers(found, self.config.limits.pages_max as usize);
        self.tally.crowded_out
    }

    /// Forgets some of those that nobody will ask for: what an adoption left, and all after a time.
    pub(crate) fn forget_strangers(&mut self, now: Now) -> (bool, Vec<NamespaceId>) {
        self.call.advance(now);
        self.nvme.forget_strangers(self.call.now() >= STRANGERS_MS_MAX)
    }
}
