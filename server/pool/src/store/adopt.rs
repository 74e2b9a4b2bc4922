//! Extents that were found at a start become pages, once their namespace is opened. Owns: what is taken in, page by
//! page. Must not know: segments, files; the order (the adoption has it).

use crate::ids::{NONE, NamespaceIndex, Now};
use crate::limits::STRANGERS_MS_MAX;
use crate::namespaces::table::Namespaces;
use crate::nvme::adoption::{Adopted, Adoption};
use crate::nvme::strangers::Stranger;
use crate::store::Store;
use turnkv_proto::NamespaceId;

impl Store {
    /// Begins to take in what NVMe has of a namespace that was just opened.
    pub(crate) fn begin_adoption(&self, namespaces: &Namespaces, ns: NamespaceIndex) -> Option<Adoption> {
        let id = namespaces.get(ns)?.id;
        let found = self.nvme.strangers_of(&id)?;
        Some(Adoption::new(ns, id, found))
    }

    /// Takes in some of the pages that were planned, of those trees whose last page was written no later than
    /// `until`, so that several namespaces come in one order.
    pub(crate) fn adopt(&mut self, namespaces: &Namespaces, adoption: &mut Adoption, until: u64) -> bool {
        let (ns, id) = adoption.namespace();
        let open = namespaces.get(ns).is_some_and(|desc| desc.id == id);
        for _ in 0..adoption.pages_per_call() {
            if adoption.next_newest().is_some_and(|newest| newest > until) {
                return true;
            }
            let Some(shards) = adoption.next_shards() else { break };
            let adopted = if open { self.adopt_page(ns.0, adoption, shards) } else { Adopted::Not };
            self.tally.crowded_out += u64::from(matches!(adopted, Adopted::CrowdedOut(_)));
            adoption.note(adopted);
        }
        let more = open && adoption.has_more();
        if !more {
            self.nvme.doom_strangers(&id);
        }
        more
    }

    /// A page whose parent is here, and which is not, is visible from now on.
    fn adopt_page(&mut self, ns: u16, adoption: &Adoption, shards: &[u32]) -> Adopted {
        let ((_, id), first) = (adoption.namespace(), *adoption.extent(shards[0]));
        let there = shards.iter().all(|at| self.nvme.has_stranger(&id, *at as usize));
        if !there || !self.nvme.is_alive() || self.pages.find(ns, &first.hash).is_some() {
            return Adopted::Not;
        }
        if first.parent.is_some_and(|parent| adoption.is_crowded_out(&parent)) {
            return Adopted::CrowdedOut(first.hash);
        }
        let parent = first.parent.map_or(Some(NONE), |hash| self.pages.find_visible(ns, &hash));
        let Some(parent) = parent else { return Adopted::Not };
        if self.pages.len() >= self.config.limits.pages_max {
            return Adopted::CrowdedOut(first.hash);
        }
        let index = self.pages.insert(ns, first.hash, parent);
        self.pages.set_tail_tokens(index, first.tail_tokens);
        for at in shards {
            let Some(stranger) = self.nvme.take_stranger(&id, *at as usize) else { continue };
            self.set_place(index, stranger.shard, stranger.place);
            self.pages.expect_checksum(index, stranger.shard, stranger.checksum);
        }
        self.promise(index); // whether somebody was told of it is not known any more
        self.settle(index);
        self.settle_durable(index);
        if first.leaving {
            self.leave_again(index);
        }
        Adopted::Visible
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
