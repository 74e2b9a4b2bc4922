//! Declined newcomers: new pages that get no slot, because the page that would give up its own is likelier to
//! be used again. Owns: when a newcomer is declined. Must not know: how likely anything is (the policy does).

use crate::eviction::policy::Newcomer;
use crate::ids::NONE;
use crate::index::list_id::ListId;
use crate::limits::NEWCOMER_PAGES_MAX;
use crate::store::Store;
use crate::store::going::Search;

impl Store {
    /// The rank of a turn that asks for room after `parent`; none: it is not to be declined. With more NVMe
    /// than DRAM little is lost by making way; less holds only what DRAM does.
    pub(crate) fn rank_of(&self, newcomer: Newcomer, parent: u32) -> Option<u32> {
        if self.nvme.capacity_bytes() > self.slots.dram_bytes() {
            return None;
        }
        let (mut pages, mut at) = (newcomer.pages, parent);
        while at != NONE && pages < NEWCOMER_PAGES_MAX {
            (pages, at) = (pages + 1, self.pages[at].parent);
        }
        self.policy.rank(&Newcomer { pages, ..newcomer })
    }

    /// Whether a new page would have to take the room of something worth more.
    pub(crate) fn declines_newcomer(&mut self, ns: u16, rank: Option<u32>) -> bool {
        let Some(rank) = rank else { return false };
        let room = |store: &mut Store| store.slots.has_free_slot(ns).then_some(());
        if room(self).or_else(|| self.claim_from_unfinished(Search::NONE, room)).is_some()
            || !self.is_first_victim_better(ns, rank)
        {
            return false;
        }
        // It counts as an eviction, so that a namespace that keeps what it has still asks for others' colder
        // slabs.
        self.slots.count_eviction(ns);
        self.rebalance(u32::from(ns), Search::NONE);
        !self.slots.has_free_slot(ns)
    }

    fn is_first_victim_better(&mut self, ns: u16, rank: u32) -> bool {
        let victim = self.coldest(ListId::Dram(ns));
        victim.is_some_and(|victim| self.policy.outranks(&self.pages, victim, rank))
    }
}
