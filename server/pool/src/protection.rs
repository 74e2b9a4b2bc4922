//! Protected pages: they give way last, for a time, within a budget a tenant. Owns: who protects which pages, what they
//! weigh, when protection ends. Must not know: what an eviction is; sessions' turns.
//!
//! Protection is never a lock: it ends by itself, it is bounded, and when nothing else can go a protected page goes.

use crate::Pool;
use crate::entry::PROTECTED;
use crate::ids::{NamespaceIndex, Now, PageKey};
use crate::limits::{DECAY_STEPS, PROTECTED_ALL_PERCENT, PROTECTIONS_PER_TENANT_MAX};
use hashbrown::HashMap;
use std::collections::BTreeSet;
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

    /// The owner of the protection at a place of the table, if it is a pin of a namespace.
    pub(crate) fn pin_at(&self, at: u32, ns: NamespaceIndex) -> Option<Owner> {
        let owner = self.table.get(at as usize)?.as_ref()?.owner;
        matches!(owner, Owner::Pin(of, _) if of == ns).then_some(owner)
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

    /// All protections and what holds what, for the check of invariants: pages held, by how many.
    pub(crate) fn recount(&self) -> HashMap<PageKey, u32> {
        let mut counts = HashMap::new();
        for page in self.table.iter().flatten().flat_map(|held| &held.pages) {
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
        let tenant = self.slots.tenant_of(wish.ns.0);
        let old = self.protections.owners.get(&wish.owner).copied();
        let old = old.and_then(|at| self.protections.take(at));
        let full = self.protections.share(tenant).protections >= PROTECTIONS_PER_TENANT_MAX;
        if full && !self.displace(tenant, wish.rank) {
            self.let_all_go(old);
            return 0;
        }
        let mut pages = wish.pages;
        let mut count = 0;
        while count < pages.len() && self.protect_page(pages[count], tenant, wish.rank) {
            count += 1;
        }
        pages.truncate(count);
        // What was protected before stays so in between: its bytes are counted once.
        self.let_all_go(old);
        if pages.is_empty() {
            return 0;
        }
        let ends = now.saturating_add(wish.for_ms);
        let step_ms = if wish.decays { (wish.for_ms / DECAY_STEPS).max(1) } else { wish.for_ms };
        let due = now.saturating_add(step_ms).min(ends);
        let (owner, rank, full) = (wish.owner, wish.rank, pages.len());
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

    /// Lets go of what is due: tails of decaying protections, and all of those that end.
    pub(crate) fn expire_protections(&mut self, now: Now) {
        while let Some(at) = self.protections.first_due(now) {
            let Some(mut held) = self.protections.take(at) else { return };
            if held.ends <= now {
                self.protections.ended += 1;
                self.let_all_go(Some(held));
                continue;
            }
            let left = held.ends - now;
            // Rounded up, so that the head is kept to the end.
            let keep = (held.full as u64 * left).div_ceil((held.step_ms * DECAY_STEPS).max(left)) as usize;
            let cut = held.pages.split_off(keep.min(held.pages.len()));
            held.due = now.saturating_add(held.step_ms).min(held.ends);
            cut.into_iter().for_each(|page| self.unprotect_page(page));
            self.protections.insert(held);
        }
    }

    /// A page leaves the index: nobody protects it any more.
    pub(crate) fn forget_protected(&mut self, index: u32) {
        if self.pages[index].has(PROTECTED) {
            self.protections.holds.remove(&index);
            self.weigh(index, false);
        }
    }

    /// One more protection holds a page. False: the budget is used up, and nothing weaker can end for it.
    fn protect_page(&mut self, page: PageKey, tenant: u32, rank: u32) -> bool {
        let Some(index) = self.pages.resolve(page) else { return false };
        let bytes = self.page_bytes(index);
        let (own, all) = (self.protection_budget(), self.dram_share(PROTECTED_ALL_PERCENT));
        while !self.pages[index].has(PROTECTED)
            && (self.protections.share(tenant).bytes + bytes > own || self.protections.bytes + bytes > all)
        {
            if !self.displace(tenant, rank) {
                return false;
            }
        }
        *self.protections.holds.entry(index).or_default() += 1;
        if !self.pages[index].has(PROTECTED) {
            self.weigh(index, true);
        }
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

    /// Ends the weakest protection of a tenant, if it is weaker than `rank`.
    fn displace(&mut self, tenant: u32, rank: u32) -> bool {
        let weakest = self.protections.weaker(tenant, rank);
        let weakest = weakest.and_then(|at| self.protections.take(at));
        let found = weakest.is_some();
        self.let_all_go(weakest);
        found
    }

    fn let_all_go(&mut self, held: Option<Protection>) {
        held.into_iter().flat_map(|held| held.pages).for_each(|page| self.unprotect_page(page));
    }

    /// Sets or clears the mark of a page, and counts its bytes.
    fn weigh(&mut self, index: u32, protected: bool) {
        let bytes = self.page_bytes(index);
        let tenant = self.slots.tenant_of(self.pages[index].ns);
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
