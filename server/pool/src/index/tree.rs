//! Questions about pages and what hangs on them. Owns: the answers, as entries have them.
//! Must not know: what follows from an answer.

use crate::call::Call;
use crate::ids::{NONE, PageKey};
use crate::index::arena::Pages;
use crate::index::flags::{
    COUNTED_DRAM, CellFlags, DIRTY, LEAVING, ON_NVME, PROMISED, PROMOTING, PROTECTED, VICTIM, WRITING,
};
use crate::limits::{LEAF_WALK_MAX, TAIL_WALK_MAX, VICTIM_CHILDREN_MAX};
use crate::memory::slots::Slots;

impl Pages {
    /// Bytes of a page, all shards.
    pub(crate) fn page_bytes(&self, slots: &Slots, index: u32) -> u64 {
        slots.shard_bytes_of(self[index].ns) * u64::from(self.shards(index))
    }

    /// A page in DRAM that hangs on this one and leads to none there: tails go before heads in this tier as
    /// well. None: too far away to look for.
    pub(crate) fn tail_in_dram(&self, index: u32, call: &mut Call) -> Option<u32> {
        self.tail_by(index, call, Pages::child_in_dram)
    }

    /// The page at the end of some way down from this one. None: too far away to look for.
    pub(crate) fn tail_by(
        &self,
        mut index: u32,
        call: &mut Call,
        next: impl Fn(&Pages, u32) -> Option<u32>,
    ) -> Option<u32> {
        for passed in 0..TAIL_WALK_MAX {
            let Some(child) = next(self, index) else {
                call.pass(passed.into());
                return Some(index);
            };
            index = child;
        }
        call.pass(TAIL_WALK_MAX.into());
        None
    }

    /// Whether a page (`NONE`: none) is another one, or hangs on it.
    pub(crate) fn leads_to(&self, index: u32, page: u32) -> bool {
        let depth = self.depth(index);
        let below = page != NONE && self.depth(page) >= depth;
        below && self.ancestor(page, depth) == index
    }

    /// One of the first children of a page that are in DRAM.
    pub(crate) fn child_in_dram(&self, index: u32) -> Option<u32> {
        let mut child = self[index].first_child;
        for _ in 0..VICTIM_CHILDREN_MAX {
            if child == NONE || self[child].has(COUNTED_DRAM) {
                break;
            }
            child = self.next_sibling(child);
        }
        Some(child).filter(|child| *child != NONE && self[*child].has(COUNTED_DRAM))
    }

    /// One of the first children of a page that are on NVMe, or will be, and not leaving.
    pub(crate) fn staying_child(&self, index: u32) -> Option<u32> {
        let mut child = self[index].first_child;
        for _ in 0..VICTIM_CHILDREN_MAX {
            if child == NONE {
                return None;
            }
            let entry = &self[child];
            if entry.is_visible() && !entry.has(LEAVING) && self.is_bound_for_nvme(child) {
                return Some(child);
            }
            child = self.next_sibling(child);
        }
        None
    }

    /// Whether some of a page is on NVMe or on its way there.
    pub(crate) fn is_bound_for_nvme(&self, index: u32) -> bool {
        self.cells(index).iter().any(|cell| cell.has(ON_NVME | DIRTY))
    }

    /// A child that is on NVMe, or will be. These come before their siblings, but for pages that nobody sees
    /// yet.
    pub(crate) fn nvme_child(&self, index: u32) -> Option<u32> {
        let mut child = self[index].first_child;
        while child != NONE && !self[child].is_visible() {
            child = self.next_sibling(child);
        }
        Some(child).filter(|child| *child != NONE && self.is_bound_for_nvme(*child))
    }

    pub(crate) fn is_promised(&self, index: u32) -> bool {
        self[index].has(PROMISED)
    }

    /// Whether all that hangs on a page was left, and no session ends there.
    fn leads_nowhere(&self, index: u32) -> bool {
        let mut child = self[index].first_child;
        for _ in 0..VICTIM_CHILDREN_MAX {
            if child == NONE {
                return true;
            }
            if !self[child].has(VICTIM) || self[child].cell.ends() > 0 {
                return false;
            }
            child = self.next_sibling(child);
        }
        child == NONE
    }

    /// Whether something else branches off at a page, or ends there, than a list that ends at `own`.
    pub(crate) fn is_shared(&self, index: u32, own: u32) -> bool {
        let entry = &self[index];
        let other_tips = entry.cell.ends() > u32::from(index == own);
        let siblings = entry.first_child != NONE && self.next_sibling(entry.first_child) != NONE;
        let beyond = index == own && entry.first_child != NONE;
        other_tips || siblings || beyond
    }

    pub(crate) fn is_written(&self, index: u32) -> bool {
        self.cells(index).iter().all(|cell| cell.has(ON_NVME))
    }

    pub(crate) fn is_writable(&self, index: u32, shard: u16) -> bool {
        let cell = self.cell(index, shard);
        cell.has(DIRTY) && !cell.has(WRITING | PROMOTING)
    }

    /// The entry of an operation that is in flight, also of a page that is gone.
    pub(crate) fn in_flight(&self, page: PageKey, shard: u16, operation: CellFlags) -> Option<u32> {
        let index = self.resolve_any(page).filter(|index| shard < self.shards(*index))?;
        self.cell(index, shard).has(operation).then_some(index)
    }

    /// The entry of a grant, if the page is still there and still waits for this slot to be filled.
    pub(crate) fn granted(&self, page: PageKey, shard: u16, slot: u32) -> Option<u32> {
        let index = self.resolve(page)?;
        let cell = self.cell(index, shard);
        (cell.slot == slot && cell.granted()).then_some(index)
    }

    pub(crate) fn has_no_use(&self, index: u32, tails: bool) -> bool {
        let entry = &self[index];
        let used = entry.cell.ends() > 0 || entry.has(PROTECTED);
        (!tails || entry.cell.tail_tokens() > 0) && !used && self.leads_nowhere(index)
    }

    /// Whether a page that is on NVMe alone leads to one in DRAM.
    pub(crate) fn leads_to_dram(&self, index: u32) -> bool {
        if self[index].has(COUNTED_DRAM) {
            return false;
        }
        self.child_in_dram(index).is_some()
    }

    /// A leaf below a page, or a page on the way to one that is too far away.
    pub(crate) fn first_leaf(&self, mut index: u32, call: &mut Call) -> u32 {
        let mut links = 0;
        while !self[index].is_leaf() && links < LEAF_WALK_MAX {
            (index, links) = (self[index].first_child, links + 1);
        }
        call.pass(links);
        index
    }
}
