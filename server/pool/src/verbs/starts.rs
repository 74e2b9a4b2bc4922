//! What was found at a start, on NVMe and in DRAM that another process left: kept until its namespace is opened, then
//! taken in. Owns: the verbs. Must not know: segments, files, memory.

use crate::Pool;
use crate::ids::{ClientId, NamespaceIndex, Now, PageKey};
use crate::limits::{LEASE_PAGES_MAX, USES_PER_CALL_MAX};
use crate::memory::leases::{LeaseItem, LeaseKind, NO_PAGE, NewLease};
use crate::nvme::adoption::Adoption;
use crate::nvme::found::FoundSlab;
use crate::nvme::strangers::Stranger;
use turnkv_proto::{NamespaceId, Shards};

impl Pool {
    /// From now on [`Effects`](crate::Effects) say which slots change what they hold.
    pub fn tell_slots(&mut self) {
        self.store.tell_changes();
    }

    /// From now on [`Effects`](crate::Effects) say which pages came to a tier, or left it.
    pub fn tell_pages(&mut self) {
        self.store.tell_pages();
    }

    /// Before any namespace is open: a slab begins with memory of this generation. `found`: with what another process
    /// left in it.
    pub fn begin_slab(&mut self, slab: u32, generation: u32, found: Option<FoundSlab>) {
        self.store.begin_slab(slab, generation, found);
    }

    /// Before any namespace is open: a slab has no memory, and is not one of those of DRAM until that grows. `generation`: of
    /// the last memory that it had.
    pub fn begin_absent(&mut self, slab: u32, generation: u32) {
        self.store.begin_absent(slab, generation);
    }

    /// Takes all that was found on NVMe at start, before any namespace is open. What is more than the index
    /// may hold goes (`thin`): returns how many pages that are, which count as crowded out.
    #[must_use = "what does not fit is lost, and has to be said"]
    pub fn keep_strangers(&mut self, found: impl Iterator<Item = (NamespaceId, Stranger)>) -> u64 {
        self.store.keep_strangers(found)
    }

    /// Whether something that was found of a namespace waits for it to be opened.
    pub fn has_strangers(&self, id: &NamespaceId) -> bool {
        self.store.has_found(id) || self.store.nvme().has_strangers(id)
    }

    /// Forgets some of those that nobody will ask for: what an adoption left, and all after a time. True:
    /// there are more. The ids are of namespaces of which nothing is left.
    pub fn forget_strangers(&mut self, now: Now) -> (bool, Vec<NamespaceId>) {
        self.store.forget_strangers(now)
    }

    /// Begins to take in what was found of a namespace that was just opened. None: nothing was.
    pub fn begin_adoption(&mut self, ns: NamespaceIndex) -> Option<Adoption> {
        self.store.begin_adoption(&self.namespaces, ns)
    }

    /// Takes in some of the pages that were planned, of those trees whose last page was written no later than
    /// `until`, so that several namespaces come in one order. True: there are more. What is not whole, or
    /// hangs on nothing, is forgotten by and by (`forget_strangers`); slots of it are free.
    pub fn adopt(&mut self, adoption: &mut Adoption, until: u64) -> bool {
        self.store.policy_mut().found();
        self.store.call.begin();
        if let Some(slab) = adoption.next_slab() {
            self.take_in(adoption, &slab);
            return true;
        }
        self.store.adopt(&self.namespaces, adoption, until)
    }

    /// Pages that adoptions have taken in were used in this order, before anything that this pool knows of: at most
    /// [`USES_PER_CALL_MAX`] of them.
    pub fn use_again(&mut self, pages: &[PageKey]) {
        self.store.policy_mut().found();
        self.store.use_again(&pages[..pages.len().min(USES_PER_CALL_MAX)]);
    }

    /// Takes in a slab that another process left. Slots that somebody may still be writing are in quarantine; those that
    /// somebody has mapped are held as well, and serve others meanwhile.
    fn take_in(&mut self, adoption: &Adoption, slab: &FoundSlab) {
        let (ns, id) = adoption.namespace();
        let open = self.namespaces.get(ns).is_some_and(|desc| desc.id == id);
        let per_slab = self.store.slots().class_at(ns.0).per_slab;
        let mut held = slab.held.clone();
        held.retain(|(slot, client)| *slot < per_slab && self.is_present(*client));
        let mut mapped = slab.mapped.clone();
        mapped.retain(|(slot, client)| *slot < per_slab && self.is_present(*client));
        let mut filled: Vec<u32> = slab.slots.iter().map(|slot| slot.slot).collect();
        filled.sort_unstable();
        let empty = mapped.iter().filter(|(slot, _)| filled.binary_search(slot).is_err());
        let mut slots: Vec<u32> = held.iter().chain(empty).map(|(slot, _)| *slot).collect();
        slots.sort_unstable();
        slots.dedup();
        if !open || !self.store.take_in(ns.0, slab, &slots) {
            return;
        }
        for (mut slots, kind) in [(held, LeaseKind::Quarantined), (mapped, LeaseKind::Unheard)] {
            slots.sort_unstable_by_key(|(slot, client)| (*client, *slot));
            for of_one in slots.chunk_by(|one, other| one.1 == other.1) {
                for slots in of_one.chunks(LEASE_PAGES_MAX as usize) {
                    self.hold_found(ns, slab.slab, slots, kind);
                }
            }
        }
    }

    /// Slots of one client, at least one, are under a lease that only its word or the end of its process ends.
    fn hold_found(&mut self, ns: NamespaceIndex, slab: u32, slots: &[(u32, ClientId)], kind: LeaseKind) {
        let item = |(at, held): (usize, &(u32, ClientId))| LeaseItem {
            position: at as u32,
            slot: self.store.slots().number(slab, held.0),
            page: NO_PAGE,
        };
        let items: Vec<LeaseItem> = slots.iter().enumerate().map(item).collect();
        items.iter().for_each(|item| self.store.lease(item.slot));
        let (first, client, deadline) = (items[0].slot, slots[0].1, self.store.call.now());
        if kind.is_held() {
            self.store.map_slots(&items, client, true);
        }
        let shards = Shards::one(0);
        let lease = self.insert_lease(NewLease { kind, client, ns, shards, deadline, found: true, items });
        if kind.is_held() {
            self.left.keep(client, first, lease);
        }
    }
}
