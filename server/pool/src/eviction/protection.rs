//! Protected pages: they give way last, for a time, within a budget a tenant. Owns: who protects which pages, what they
//! weigh, when protection ends. Must not know: what an eviction is; sessions' turns.
//!
//! Protection is never a lock: it ends by itself, it is bounded, and when nothing else can go a protected page goes.
//!
//! What is protected is a path from the root, so it is told by its end. A page is held by each protection that ends at it and
//! by each child that is protected itself: many protections of one prefix cost what one does, and a little each.

use crate::Pool;
use crate::call::Slice;
use crate::ids::{NamespaceIndex, Now};
use crate::index::entry::NONE;
use crate::index::flags::PROTECTED;
use crate::index::path::PathEnd;
use crate::limits::{
    DECAY_STEPS, ENDED_PINS_MAX, FIND_PAGES_AT_ONCE, LET_GO_PAGES_AT_ONCE, ORDER_BYTES,
    PROTECTED_ALL_PERCENT, PROTECTIONS_PER_TENANT_MAX,
};
use crate::sessions::tips::{TipId, TipKeeper};
use hashbrown::HashMap;
use std::collections::{BTreeSet, VecDeque};
use turnkv_proto::BlockHash;

/// Rank of a pin: above any session's priority.
pub(crate) const PIN_RANK: u32 = u32::MAX;

/// Who asked for protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// A prefix, named by its last page.
    Pin(NamespaceIndex, BlockHash),
    /// A session, by its place in the table.
    Session(u32),
}

/// One protected path, from the root.
#[derive(Clone, Debug)]
struct Protection {
    owner: Owner,
    tenant: u32,
    rank: u32,
    tip: TipId,
    /// Pages protected when it began: decay counts from here.
    full: u32,
    ends: Now,
    /// When the next of its tails is let go; the end, for one that does not decay.
    due: Now,
    step_ms: u64,
}

/// All protections.
#[derive(Default)]
pub(crate) struct Protections {
    table: Vec<Option<Protection>>,
    free: Vec<u32>,
    owners: HashMap<Owner, u32>,
    due: BTreeSet<(Now, u32)>,
    /// By tenant, the least important first, then the one that ends first.
    ranks: BTreeSet<(u32, u32, Now, u32)>,
    /// By page: how many protections end there, and children are protected.
    holds: HashMap<u32, u32>,
    /// By tenant.
    tenants: HashMap<u32, TenantProtected>,
    /// Ends of protections that are over, whose pages are let go of bit by bit. Bounded by what was protected.
    going: VecDeque<TipId>,
    /// Ends of what is being protected, by calls that are not over. Bounded by the calls in service.
    making: Vec<TipId>,
    /// Pins that ended by time since somebody asked.
    ended_pins: Vec<(NamespaceIndex, BlockHash)>,
    /// Bytes protected.
    pub(crate) bytes: u64,
    pub(crate) ended: u64,
    /// How many are pins.
    pub(crate) pins: u64,
    /// Pins of each namespace.
    owned: HashMap<NamespaceIndex, u32>,
}

/// What one tenant protects.
#[derive(Default)]
struct TenantProtected {
    bytes: u64,
    protections: usize,
}

/// What is asked to be protected.
pub(crate) struct ProtectionWish {
    pub(crate) owner: Owner,
    pub(crate) ns: NamespaceIndex,
    pub(crate) rank: u32,
    /// What is to be protected, from the root.
    pub(crate) path: PathEnd,
    pub(crate) for_ms: u64,
    /// Tails are let go step by step until the end.
    pub(crate) decays: bool,
}

/// How far the protection of a path came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProtectReach {
    /// To its end.
    All,
    /// As far as the budget allows.
    Budget,
    /// The slice is over: the rest is for the next one.
    Slice,
}

impl Protections {
    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }

    pub(crate) fn pages(&self) -> u64 {
        self.holds.len() as u64
    }

    /// One past the highest place in the table.
    pub(crate) fn end(&self) -> u32 {
        self.table.len() as u32
    }

    /// Pins of one namespace.
    pub(crate) fn pins_of(&self, ns: NamespaceIndex) -> u32 {
        self.owned.get(&ns).copied().unwrap_or(0)
    }

    /// The pin whose protection is at a place of the table, by its namespace and name.
    pub(crate) fn pin_at(&self, at: u32) -> Option<(NamespaceIndex, BlockHash)> {
        let held = self.table.get(at as usize)?.as_ref()?;
        if let Owner::Pin(ns, pin) = held.owner { Some((ns, pin)) } else { None }
    }

    /// When an owner's protection ends.
    pub(crate) fn ends_of(&self, owner: Owner) -> Option<Now> {
        let at = self.owners.get(&owner)?;
        self.table[*at as usize].as_ref().map(|held| held.ends)
    }

    /// Bytes of the tenant that protects most.
    pub(crate) fn fullest_bytes(&self) -> u64 {
        self.tenants.values().map(|share| share.bytes).max().unwrap_or(0)
    }

    fn share(&mut self, tenant: u32) -> &mut TenantProtected {
        self.tenants.entry(tenant).or_default()
    }

    /// The protection of a tenant to give up first for one of this rank.
    fn weaker(&self, tenant: u32, rank: u32) -> Option<u32> {
        self.ranks.range((tenant, 0, 0, 0)..(tenant, rank, 0, 0)).next().map(|(_, _, _, at)| *at)
    }

    fn insert(&mut self, held: Protection) {
        let at = self.free.pop().unwrap_or_else(|| {
            self.table.push(None);
            self.table.len() as u32 - 1
        });
        self.share(held.tenant).protections += 1;
        self.owners.insert(held.owner, at);
        self.pins += u64::from(held.rank == PIN_RANK);
        if let Owner::Pin(ns, _) = held.owner {
            *self.owned.entry(ns).or_default() += 1;
        }
        self.due.insert((held.due, at));
        self.ranks.insert((held.tenant, held.rank, held.ends, at));
        self.table[at as usize] = Some(held);
    }

    fn take(&mut self, at: u32) -> Option<Protection> {
        let held = self.table[at as usize].take()?;
        self.share(held.tenant).protections -= 1;
        self.owners.remove(&held.owner);
        self.pins -= u64::from(held.rank == PIN_RANK);
        if let Owner::Pin(ns, _) = held.owner
            && let Some(owned) = self.owned.get_mut(&ns)
        {
            *owned -= 1;
            if *owned == 0 {
                self.owned.remove(&ns);
            }
        }
        self.due.remove(&(held.due, at));
        self.ranks.remove(&(held.tenant, held.rank, held.ends, at));
        self.free.push(at);
        Some(held)
    }

    fn first_due(&self, now: Now) -> Option<u32> {
        self.due.first().filter(|(due, _)| *due <= now).map(|(_, at)| *at)
    }

    /// A protection is over: its pages are let go of in the calls that follow.
    fn let_go(&mut self, held: Option<Protection>) -> bool {
        self.going.extend(held.as_ref().map(|held| held.tip));
        held.is_some()
    }

    /// Ends the weakest protection of a tenant, if it is weaker than `rank`.
    fn displace(&mut self, tenant: u32, rank: u32) -> bool {
        let weakest = self.weaker(tenant, rank).and_then(|at| self.take(at));
        self.let_go(weakest)
    }

    fn note_ended(&mut self, owner: Owner) {
        self.ended += 1;
        if let (Owner::Pin(ns, pin), true) = (owner, self.ended_pins.len() < ENDED_PINS_MAX) {
            self.ended_pins.push((ns, pin));
        }
    }

    /// A call is over that was protecting up to here.
    fn made(&mut self, tip: TipId) {
        if let Some(at) = self.making.iter().position(|other| *other == tip) {
            self.making.swap_remove(at);
        }
    }

    /// Ends of what is held without an owner, for the check of invariants.
    pub(crate) fn unowned(&self) -> impl Iterator<Item = TipId> {
        self.going.iter().chain(&self.making).copied()
    }

    /// Who protects, for the check of invariants.
    pub(crate) fn owners(&self) -> impl Iterator<Item = Owner> {
        self.owners.keys().copied()
    }

    /// Pins, for the check of invariants.
    pub(crate) fn recount_pins(&self) -> u64 {
        self.owners.keys().filter(|owner| matches!(owner, Owner::Pin(..))).count() as u64
    }

    /// How many protections end at a page, and children of it are protected.
    pub(crate) fn holds(&self, index: u32) -> u32 {
        self.holds.get(&index).copied().unwrap_or(0)
    }

    pub(crate) fn bytes(&self) -> usize {
        let orders = (self.due.len() + self.ranks.len()) * ORDER_BYTES;
        let table = self.table.capacity() * size_of::<Option<Protection>>();
        table + self.owners.allocation_size() + self.holds.allocation_size() + orders
    }
}

impl Pool {
    /// What one tenant may protect.
    pub(crate) fn protection_budget(&self) -> u64 {
        self.dram_share(self.config.limits.protected_percent)
    }

    fn dram_share(&self, percent: u8) -> u64 {
        u64::from(self.config.slab_count) * self.config.slab_bytes * u64::from(percent) / 100
    }

    /// Protects the leading pages of a path, as far as the budget reaches, after those that `held` protects already; weaker
    /// protections of the tenant end for it. Returns where it ends now: what is held so must be given to an owner
    /// (`own_protected`), or up (`disown_protected`), in the end.
    pub(crate) fn protect_more(
        &mut self,
        held: Option<TipId>,
        wish: &ProtectionWish,
        slice: Slice,
    ) -> (Option<TipId>, ProtectReach) {
        let tenant = self.slots.tenant_of(wish.ns.0);
        let (end, reach) = self.protect_path(wish.path, tenant, wish.rank, slice);
        let tip = (end != PathEnd::EMPTY).then(|| self.tips.add(end, TipKeeper::Protection));
        if let Some(held) = held {
            // The page where it ended is held by its child from now on, or is the end still.
            let before = self.tips.end(held);
            if let Some(holds) = self.protections.holds.get_mut(&before.page) {
                *holds -= 1;
            }
            self.tips.drop(held, TipKeeper::Protection);
            self.protections.made(held);
        }
        self.protections.making.extend(tip);
        (tip, reach)
    }

    /// What was protected for a wish is its owner's from now on, in place of what it had. Returns how many pages.
    pub(crate) fn own_protected(&mut self, tip: Option<TipId>, wish: &ProtectionWish, now: Now) -> u32 {
        let tenant = self.slots.tenant_of(wish.ns.0);
        tip.into_iter().for_each(|tip| self.protections.made(tip));
        // What was protected before stayed so in between: its bytes are counted once.
        let old = self.protections.owners.get(&wish.owner).copied();
        let old = old.and_then(|at| self.protections.take(at));
        self.protections.let_go(old);
        let full = self.protections.share(tenant).protections >= PROTECTIONS_PER_TENANT_MAX;
        let refused = full && !self.protections.displace(tenant, wish.rank);
        let kept = tip.filter(|_| !refused);
        if kept.is_none() {
            self.protections.going.extend(tip);
        }
        let pages = kept.map_or(0, |tip| self.tips.end(tip).pages);
        if let Some(tip) = kept {
            let ends = now.saturating_add(wish.for_ms);
            let step_ms = if wish.decays { (wish.for_ms / DECAY_STEPS).max(1) } else { wish.for_ms };
            let due = now.saturating_add(step_ms).min(ends);
            let (owner, rank, full) = (wish.owner, wish.rank, pages);
            self.protections.insert(Protection { owner, tenant, rank, tip, full, ends, due, step_ms });
        }
        let slice = self.call.rest();
        self.let_go_some(slice);
        pages
    }

    /// What was protected for a wish is nobody's.
    pub(crate) fn disown_protected(&mut self, tip: Option<TipId>) {
        tip.into_iter().for_each(|tip| self.protections.made(tip));
        self.protections.going.extend(tip);
    }

    /// Ends an owner's protection. False: it had none.
    pub(crate) fn unprotect(&mut self, owner: Owner) -> bool {
        self.unprotect_after(owner, 0)
    }

    /// Ends an owner's protection of the pages after the first `keep`; they are let go of bit by bit. False: it had none.
    pub(crate) fn unprotect_after(&mut self, owner: Owner, keep: u32) -> bool {
        let Some(at) = self.protections.owners.get(&owner).copied() else { return false };
        let Some(mut held) = self.protections.take(at) else { return false };
        let end = self.tips.end(held.tip);
        self.protections.going.push_back(held.tip);
        let kept = self.pages.cut(end, keep.min(end.pages));
        if kept.page != NONE {
            // Held first, so that it stays when what is after it goes.
            *self.protections.holds.entry(kept.page).or_default() += 1;
            held.tip = self.tips.add(kept, TipKeeper::Protection);
            held.full = held.full.min(keep);
            self.protections.insert(held);
        }
        let slice = self.call.rest();
        self.let_go_some(slice);
        true
    }

    /// Lets go of pages of protections that are over. True: of all of them.
    pub(crate) fn let_go_some(&mut self, slice: Slice) -> bool {
        while !self.call.is_over(slice) {
            if !self.let_go_of_next() {
                return true;
            }
        }
        false
    }

    /// Pins that ended by time since the last call: what was saved of them can go.
    pub fn take_ended_pins(&mut self) -> Vec<(NamespaceIndex, BlockHash)> {
        std::mem::take(&mut self.protections.ended_pins)
    }

    /// Lets go of what is due: tails of decaying protections, and all of those that end. False: the slice is over, and the rest
    /// is due in the next one.
    pub(crate) fn expire_protections(&mut self, now: Now, slice: Slice) -> bool {
        while let Some(at) = self.protections.first_due(now) {
            if self.call.is_over(slice) {
                return false;
            }
            self.call.step();
            let mut left = LET_GO_PAGES_AT_ONCE;
            let Some(mut held) = self.protections.take(at) else { break };
            let rest = held.ends.saturating_sub(now);
            // Rounded up, so that the head is kept to the end.
            let keep = (u64::from(held.full) * rest).div_ceil((held.step_ms * DECAY_STEPS).max(rest)) as u32;
            let Some(tip) = self.release_path(held.tip, keep, &mut left) else {
                self.protections.note_ended(held.owner);
                continue;
            };
            held.tip = tip;
            if rest > 0 && self.tips.end(tip).pages <= keep {
                held.due = now.saturating_add(held.step_ms).min(held.ends);
            }
            self.protections.insert(held);
        }
        self.let_go_some(slice)
    }

    /// Where the leading pages end that an owner has protected now.
    pub(crate) fn protected_end(&self, owner: Owner) -> PathEnd {
        let held =
            self.protections.owners.get(&owner).and_then(|at| self.protections.table[*at as usize].as_ref());
        held.map_or(PathEnd::EMPTY, |held| self.tips.end(held.tip))
    }

    /// A page that nothing hangs on leaves the index: what is protected ends at the page before it.
    pub(crate) fn forget_protected(&mut self, index: u32) {
        let Some(ended) = self.protections.holds.remove(&index) else { return };
        self.weigh(index, false);
        let parent = self.pages[index].parent;
        if let Some(holds) = self.protections.holds.get_mut(&parent) {
            *holds += ended - 1;
        }
    }

    /// Protects the pages of a path, from the root as far as the budget reaches, and holds the last one.
    fn protect_path(
        &mut self,
        path: PathEnd,
        tenant: u32,
        rank: u32,
        slice: Slice,
    ) -> (PathEnd, ProtectReach) {
        // What is protected is a path from the root.
        let page = self.pages.last_that(path.page, |entry| entry.has(PROTECTED));
        let mut end = PathEnd { page, pages: self.pages.depth(page) };
        // Held first, so that it stays when others' protection ends for this one.
        if end.page != NONE {
            *self.protections.holds.entry(end.page).or_default() += 1;
        }
        while end.pages < path.pages {
            let to = path.pages.min(end.pages + FIND_PAGES_AT_ONCE as u32);
            for index in self.pages.between(self.pages.cut(path, to), end.pages) {
                let reach = self.make_budget(index, tenant, rank, slice);
                if reach != ProtectReach::All {
                    return (end, reach);
                }
                self.call.step();
                // The page before was held as the end, and is now for this child.
                self.protections.holds.insert(index, 1);
                self.weigh(index, true);
                end = PathEnd { page: index, pages: end.pages + 1 };
            }
        }
        (end, ProtectReach::All)
    }

    /// Room in the budget for one page more; not all of it, where the budget is used up and nothing weaker can end for it.
    fn make_budget(&mut self, index: u32, tenant: u32, rank: u32, slice: Slice) -> ProtectReach {
        let bytes = self.page_bytes(index);
        let (own, all) = (self.protection_budget(), self.dram_share(PROTECTED_ALL_PERCENT));
        while self.protections.share(tenant).bytes + bytes > own || self.protections.bytes + bytes > all {
            if self.call.is_over(slice) {
                return ProtectReach::Slice;
            }
            // What is over already gives way before anything else ends for it.
            if !self.let_go_of_next() && !self.protections.displace(tenant, rank) {
                return ProtectReach::Budget;
            }
        }
        if self.call.is_over(slice) { ProtectReach::Slice } else { ProtectReach::All }
    }

    /// Lets go of some pages of a protection that is over. False: there is none.
    fn let_go_of_next(&mut self) -> bool {
        let Some(tip) = self.protections.going.pop_front() else { return false };
        let rest = self.release_path(tip, 0, &mut { LET_GO_PAGES_AT_ONCE });
        if let Some(rest) = rest {
            self.protections.going.push_front(rest);
        }
        true
    }

    /// One protection lets go of its pages after the first `keep`, or of as many as are left to this call. Returns where it
    /// ends now; none: it is over.
    fn release_path(&mut self, tip: TipId, keep: u32, left: &mut u32) -> Option<TipId> {
        let mut end = self.tips.end(tip);
        self.call.step();
        // Pages that nothing else holds are free one after the other; each hands its hold on to the one before.
        while end.pages > keep && *left > 0 && self.protections.holds(end.page) == 1 {
            let parent = self.pages[end.page].parent;
            self.call.step();
            self.protections.holds.remove(&end.page);
            self.weigh(end.page, false);
            self.end_deferral(end.page);
            end = PathEnd { page: parent, pages: end.pages - 1 };
            *left -= 1;
        }
        if end.pages > keep && *left > 0 {
            // From here on others hold what this one did.
            let new = self.pages.cut(end, keep);
            *left -= 1;
            if let Some(holds) = self.protections.holds.get_mut(&end.page) {
                *holds -= 1;
            }
            if new.page != NONE {
                *self.protections.holds.entry(new.page).or_default() += 1;
            }
            end = new;
        }
        if end == self.tips.end(tip) && end.pages > 0 {
            return Some(tip);
        }
        let new = (end.pages > 0).then(|| self.tips.add(end, TipKeeper::Protection));
        self.tips.drop(tip, TipKeeper::Protection);
        new
    }

    /// Sets or clears the mark of a page, and counts its bytes.
    fn weigh(&mut self, index: u32, protected: bool) {
        let bytes = self.page_bytes(index);
        let tenant = self.slots.tenant_of(self.pages[index].ns);
        if protected {
            self.protections.share(tenant).bytes += bytes;
            self.protections.bytes += bytes;
            self.pages.set_protected(index, true);
        } else {
            self.protections.share(tenant).bytes -= bytes;
            self.protections.bytes -= bytes;
            self.pages.set_protected(index, false);
        }
    }

    /// Bytes of a page, all shards.
    pub(crate) fn page_bytes(&self, index: u32) -> u64 {
        self.slots.shard_bytes_of(self.pages[index].ns) * u64::from(self.pages.shards(index))
    }
}
