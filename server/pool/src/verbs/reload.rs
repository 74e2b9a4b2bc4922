//! Reload: which slots hold the pages asked for, and which reads must run first.
//! Owns: begin and end of a reload. Must not know: who reads.

use crate::Pool;
use crate::error::PoolError;
use crate::ids::{ClientId, LeaseId, MissCause, NONE, NamespaceIndex, Now, PageKey, SlotKey};
use crate::index::flags::{FILLED, PROMOTING};
use crate::memory::leases::{LeaseItem, LeaseKind, NewLease};
use crate::sizing::curve::Seen;
use crate::store::promote::Promotion;
use crate::verbs::offload::check_ask;
use turnkv_proto::{BlockHash, SessionId, Shards};

/// What a reload asks for.
#[derive(Clone, Copy, Debug)]
pub struct ReloadAsk<'a> {
    /// Namespace of the pages.
    pub ns: NamespaceIndex,
    /// The pages, in prefix order.
    pub hashes: &'a [BlockHash],
    /// Which shards of each.
    pub shards: Shards,
    /// Who will read the slots.
    pub client: ClientId,
    /// The session that reads.
    pub session: Option<&'a SessionId>,
    /// It is going to map the slots: no more of them than it may, unless it may map none.
    pub hold: bool,
}

/// One position of a reload: a shard of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReloadStep {
    /// Read it from DRAM now.
    Ready {
        /// The page.
        page: PageKey,
        /// Where it is.
        slot: SlotKey,
        /// CRC-64/NVME of its bytes.
        checksum: u64,
    },
    /// Start this read; the page is ready when it is done.
    Promote(Promotion),
    /// A read of somebody else is on its way into this slot; the page is ready when that one is done.
    Join {
        /// The page whose promotion is in flight.
        page: PageKey,
        /// Where it will be.
        slot: SlotKey,
        /// CRC-64/NVME of its bytes.
        checksum: u64,
    },
    /// Stop here: every slot is leased or dirty now, or this client holds as many as it may. Ask again later.
    NoSlot,
    /// Stop here: the page is not in the pool.
    Miss(MissCause),
}

/// Answer to the begin of a reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadPlan {
    /// The lease that pins every slot named; none when no slot is named.
    pub lease: Option<LeaseId>,
    /// Finish reading within so long.
    pub lease_ms: u32,
    /// The shards of the leading pages in the order asked: whole pages, and perhaps why it stops; fewer than
    /// asked when a limit of the lease ends the plan.
    pub pages: Vec<ReloadStep>,
    /// Reads of a page of which not all shards found a slot: to be started like the others, so that they are
    /// done when the page is asked for again.
    pub ahead: Vec<Promotion>,
}

impl Pool {
    /// Pins the slots of the leading pages that are here, and plans the reads of those on NVMe only.
    /// Slabs may have changed tenant: renew them (`take_effects`) before starting the reads.
    pub fn begin_reload(&mut self, ask: ReloadAsk<'_>, now: Now) -> Result<ReloadPlan, PoolError> {
        let desc = self.namespaces.desc(ask.ns)?;
        check_ask(ask.hashes, ask.shards, desc.shards)?;
        self.check_lease_size(ask.shards)?;
        let room = self.lease_room(ask.client, ask.ns)?;
        let room = match self.room().held_room(ask.client, ask.ns) {
            may_hold if ask.hold && may_hold >= ask.shards.count() => room.min(may_hold),
            _ => room,
        };
        let now = self.store.tick(now);
        if let Some(session) = ask.session {
            self.sessions.note_read(&mut self.store, ask.ns, session, ask.hashes, now);
        }

        let most = ask.shards.positions(ask.hashes.len()).min(room);
        let (mut pages, mut items) = (Vec::with_capacity(most + 1), Vec::with_capacity(most));
        let mut ahead = Vec::new();
        let end = self.pin_resident(&ask, room, &mut items);
        let planned = items.len();
        let stopped = self.plan_steps(&ask, &mut items, &mut pages, &mut ahead);
        // Where making room took long, the plan ends early: the caller asks again for the rest.
        let whole = items.len() == planned;
        pages.extend(stopped.or(end.filter(|_| whole)));
        for item in items.iter().step_by(ask.shards.count()).rev() {
            self.store.read(item.page.index);
        }
        for item in items.iter().step_by(ask.shards.count()) {
            self.store.admit(item.page.index);
        }
        if let Some(first) = items.first() {
            self.store.touch_ancestors(first.page.index);
        }
        if ask.shards.first() == 0 {
            // Every rank asks for its shards of the pages: the word of whoever moves the first one counts.
            let served = items.iter().step_by(ask.shards.count()).rev();
            let served = served.map(|item| (&self.store.pages()[item.page.index].hash, Seen::Found));
            self.curves.observe(ask.ns.0, served, true, now);
        }
        let lease_ms = self.store.limits().lease_ms;
        let deadline = now + u64::from(lease_ms) + u64::from(self.store.limits().lease_grace_ms);
        let (kind, client, ns, shards) = (LeaseKind::Read, ask.client, ask.ns, ask.shards);
        let lease = (!items.is_empty())
            .then(|| self.insert_lease(NewLease { kind, client, ns, shards, deadline, found: false, items }));
        Ok(ReloadPlan { lease, lease_ms, pages, ahead })
    }

    /// Ends a read lease. `corrupt`: positions whose bytes did not verify, ascending, each once; their DRAM copy is dropped.
    /// Returns of how many pages one was.
    pub fn end_reload(
        &mut self,
        lease: LeaseId,
        client: ClientId,
        corrupt: &[u32],
        now: Now,
    ) -> Result<u64, PoolError> {
        let now = self.store.tick(now);
        let held = self.leases.get(lease, client).filter(|held| held.kind == LeaseKind::Read);
        let held = held.ok_or(PoolError::LeaseUnknown)?;
        let ascends = corrupt.is_sorted_by(|one, next| one < next);
        if !ascends || corrupt.last().is_some_and(|last| *last as usize >= held.items.len()) {
            return Err(PoolError::Invalid("corrupt positions are of the lease, ascending, each once"));
        }
        let overdue = held.deadline < now;
        let Some(held) = self.leases.remove(lease) else { return Err(PoolError::LeaseUnknown) };
        for item in &held.items {
            self.store.unlease(item.slot);
        }
        self.store.call.note_freed();
        if overdue {
            self.leases.count_expired();
            return Err(PoolError::LeaseUnknown);
        }
        let corrupt: Vec<LeaseItem> = corrupt.iter().map(|at| held.items[*at as usize]).collect();
        Ok(self.store.drop_corrupt(&corrupt, held.shards))
    }

    /// Finds the leading pages and holds the slots of those shards that have one. Returns why it stopped
    /// short, if so.
    fn pin_resident(
        &mut self,
        ask: &ReloadAsk<'_>,
        room: usize,
        items: &mut Vec<LeaseItem>,
    ) -> Option<ReloadStep> {
        for (page, hash) in ask.hashes.iter().enumerate() {
            self.store.call.step();
            let Some(index) = self.store.pages().find_visible(ask.ns.0, hash) else {
                let known = self.store.pages().find(ask.ns.0, hash).is_some();
                return Some(ReloadStep::Miss(if known { MissCause::Incomplete } else { MissCause::Absent }));
            };
            if items.len() + ask.shards.count() > room {
                return (page == 0).then_some(ReloadStep::NoSlot);
            }
            self.store.call.add(ask.shards.count() as u64 - 1);
            for shard in ask.shards.iter() {
                let cell = self.store.pages().cell(index, shard);
                let slot = if cell.has(FILLED | PROMOTING) { cell.slot } else { NONE };
                if slot != NONE && !self.store.slots().may_lease(slot) {
                    self.let_go_of(items, page * ask.shards.count());
                    return (page == 0).then_some(ReloadStep::NoSlot);
                }
                if slot != NONE {
                    self.store.lease(slot);
                }
                items.push(LeaseItem {
                    position: items.len() as u32,
                    slot,
                    page: self.store.pages().key(index),
                });
            }
        }
        None
    }

    /// Plans each shard of each page, with a new slot for those on NVMe only. Where slots, or the slice, end
    /// the rest is let go: the page that this is in the middle of, too, though its reads that were begun go
    /// on.
    fn plan_steps(
        &mut self,
        ask: &ReloadAsk<'_>,
        items: &mut Vec<LeaseItem>,
        pages: &mut Vec<ReloadStep>,
        ahead: &mut Vec<Promotion>,
    ) -> Option<ReloadStep> {
        let slice = self.store.call.slice();
        for at in 0..items.len() {
            let (page, shard) = (items[at].page, items[at].shard(ask.shards));
            if items[at].slot == NONE {
                let late = at > 0 && self.store.call.is_over(slice);
                let step = if late { None } else { self.plan_read(page.index, shard) };
                let Some((step, slot)) = step else {
                    let whole = ask.shards.positions(ask.shards.page(at));
                    self.let_go_of(items, whole);
                    ahead.extend(pages.drain(whole..).filter_map(|step| match step {
                        ReloadStep::Promote(promotion) => Some(promotion),
                        _ => None,
                    }));
                    return (!late || whole == 0).then_some(ReloadStep::NoSlot);
                };
                self.store.lease(slot);
                items[at].slot = slot;
                pages.push(step);
                continue;
            }
            let cell = self.store.pages().cell(page.index, shard);
            let (slot, checksum) = (self.store.slots().key(cell.slot), cell.checksum());
            pages.push(match cell.has(FILLED) {
                true => ReloadStep::Ready { page, slot, checksum },
                false => ReloadStep::Join { page, slot, checksum },
            });
        }
        None
    }

    /// Lets go of what was pinned from a position on.
    fn let_go_of(&mut self, items: &mut Vec<LeaseItem>, from: usize) {
        for item in items.drain(from..).filter(|item| item.slot != NONE) {
            self.store.unlease(item.slot);
        }
    }

    /// Starts the read of a page that had no slot when the plan began.
    fn plan_read(&mut self, index: u32, shard: u16) -> Option<(ReloadStep, u32)> {
        let cell = self.store.pages().cell(index, shard);
        if cell.has(PROMOTING) {
            // The list names the page twice, or once more than its slot can be leased.
            if !self.store.slots().may_lease(cell.slot) {
                return None;
            }
            let (page, slot, checksum) =
                (self.store.pages().key(index), self.store.slots().key(cell.slot), cell.checksum());
            return Some((ReloadStep::Join { page, slot, checksum }, cell.slot));
        }
        let promotion = self.store.start_promotion(index, shard, None)?;
        Some((ReloadStep::Promote(promotion), self.store.pages().cell(index, shard).slot))
    }
}
