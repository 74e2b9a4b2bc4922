//! Slots that a process has mapped into its own memory: reserved before their content is known, committed in
//! place, and pages held for reading as long as the mapping lasts. Owns: reserve, commit, renew and release
//! of held leases, and more time for those that are being filled. Must not know: who maps them, what is in them.
//!
//! A lease of a reload or a reservation is held from its first renewal on; before that, time ends it. A
//! process may touch what it has mapped at any moment, so only its word (`release`) or its end
//! (`client_gone`) frees these slots. What bounds them is a part of the client's share of the slots, and of
//! all.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{ClientId, LeaseId, NONE, NamespaceIndex, Now, PageKey, SlotKey};
use crate::limits::LEASE_PAGES_MAX;
use crate::memory::leases::{LeaseItem, LeaseKind, NO_PAGE, NewLease};
use crate::memory::slots::SlotState;
use crate::verbs::offload::{OffloadAsk, Outcome, observe_offload, offload_parent};
use turnkv_proto::{BlockHash, Shards};

/// A wish for slots whose pages are not known yet.
#[derive(Clone, Copy, Debug)]
pub struct ReserveAsk {
    /// Namespace of the pages to come.
    pub ns: NamespaceIndex,
    /// Which shard of them.
    pub shard: u16,
    /// Who will write the slots.
    pub client: ClientId,
    /// The held lease to add them to; none: a new one.
    pub lease: Option<LeaseId>,
    /// How many.
    pub pages: u32,
}

/// Answer to a reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// The lease they belong to; none when there is none.
    pub lease: Option<LeaseId>,
    /// Renew within so long.
    pub lease_ms: u32,
    /// Position of the first slot in the lease; the others follow.
    pub first: u32,
    /// The slots.
    pub slots: Vec<SlotKey>,
    /// Why there are fewer than asked for.
    pub short: Option<Outcome>,
}

/// Answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Renewed {
    /// Over, or never this client's: nothing of these may be mapped.
    pub gone: Vec<LeaseId>,
    /// Not held, because the client may not map so many slots: these may be copied from until their time is
    /// over.
    pub refused: Vec<LeaseId>,
}

/// Why a lease is not a held one.
enum NotHeld {
    Over,
    TooMuch,
}

/// Which pages the client has written into reserved slots: one shard of them.
#[derive(Clone, Copy, Debug)]
pub struct CommitReservedAsk<'a> {
    /// The pages, as for an offload.
    pub pages: OffloadAsk<'a>,
    /// The held lease of their slots.
    pub lease: LeaseId,
    /// Position of each page's slot in the lease, and its checksum.
    pub filled: &'a [(u32, u64)],
    /// Every page hangs on the parent, not on the page before it.
    pub siblings: bool,
}

/// Answer to the commit of reserved slots.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ReservedCommit {
    /// One a page: `Stored`, `Present`, or why it and all after it were declined.
    pub outcomes: Vec<Outcome>,
    /// The pages stored, in order.
    pub kept: Vec<PageKey>,
    /// Pages that it made visible, by their last shards; also those that waited for one of these.
    pub shown: u64,
}

impl Pool {
    /// Reserves slots, under a new lease or one that is there. There may be fewer than asked for where making
    /// room for them took long: `short` is none then, and the rest is asked for again. Slabs may have changed
    /// tenant: renew them (`take_effects`) before handing them out.
    pub fn reserve(&mut self, ask: ReserveAsk, now: Now) -> Result<Reserved, PoolError> {
        if ask.shard >= self.namespaces.desc(ask.ns)?.shards {
            return Err(PoolError::Invalid("the namespace has fewer shards"));
        }
        if ask.pages == 0 {
            return Err(PoolError::Invalid("a reservation is for at least one page"));
        }
        let now = self.store.tick(now);
        let room = self.reserve_room(&ask, now)?;
        Ok(self.reserve_slots(&ask, room, now))
    }

    /// Goes on with a reservation whose slots end before this position of its lease. None: the lease has
    /// grown otherwise since.
    pub fn reserve_more(
        &mut self,
        ask: ReserveAsk,
        next: u32,
        now: Now,
    ) -> Result<Option<Reserved>, PoolError> {
        let now = self.store.tick(now);
        let held = self.leases.held(ask.lease.ok_or(PoolError::LeaseUnknown)?, ask.client)?;
        if held.positions != next || (held.ns, held.shards) != (ask.ns, Shards::one(ask.shard)) {
            return Ok(None);
        }
        let (items, mapped) = (held.items.len(), held.kind.is_held());
        let left =
            (self.store.limits().lease_pages_max as usize).saturating_sub(items).min(held.positions_left());
        let to_map = self.room().held_room(ask.client, ask.ns).saturating_sub(if mapped { 0 } else { items });
        let room = left.min(self.room().slot_room(ask.client, ask.ns)).min(to_map);
        Ok(Some(self.reserve_slots(&ask, room, now)))
    }

    /// Takes as many slots as are asked for, within `room` and one slice, and puts them under their lease.
    fn reserve_slots(&mut self, ask: &ReserveAsk, room: usize, now: Now) -> Reserved {
        let slice = self.store.call.slice();
        let mut slots = Vec::new();
        let mut short = None;
        while slots.len() < ask.pages as usize {
            if slots.len() >= room {
                short = Some(Outcome::LeaseLimit);
                break;
            }
            if self.store.call.is_over(slice) && !slots.is_empty() {
                break;
            }
            let Some(slot) = self.store.allocate_reserved(ask.ns.0) else {
                short = Some(Outcome::NoSpace);
                break;
            };
            self.store.call.step();
            self.store.lease(slot);
            slots.push(slot);
        }
        let (lease, first) = self.lease_reserved(ask, &slots, now);
        let slots = slots.iter().map(|slot| self.store.slots().key(*slot)).collect();
        Reserved { lease, lease_ms: self.store.limits().lease_ms, first, slots, short }
    }

    /// How many slots a reservation may take. One for a lease that is there is a sign of life of it.
    fn reserve_room(&mut self, ask: &ReserveAsk, now: Now) -> Result<usize, PoolError> {
        let Some(lease) = ask.lease else {
            let room = self.lease_room(ask.client, ask.ns)?;
            return Ok(room.min(self.room().held_room(ask.client, ask.ns)));
        };
        let held = self.leases.held(lease, ask.client)?;
        if (held.ns, held.shards) != (ask.ns, Shards::one(ask.shard)) {
            return Err(PoolError::Invalid("the lease is of another namespace or shard"));
        }
        let left = (self.store.limits().lease_pages_max as usize).saturating_sub(held.items.len());
        let left = left.min(held.positions_left());
        match self.renew_one(ask.client, lease, now) {
            Ok(()) => {
                let room = left.min(self.room().slot_room(ask.client, ask.ns));
                Ok(room.min(self.room().held_room(ask.client, ask.ns)))
            }
            Err(NotHeld::TooMuch) => Ok(0),
            Err(NotHeld::Over) => Err(PoolError::LeaseUnknown),
        }
    }

    /// Makes written pages visible without moving them. A page that is there already stays as it is, and so
    /// does the slot that was reserved for it: its holder may still be looking at it. After the first
    /// declined page all are declined.
    pub fn commit_reserved(
        &mut self,
        ask: CommitReservedAsk<'_>,
        now: Now,
    ) -> Result<ReservedCommit, PoolError> {
        let pages = &ask.pages;
        self.check_offload(pages)?;
        if pages.shards.count() > 1 {
            return Err(PoolError::Invalid("a commit of reserved slots is of one shard of its pages"));
        }
        if pages.hashes.len() > LEASE_PAGES_MAX as usize {
            return Err(PoolError::Invalid("a commit names more pages than a lease has slots: split it"));
        }
        let slots = self.check_reserved(&ask)?;
        let now = self.store.tick(now);
        let session = if ask.siblings { None } else { self.reserve_session(pages, now)? };
        let mut done = ReservedCommit::default();
        let (mut accepted, before) = (Vec::with_capacity(slots.len()), self.store.tally().shown);
        match offload_parent(self.store.pages(), pages) {
            Err(declined) => done.outcomes.push(declined),
            Ok(mut parent) => {
                for (at, (hash, slot)) in pages.hashes.iter().zip(&slots).enumerate() {
                    let (outcome, index) = self.commit_slot(pages, *hash, parent, *slot, ask.filled[at].1);
                    done.outcomes.push(outcome);
                    let Some(index) = index else { break };
                    accepted.push(index);
                    if outcome == Outcome::Stored {
                        done.kept.push(self.store.pages().key(index));
                        self.leases.note_page(ask.lease, ask.filled[at].0, self.store.pages().key(index));
                    }
                    parent = if ask.siblings { parent } else { index };
                }
            }
        }
        done.shown = self.store.tally().shown - before;
        if let (Some(index), Some(Outcome::Stored), true) =
            (accepted.last(), done.outcomes.last(), accepted.len() == slots.len())
        {
            self.store.set_tail_tokens(*index, pages.tail_tokens);
        }
        if let (Some(declined), true) = (done.outcomes.last().copied(), accepted.len() < slots.len()) {
            done.outcomes.resize(slots.len(), declined);
        }
        let turn = session.map(|at| (at, self.sessions[at].turn));
        observe_offload(&mut self.curves, pages, &done.outcomes, 0..done.outcomes.len(), turn, now);
        accepted.iter().rev().for_each(|index| self.store.touch(*index));
        if let (false, Some(last)) = (ask.siblings, accepted.last().copied()) {
            let before = self.store.pages()[accepted[0]].parent;
            if before != NONE {
                self.store.touch(before);
            }
            self.store.touch_ancestors(last);
            if let Some(session) = session {
                self.sessions.extend(&mut self.store, session, last);
            }
        }
        Ok(done)
    }

    /// The client has mapped, or is about to map, what these leases are on: they are held from now on, but
    /// for those that the answer names.
    pub fn renew(&mut self, client: ClientId, leases: &[LeaseId], now: Now) -> Renewed {
        let now = self.store.tick(now);
        let mut renewed = Renewed::default();
        for lease in leases.iter().copied() {
            match self.renew_one(client, lease, now) {
                Ok(()) => {}
                Err(NotHeld::Over) => renewed.gone.push(lease),
                Err(NotHeld::TooMuch) => renewed.refused.push(lease),
            }
        }
        renewed
    }

    /// A write lease whose slots are still being filled, by transfers that make progress, has as much time again as
    /// at its begin. False: it is over, or in quarantine.
    pub fn keep_filling(&mut self, client: ClientId, lease: LeaseId, now: Now) -> bool {
        let now = self.store.tick(now);
        let filling = self.leases.is_being_filled(lease, client);
        if filling {
            self.leases.keep_filling(lease, now + u64::from(self.store.limits().lease_ms));
        }
        filling
    }

    /// The holder has unmapped these slots (none named: all of the lease). `corrupt`: positions whose bytes
    /// did not verify, ascending; their DRAM copy is dropped. Both name positions of the lease, each once.
    /// Returns of how many pages such a copy was.
    pub fn release(
        &mut self,
        lease: LeaseId,
        client: ClientId,
        positions: &[u32],
        corrupt: &[u32],
        now: Now,
    ) -> Result<u64, PoolError> {
        self.store.tick(now);
        let held = self.leases.held(lease, client)?;
        let (shards, held_kind) = (held.shards, held.kind);
        let ascends = |list: &[u32]| list.len() <= held.items.len() && list.is_sorted_by(|a, b| a < b);
        let known = |position: &u32| held.items.binary_search_by_key(position, |item| item.position).is_ok();
        if !ascends(positions) || !ascends(corrupt) || !positions.iter().chain(corrupt).all(known) {
            return Err(PoolError::Invalid("a release names positions of its lease, ascending, each once"));
        }
        let bad = |item: &&LeaseItem| corrupt.binary_search(&item.position).is_ok();
        let bad: Vec<LeaseItem> =
            if corrupt.is_empty() { Vec::new() } else { held.items.iter().filter(bad).copied().collect() };
        self.store.call.note_freed();
        if positions.is_empty() || positions.len() == held.items.len() {
            self.end_lease(lease);
        } else {
            let items = self.leases.take_items(lease, positions);
            if held_kind.is_held() {
                self.store.map_slots(&items, client, false);
            }
            items.iter().for_each(|item| self.store.end_hold(item));
        }
        Ok(self.store.drop_corrupt(&bad, shards))
    }

    fn renew_one(&mut self, client: ClientId, lease: LeaseId, now: Now) -> Result<(), NotHeld> {
        self.store.call.step();
        let held = self.leases.held(lease, client).map_err(|_| NotHeld::Over)?;
        if !held.kind.is_held() && held.items.len() > self.room().held_room(client, held.ns) {
            return Err(NotHeld::TooMuch);
        }
        if !held.kind.is_held() {
            self.store.map_slots(&held.items, client, true);
        }
        self.leases.renew(lease, self.deadline(now));
        Ok(())
    }

    pub(super) fn deadline(&self, now: Now) -> Now {
        let limits = self.store.limits();
        now + u64::from(limits.lease_ms) + u64::from(limits.lease_grace_ms)
    }

    /// Puts reserved slots under the lease asked for, a held one, or a new one. Returns the first position.
    fn lease_reserved(&mut self, ask: &ReserveAsk, slots: &[u32], now: Now) -> (Option<LeaseId>, u32) {
        if let Some(lease) = ask.lease {
            let held = self.leases.get(lease, ask.client);
            let (first, is_held) = held.map_or((0, false), |held| (held.positions, held.kind.is_held()));
            self.leases.extend(lease, slots.iter().copied());
            if is_held {
                self.store.map_reserved(slots, ask.client);
            }
            return (Some(lease), first);
        }
        let item = |(at, slot): (usize, &u32)| LeaseItem { position: at as u32, slot: *slot, page: NO_PAGE };
        let items: Vec<LeaseItem> = slots.iter().enumerate().map(item).collect();
        if items.is_empty() {
            return (None, 0);
        }
        let (kind, deadline) = (LeaseKind::Read, self.deadline(now));
        let shards = Shards::one(ask.shard);
        let (client, ns, found) = (ask.client, ask.ns, false);
        let new = NewLease { kind, client, ns, shards, deadline, found, items };
        (Some(self.insert_lease(new)), 0)
    }

    /// The reserved slot of each page of a commit.
    fn check_reserved(&self, ask: &CommitReservedAsk<'_>) -> Result<Vec<u32>, PoolError> {
        let held = self.leases.held(ask.lease, ask.pages.client)?;
        if held.shards != ask.pages.shards {
            return Err(PoolError::Invalid("the lease is of another shard"));
        }
        let mut positions: Vec<u32> = ask.filled.iter().map(|(position, _)| *position).collect();
        let slot = |position: &u32| {
            let at = held.items.binary_search_by_key(position, |item| item.position).ok()?;
            let slot = held.items[at].slot;
            let own = self.store.slots().class_of(slot) == u32::from(ask.pages.ns.0);
            (own && self.store.slots().meta(slot).state() == SlotState::Reserved).then_some(slot)
        };
        let slots: Option<Vec<u32>> = positions.iter().map(slot).collect();
        positions.sort_unstable();
        match slots {
            Some(slots) if slots.len() == ask.pages.hashes.len() && positions.is_sorted_by(|a, b| a < b) => {
                Ok(slots)
            }
            _ => Err(PoolError::Invalid("a commit names one reserved slot of this namespace for each page")),
        }
    }

    /// Decides one page; with the entry when it is accepted.
    fn commit_slot(
        &mut self,
        pages: &OffloadAsk<'_>,
        hash: BlockHash,
        parent: u32,
        slot: u32,
        checksum: u64,
    ) -> (Outcome, Option<u32>) {
        self.store.call.step();
        let shard = pages.shards.first();
        let found = self.store.pages().find(pages.ns.0, &hash);
        if let Some(decided) = found.and_then(|index| self.is_here(index, shard, parent)) {
            return decided;
        }
        if found.is_none() && !self.store.make_entry_room(pages.ns.0, parent) {
            return (Outcome::NoSpace, None);
        }
        let index = found.unwrap_or_else(|| self.store.insert(pages.ns.0, hash, parent));
        self.store.fill_reserved(index, shard, slot, checksum);
        (Outcome::Stored, Some(index))
    }
}
