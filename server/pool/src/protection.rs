//! Protected pages: they give way last, for a time, within a budget a tenant. Owns: who protects which pages, what they
//! weigh, when protection ends. Must not know: what an eviction is; sessions' turns.
//!
//! Protection is never a lock: it ends by itself, it is bounded, and when nothing else can go a protected page goes.

use crate::Pool;
use crate::entry::PROTECTED;
use crate::ids::{NamespaceIndex, Now, PageKey};
use crate::limits::{DECAY_STEPS, ENDED_PINS_MAX, PROTECTED_ALL_PERCENT, PROTECTIONS_PER_TENANT_MAX};
use crate::slice::Slice;
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
    pages: Vec<PageKey>,
    /// Pages protected when it began: decay counts from here.
    full: usize,
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
    /// How many protections hold a page.
    holds: HashMap<u32, u32>,
    /// By tenant.
    tenants: HashMap<u32, Share>,
    /// Pages of protections that ended, which are let go of bit by bit. Bounded by what was protected.
    going: VecDeque<PageKey>,
    /// Pins that ended by time since somebody asked.
    ended_pins: Vec<(NamespaceIndex, BlockHash)>,
    /// Bytes protected.
    pub(crate) bytes: u64,
    pub(crate) ended: u64,
    /// How many are pins.
    pub(crate) pins: u64,
}

/// What one tenant protects.
#[derive(Default)]
struct Share {
    bytes: u64,
    protections: usize,
}

/// What is asked to be protected.
pub(crate) struct Wish {
    pub(crate) owner: Owner,
    pub(crate) ns: NamespaceIndex,
    pub(crate) rank: u32,
    /// A path from the root.
    pub(crate) pages: Vec<PageKey>,
    pub(crate) for_ms: u64,
    /// Tails are let go step by step until the end.
    pub(crate) decays: bool,
}

/// A protection that is being made, page by page.
pub(crate) struct Protecting {
    wish: Wish,
    tenant: u32,
    /// Leading pages of the wish that are protected.
    count: usize,
}

impl Protecting {
    /// The wish, whose pages may still be being found.
    pub(crate) fn wish_mut(&mut self) -> &mut Wish {
        &mut self.wish
    }
}

impl Protections {
    pub(crate) fn len(&self) -> usize {
        self.owners.len()
    }

    pub(crate) fn pages(&self) -> u64 {
        self.holds.len() as u64
    }

    /// Leading pages that an owner has protected now.
    pub(crate) fn pages_of(&self, owner: Owner) -> usize {
        let held = self.owners.get(&owner).and_then(|at| self.table[*at as usize].as_ref());
        held.map_or(0, |held| held.pages.len())
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

    fn share(&mut self, tenant: u32) -> &mut Share {
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
        self.due.insert((held.due, at));
        self.ranks.insert((held.tenant, held.rank, held.ends, at));
        self.table[at as usize] = Some(held);
    }

    fn take(&mut self, at: u32) -> Option<Protection> {
        let held = self.table[at as usize].take()?;
        self.share(held.tenant).protections -= 1;
        self.owners.remove(&held.owner);
        self.pins -= u64::from(held.rank == PIN_RANK);
        self.due.remove(&(held.due, at));
        self.ranks.remove(&(held.tenant, held.rank, held.ends, at));
        self.free.push(at);
        Some(held)
    }

    /// Ends the weakest protection of a tenant, if it is weaker than `rank`.
    fn displace(&mut self, tenant: u32, rank: u32) -> bool {
        let weakest = self.weaker(tenant, rank).and_then(|at| self.take(at));
        let found = weakest.is_some();
        self.let_go(weakest);
        found
    }

    /// The pages of a protection that ended are let go of in the calls that follow.
    fn let_go(&mut self, held: Option<Protection>) {
        self.going.extend(held.into_iter().flat_map(|held| held.pages));
    }

    fn note_ended(&mut self, owner: Owner) {
        if let (Owner::Pin(ns, pin), true) = (owner, self.ended_pins.len() < ENDED_PINS_MAX) {
            self.ended_pins.push((ns, pin));
        }
    }

    fn first_due(&self, now: Now) -> Option<u32> {
        self.due.first().filter(|(due, _)| *due <= now).map(|(_, at)| *at)
    }

    /// All protections and what holds what, for the check of invariants: pages held, by how many.
    pub(crate) fn recount(&self) -> HashMap<PageKey, u32> {
        let mut counts = HashMap::new();
        for page in self.table.iter().flatten().flat_map(|held| &held.pages).chain(&self.going) {
            *counts.entry(*page).or_default() += 1;
        }
        counts
    }

    /// Pins, for the check of invariants.
    pub(crate) fn recount_pins(&self) -> u64 {
        self.owners.keys().filter(|owner| matches!(owner, Owner::Pin(..))).count() as u64
    }

    /// How many protections hold a page.
    pub(crate) fn holds(&self, index: u32) -> u32 {
        self.holds.get(&index).copied().unwrap_or(0)
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

    /// Protects the leading pages of a path as far as the budget reaches, in place of what the owner had; weaker
    /// protections of the tenant end for it. Returns how many pages.
    pub(crate) fn protect(&mut self, wish: Wish, now: Now) -> usize {
        let mut protecting = self.begin_protection(wish);
        loop {
            let slice = self.slice();
            if self.protect_some(&mut protecting, slice) {
                return self.end_protection(protecting, now);
            }
        }
    }

    /// Begins a protection: its pages are still to come.
    pub(crate) fn begin_protection(&mut self, wish: Wish) -> Protecting {
        let tenant = self.slots.tenant_of(wish.ns);
        Protecting { wish, tenant, count: 0 }
    }

    /// Protects the next pages of a wish. True: all of them, or as many as the budget allows. Other calls may come between
    /// two of these.
    pub(crate) fn protect_some(&mut self, protecting: &mut Protecting, slice: Slice) -> bool {
        while let Some(page) = protecting.wish.pages.get(protecting.count).copied() {
            if self.is_over(slice) {
                return false;
            }
            match self.protect_page(page, protecting.tenant, protecting.wish.rank, slice) {
                Some(true) => protecting.count += 1,
                Some(false) => return true,
                None => return false,
            }
        }
        true
    }

    /// What was protected for the wish is its owner's from now on, in place of what it had. Returns how many pages.
    pub(crate) fn end_protection(&mut self, protecting: Protecting, now: Now) -> usize {
        let Protecting { mut wish, tenant, count } = protecting;
        wish.pages.truncate(count);
        // What was protected before stayed so in between: its bytes are counted once.
        let old = self.protections.owners.get(&wish.owner).copied();
        let old = old.and_then(|at| self.protections.take(at));
        self.protections.let_go(old);
        let full = self.protections.share(tenant).protections >= PROTECTIONS_PER_TENANT_MAX;
        if full && !self.protections.displace(tenant, wish.rank) {
            self.protections.going.extend(wish.pages);
            return 0;
        }
        if wish.pages.is_empty() {
            return 0;
        }
        let ends = now.saturating_add(wish.for_ms);
        let step_ms = if wish.decays { (wish.for_ms / DECAY_STEPS).max(1) } else { wish.for_ms };
        let due = now.saturating_add(step_ms).min(ends);
        let (owner, rank, full, pages) = (wish.owner, wish.rank, wish.pages.len(), wish.pages);
        self.protections.insert(Protection { owner, tenant, rank, pages, full, ends, due, step_ms });
        count
    }

    /// Ends an owner's protection.
    pub(crate) fn unprotect(&mut self, owner: Owner) -> bool {
        self.unprotect_after(owner, 0)
    }

    /// Ends an owner's protection of the pages after the first `keep`. False: it had none.
    pub(crate) fn unprotect_after(&mut self, owner: Owner, keep: usize) -> bool {
        let Some(at) = self.protections.owners.get(&owner).copied() else { return false };
        let Some(held) = self.protections.table[at as usize].as_mut() else { return false };
        if keep >= held.pages.len() {
            return true;
        }
        let cut = held.pages.split_off(keep);
        held.full = held.full.min(keep);
        if keep == 0 {
            self.protections.take(at);
        }
        cut.into_iter().for_each(|page| self.unprotect_page(page));
        true
    }

    /// Ends an owner's protection; its pages are let go of bit by bit. False: it had none.
    pub(crate) fn unprotect_some(&mut self, owner: Owner, slice: Slice) -> bool {
        let held = self.protections.owners.get(&owner).copied().and_then(|at| self.protections.take(at));
        let found = held.is_some();
        self.protections.let_go(held);
        self.let_go_some(slice);
        found
    }

    /// Lets go of pages whose protection ended. True: of all of them.
    pub(crate) fn let_go_some(&mut self, slice: Slice) -> bool {
        while !self.is_over(slice) {
            if !self.let_go_of_next() {
                return true;
            }
        }
        false
    }

    /// Lets go of what is due: tails of decaying protections, and all of those that end. False: the slice is over before all of
    /// it is done.
    pub(crate) fn expire_protections(&mut self, now: Now, slice: Slice) -> bool {
        while let Some(at) = self.protections.first_due(now) {
            if self.is_over(slice) {
                return false;
            }
            self.step();
            let Some(mut held) = self.protections.take(at) else { break };
            if held.ends <= now {
                self.protections.ended += 1;
                self.protections.note_ended(held.owner);
                self.protections.let_go(Some(held));
                continue;
            }
            let left = held.ends - now;
            // Rounded up, so that the head is kept to the end.
            let keep = (held.full as u64 * left).div_ceil((held.step_ms * DECAY_STEPS).max(left)) as usize;
            let cut = held.pages.split_off(keep.min(held.pages.len()));
            held.due = now.saturating_add(held.step_ms).min(held.ends);
            self.protections.going.extend(cut);
            self.protections.insert(held);
        }
        self.let_go_some(slice)
    }

    /// Pins that ended by time since the last call: what was saved of them can go.
    pub fn take_ended_pins(&mut self) -> Vec<(NamespaceIndex, BlockHash)> {
        std::mem::take(&mut self.protections.ended_pins)
    }

    /// A page leaves the index: nobody protects it any more.
    pub(crate) fn forget_protected(&mut self, index: u32) {
        if self.pages[index].has(PROTECTED) {
            self.protections.holds.remove(&index);
            self.weigh(index, false);
        }
    }

    /// One more protection holds a page. False: the budget is used up, and nothing weaker can end for it. None: the slice is
    /// over before that is known.
    fn protect_page(&mut self, page: PageKey, tenant: u32, rank: u32, slice: Slice) -> Option<bool> {
        self.step();
        let Some(index) = self.pages.resolve(page) else { return Some(false) };
        let bytes = self.page_bytes(index);
        let (own, all) = (self.protection_budget(), self.dram_share(PROTECTED_ALL_PERCENT));
        while !self.pages[index].has(PROTECTED)
            && (self.protections.share(tenant).bytes + bytes > own || self.protections.bytes + bytes > all)
        {
            if self.is_over(slice) {
                return None;
            }
            // What has ended already gives way before anything else ends for it.
            if !self.let_go_of_next() && !self.protections.displace(tenant, rank) {
                return Some(false);
            }
        }
        *self.protections.holds.entry(index).or_default() += 1;
        if !self.pages[index].has(PROTECTED) {
            self.weigh(index, true);
        }
        Some(true)
    }

    /// Lets go of one page of a protection that ended. False: there is none.
    fn let_go_of_next(&mut self) -> bool {
        let Some(page) = self.protections.going.pop_front() else { return false };
        self.step();
        self.unprotect_page(page);
        true
    }

    fn unprotect_page(&mut self, page: PageKey) {
        let Some(index) = self.pages.resolve(page) else { return };
        let Some(holds) = self.protections.holds.get_mut(&index) else { return };
        *holds -= 1;
        if *holds == 0 {
            self.protections.holds.remove(&index);
            self.weigh(index, false);
            self.bring_back(index);
        }
    }

    /// Sets or clears the mark of a page, and counts its bytes.
    fn weigh(&mut self, index: u32, protected: bool) {
        let bytes = self.page_bytes(index);
        let tenant = self.slots.tenant_of(NamespaceIndex(self.pages[index].ns));
        if protected {
            self.protections.share(tenant).bytes += bytes;
            self.protections.bytes += bytes;
            self.pages[index].flags |= PROTECTED;
        } else {
            self.protections.share(tenant).bytes -= bytes;
            self.protections.bytes -= bytes;
            self.pages[index].flags &= !PROTECTED;
        }
    }

    /// Bytes of a page, all shards.
    pub(crate) fn page_bytes(&self, index: u32) -> u64 {
        self.shard_bytes(index) * u64::from(self.pages.shards(index))
    }
}
