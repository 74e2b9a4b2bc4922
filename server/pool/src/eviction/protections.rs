//! Protections: by owner, by rank, by when they are due. Owns: the table, and what each tenant
//! protects. Must not know: budgets, when a protection ends.

use crate::ids::{NamespaceIndex, Now};
use crate::index::arena::Pages;
use crate::index::path_end::PathEnd;
use crate::index::tips::TipId;
use crate::limits::{ENDED_PINS_MAX, ORDER_BYTES};
use crate::memory::slots::Slots;
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
pub(crate) struct Protection {
    pub(crate) owner: Owner,
    pub(crate) tenant: u32,
    pub(crate) rank: u32,
    pub(crate) tip: TipId,
    /// Pages protected when it began: decay counts from here.
    pub(crate) full: u32,
    pub(crate) ends: Now,
    /// When the next of its tails is let go; the end, for one that does not decay.
    pub(crate) due: Now,
    pub(crate) step_ms: u64,
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
    /// Ends of protections that are over, whose pages are let go of bit by bit. Bounded by what was
    /// protected.
    going: VecDeque<TipId>,
    /// Ends of what is being protected, by calls that are not over. Bounded by the calls in service.
    making: Vec<TipId>,
    /// Pins that ended by time since somebody asked.
    ended_pins: Vec<(NamespaceIndex, BlockHash)>,
    /// Bytes protected.
    bytes: u64,
    ended: u64,
    /// How many are pins.
    pins: u64,
    /// Pins of each namespace.
    owned: HashMap<NamespaceIndex, u32>,
}

/// What one tenant protects.
#[derive(Default)]
struct TenantProtected {
    bytes: u64,
    protections: usize,
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

    /// Bytes that a tenant protects.
    pub(crate) fn bytes_of(&self, tenant: u32) -> u64 {
        self.tenants.get(&tenant).map_or(0, |share| share.bytes)
    }

    /// How many protections a tenant has.
    pub(crate) fn len_of(&self, tenant: u32) -> usize {
        self.tenants.get(&tenant).map_or(0, |share| share.protections)
    }

    /// Takes the protection of an owner.
    pub(crate) fn take_of(&mut self, owner: Owner) -> Option<Protection> {
        let at = self.owners.get(&owner).copied()?;
        self.take(at)
    }

    /// One more protection ends at a page, or one more child of it is protected.
    pub(crate) fn hold(&mut self, page: u32) {
        *self.holds.entry(page).or_default() += 1;
    }

    /// A page is protected from now on, for one protection that ends there.
    pub(crate) fn hold_alone(&mut self, page: u32) {
        self.holds.insert(page, 1);
    }

    /// One fewer protection ends at a page, or one fewer child of it is protected: others hold it still.
    pub(crate) fn release(&mut self, page: u32) {
        if let Some(holds) = self.holds.get_mut(&page) {
            *holds -= 1;
        }
    }

    /// Nothing holds a page any more.
    pub(crate) fn free(&mut self, page: u32) {
        self.holds.remove(&page);
    }

    /// A call is protecting up to here.
    pub(crate) fn make(&mut self, tip: Option<TipId>) {
        self.making.extend(tip);
    }

    /// What was protected up to here is over: it is let go of in the calls that follow.
    pub(crate) fn abandon(&mut self, tip: Option<TipId>) {
        self.going.extend(tip);
    }

    /// Takes the protection that is let go of first, of those that are over.
    pub(crate) fn next_going(&mut self) -> Option<TipId> {
        self.going.pop_front()
    }

    /// One that was taken is not let go of to its end: it stays the first.
    pub(crate) fn go_on(&mut self, rest: TipId) {
        self.going.push_front(rest);
    }

    fn share(&mut self, tenant: u32) -> &mut TenantProtected {
        self.tenants.entry(tenant).or_default()
    }

    /// The protection of a tenant to give up first for one of this rank.
    fn weaker(&self, tenant: u32, rank: u32) -> Option<u32> {
        self.ranks.range((tenant, 0, 0, 0)..(tenant, rank, 0, 0)).next().map(|(_, _, _, at)| *at)
    }

    pub(crate) fn insert(&mut self, held: Protection) {
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

    pub(crate) fn take(&mut self, at: u32) -> Option<Protection> {
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

    pub(crate) fn first_due(&self, now: Now) -> Option<u32> {
        self.due.first().filter(|(due, _)| *due <= now).map(|(_, at)| *at)
    }

    /// A protection is over: its pages are let go of in the calls that follow.
    pub(crate) fn let_go(&mut self, held: Option<Protection>) -> bool {
        self.going.extend(held.as_ref().map(|held| held.tip));
        held.is_some()
    }

    /// Ends the weakest protection of a tenant, if it is weaker than `rank`.
    pub(crate) fn displace(&mut self, tenant: u32, rank: u32) -> bool {
        let weakest = self.weaker(tenant, rank).and_then(|at| self.take(at));
        self.let_go(weakest)
    }

    pub(crate) fn note_ended(&mut self, owner: Owner) {
        self.ended += 1;
        if let (Owner::Pin(ns, pin), true) = (owner, self.ended_pins.len() < ENDED_PINS_MAX) {
            self.ended_pins.push((ns, pin));
        }
    }

    /// A call is over that was protecting up to here.
    pub(crate) fn made(&mut self, tip: TipId) {
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

    /// What was protected for a wish is nobody's.
    pub(crate) fn disown(&mut self, tip: Option<TipId>) {
        tip.into_iter().for_each(|tip| self.made(tip));
        self.going.extend(tip);
    }

    /// Pins that ended by time since the last call.
    pub(crate) fn take_ended_pins(&mut self) -> Vec<(NamespaceIndex, BlockHash)> {
        std::mem::take(&mut self.ended_pins)
    }

    /// Bytes protected, in all.
    pub(crate) fn protected_bytes(&self) -> u64 {
        self.bytes
    }

    /// Protections that ended by time, ever.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    /// How many are pins.
    pub(crate) fn pins(&self) -> u64 {
        self.pins
    }

    /// Where the leading pages end that an owner has protected now.
    pub(crate) fn end_of(&self, owner: Owner, pages: &Pages) -> PathEnd {
        let held = self.owners.get(&owner).and_then(|at| self.table[*at as usize].as_ref());
        held.map_or(PathEnd::EMPTY, |held| pages.tip_end(held.tip))
    }

    /// A page that nothing hangs on leaves the index: what is protected ends at the page before it.
    pub(crate) fn forget(&mut self, pages: &mut Pages, slots: &Slots, index: u32) {
        let Some(ended) = self.holds.remove(&index) else { return };
        self.weigh(pages, slots, index, false);
        if let Some(holds) = self.holds.get_mut(&pages[index].parent) {
            *holds += ended - 1;
        }
    }

    /// Sets or clears the mark of a page, and counts its bytes.
    pub(crate) fn weigh(&mut self, pages: &mut Pages, slots: &Slots, index: u32, protected: bool) {
        let bytes = pages.page_bytes(slots, index);
        let share = self.share(slots.tenant_of(pages[index].ns));
        if protected {
            share.bytes += bytes;
            self.bytes += bytes;
        } else {
            share.bytes -= bytes;
            self.bytes -= bytes;
        }
        pages.set_protected(index, protected);
    }
}
