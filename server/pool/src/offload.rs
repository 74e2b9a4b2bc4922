//! Offload: slots for new pages, and their commit.
//! Owns: begin, commit and abort of an offload. Must not know: who copies the bytes.

use crate::Pool;
use crate::entry::{FILLED, NONE, VISIBLE};
use crate::error::PoolError;
use crate::ids::{ClientId, LeaseId, NamespaceIndex, Now, PageKey, SlotKey};
use crate::lease::{LeaseItem, LeaseKind, NewLease};
use crate::limits::{FIND_PAGES_AT_ONCE, HASHES_PER_CALL_MAX};
use crate::slice::Slice;
use turnkv_proto::{BlockHash, SessionId};

/// What an offload asks for.
#[derive(Clone, Copy, Debug)]
pub struct OffloadAsk<'a> {
    /// Namespace of the pages.
    pub ns: NamespaceIndex,
    /// The session these pages belong to.
    pub session: Option<&'a SessionId>,
    /// The page before the first one; none at the root.
    pub parent: Option<BlockHash>,
    /// The pages, in prefix order.
    pub hashes: &'a [BlockHash],
    /// Which shard of each.
    pub shard: u16,
    /// Above 0: the last page is a partial tail of so many tokens.
    pub tail_tokens: u32,
    /// Who will fill the slots.
    pub client: ClientId,
}

/// What happens with one page of an offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Already there, touched.
    Present,
    /// Fill this slot.
    Granted(SlotKey),
    /// The reserved slot is the page's now (answers to `commit_reserved` only).
    Stored,
    /// Declined: no free slot, and nothing may be evicted now.
    NoSpace,
    /// Declined: whatever would make way for it is likelier to be used again.
    Outranked,
    /// Declined: another lease is offloading it, or the page before it, now.
    InFlight,
    /// Declined: the page before it is not in the pool.
    NoParent,
    /// Declined: this client or this call holds as many slots as it may.
    LeaseLimit,
}

/// Answer to the begin of an offload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadPlan {
    /// The lease on the granted slots; none when nothing was granted.
    pub lease: Option<LeaseId>,
    /// Commit within so long.
    pub lease_ms: u32,
    /// One outcome a hash. After the first declined page all are declined for the same reason.
    pub outcomes: Vec<Outcome>,
}

/// Answer to a commit.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Committed {
    /// The pages kept, in the order committed.
    pub kept: Vec<PageKey>,
    /// Positions committed but not kept: they, or the page before them, went away meanwhile.
    pub dropped: Vec<u32>,
}

/// An offload that is being decided, page by page.
pub struct Offloading {
    outcomes: Vec<Outcome>,
    /// The lease on what was granted so far.
    lease: Option<LeaseId>,
    /// What its new pages would be worth to the policy.
    rank: Option<u32>,
    /// The last page accepted; none at the root.
    last: Option<PageKey>,
    accepted: usize,
    granted: usize,
    stage: Stage,
}

/// How far an offload is.
#[derive(Clone, Copy)]
enum Stage {
    Deciding,
    /// Counting what is used from the end: pages before this position, and the accepted one that comes next.
    Noting(usize, Option<PageKey>),
}

/// What one slice grants.
struct Asked {
    /// Slots that it may hold.
    room: usize,
    rank: Option<u32>,
    items: Vec<LeaseItem>,
}

impl Pool {
    /// Grants slots for the pages that are not here yet. After the first declined page all others are declined too.
    /// Slabs may have changed tenant: `take_slab_actions` before handing out the grants.
    pub fn begin_offload(&mut self, ask: OffloadAsk<'_>, now: Now) -> Result<OffloadPlan, PoolError> {
        let mut offloading = self.start_offload(&ask, now)?;
        while !self.offload_some(&ask, &mut offloading, now)? {}
        Ok(self.offload_plan(offloading))
    }

    /// Begins to decide an offload: then `offload_some` until it says so, then `offload_plan`. Other calls may come in between.
    pub fn start_offload(&mut self, ask: &OffloadAsk<'_>, now: Now) -> Result<Offloading, PoolError> {
        self.check_offload(ask)?;
        self.lease_room(ask.client, ask.ns)?;
        let now = self.tick(now);
        let session = self.reserve_session(ask, now)?;
        if let Some(session) = session {
            self.continue_another(session, ask.hashes);
        }
        let parent = self.offload_parent(ask);
        let rank = match (session, parent) {
            (Some(session), Ok(parent)) => self.rank_of(session, parent, ask.hashes.len()),
            _ => None,
        };
        let mut outcomes = Vec::with_capacity(ask.hashes.len());
        outcomes.extend(parent.err());
        let last = parent.ok().filter(|parent| *parent != NONE).map(|parent| self.pages.key(parent));
        let stage = Stage::Deciding;
        Ok(Offloading { outcomes, lease: None, rank, last, accepted: 0, granted: 0, stage })
    }

    /// Decides some more pages. True: that is all.
    pub fn offload_some(
        &mut self,
        ask: &OffloadAsk<'_>,
        offloading: &mut Offloading,
        now: Now,
    ) -> Result<bool, PoolError> {
        let (now, slice) = (self.tick(now), self.slice());
        if let Stage::Deciding = offloading.stage {
            if !self.decide_some(ask, offloading, slice, now)? {
                return Ok(false);
            }
            if let (Some(declined), true) =
                (offloading.outcomes.last().copied(), offloading.accepted < offloading.outcomes.len())
            {
                offloading.outcomes.resize(ask.hashes.len(), declined);
            }
            offloading.stage = Stage::Noting(ask.hashes.len(), offloading.last);
        }
        Ok(self.note_some(ask, offloading, slice))
    }

    /// The answer to an offload that is decided.
    pub fn offload_plan(&self, offloading: Offloading) -> OffloadPlan {
        let Offloading { lease, outcomes, .. } = offloading;
        OffloadPlan { lease, lease_ms: self.config.limits.lease_ms, outcomes }
    }

    /// Decides pages from the first on. True: one was declined, or all were accepted.
    fn decide_some(
        &mut self,
        ask: &OffloadAsk<'_>,
        offloading: &mut Offloading,
        slice: Slice,
        now: Now,
    ) -> Result<bool, PoolError> {
        if offloading.lease.is_some_and(|lease| !self.is_being_filled(lease, ask.client)) {
            return Err(PoolError::LeaseUnknown);
        }
        let most = (self.config.limits.lease_pages_max as usize).saturating_sub(offloading.granted);
        let room = self.slot_room(ask.client, ask.ns).min(most);
        let mut asked = Asked { room, rank: offloading.rank, items: Vec::new() };
        let mut last = offloading.last.map_or(Some(NONE), |page| self.pages.resolve(page));
        while offloading.outcomes.len() == offloading.accepted && offloading.accepted < ask.hashes.len() {
            if self.is_over(slice) {
                self.lease_grants(ask, offloading, asked.items, now);
                return Ok(false);
            }
            let position = offloading.accepted;
            let (outcome, index) = match last {
                Some(parent) => self.offload_page(ask, ask.hashes[position], parent, position, &mut asked),
                None => (Outcome::NoParent, None), // it went away meanwhile
            };
            offloading.outcomes.push(outcome);
            if let Some(index) = index {
                (last, offloading.last) = (Some(index), Some(self.pages.key(index)));
                offloading.accepted += 1;
            }
        }
        self.lease_grants(ask, offloading, asked.items, now);
        Ok(true)
    }

    /// Whether a write lease of this client is neither over nor in quarantine.
    fn is_being_filled(&self, lease: LeaseId, client: ClientId) -> bool {
        self.leases.get(lease, client).is_some_and(|held| held.kind == LeaseKind::Write)
    }

    /// What a slice granted is under the offload's lease from now on.
    fn lease_grants(
        &mut self,
        ask: &OffloadAsk<'_>,
        offloading: &mut Offloading,
        items: Vec<LeaseItem>,
        now: Now,
    ) {
        if items.is_empty() {
            return;
        }
        offloading.granted += items.len();
        if let Some(lease) = offloading.lease {
            self.leases.grow(lease, &items);
            return;
        }
        let deadline = now + u64::from(self.config.limits.lease_ms);
        let (kind, client, ns, shard) = (LeaseKind::Write, ask.client, ask.ns, ask.shard);
        offloading.lease = Some(self.insert_lease(NewLease { kind, client, ns, shard, deadline, items }));
    }

    /// Counts pages as used, and tells the curve of them, from the last one back: tails before heads. True: all of them.
    fn note_some(&mut self, ask: &OffloadAsk<'_>, offloading: &mut Offloading, slice: Slice) -> bool {
        let Stage::Noting(mut end, mut next) = offloading.stage else { return true };
        let session = ask.session.and_then(|session| self.sessions.find(ask.ns, session));
        while end > 0 {
            if self.is_over(slice) {
                offloading.stage = Stage::Noting(end, next);
                return false;
            }
            let from = end.saturating_sub(FIND_PAGES_AT_ONCE);
            self.observe_offload(ask, &offloading.outcomes, from..end, session);
            self.steps += (end - from) as u64;
            for _ in from..end.min(offloading.accepted) {
                next = next.and_then(|page| self.touch_and_up(page));
            }
            end = from;
        }
        if let Some(before) = next {
            self.touch_and_up(before);
        }
        offloading.stage = Stage::Noting(0, None);
        let last = offloading.last.and_then(|page| self.pages.resolve(page));
        if let Some(last) = last {
            self.touch_ancestors(last);
        }
        if let (Some(session), Some(last), true) = (session, last, offloading.accepted > 0) {
            self.extend_session(session, last);
        }
        true
    }

    /// The page is used; returns the one before it.
    fn touch_and_up(&mut self, page: PageKey) -> Option<PageKey> {
        let index = self.pages.resolve(page)?;
        self.touch(index);
        Some(self.pages[index].parent).filter(|parent| *parent != NONE).map(|parent| self.pages.key(parent))
    }

    /// Makes filled pages visible: positions ascending, each with its checksum. Grants not named are freed.
    pub fn commit_offload(
        &mut self,
        lease: LeaseId,
        client: ClientId,
        filled: &[(u32, u64)],
        now: Now,
    ) -> Result<Committed, PoolError> {
        let now = self.tick(now);
        let held = self.leases.get(lease, client).filter(|held| held.kind.is_write());
        let held = held.ok_or(PoolError::LeaseUnknown)?;
        if held.kind == LeaseKind::Quarantined || held.deadline < now {
            // Whoever asks for a commit has finished writing: the slots are free again.
            self.leases.expired += u64::from(held.kind == LeaseKind::Write);
            self.end_lease(lease);
            return Err(PoolError::LeaseUnknown);
        }
        check_filled(filled, &held.items)?;
        let Some(held) = self.leases.remove(lease) else { return Err(PoolError::LeaseUnknown) };

        let mut committed = Committed::default();
        let mut filled = filled.iter().peekable();
        for item in &held.items {
            let checksum =
                filled.next_if(|(position, _)| *position == item.position).map(|(_, checksum)| *checksum);
            match checksum {
                Some(checksum) if self.commit_page(item, held.shard, checksum) => {
                    committed.kept.push(item.page)
                }
                Some(_) => committed.dropped.push(item.position),
                None => {}
            }
        }
        self.give_up_grants(&held.items, held.shard);
        for item in &held.items {
            self.unlease(item.slot);
        }
        for page in committed.kept.iter().rev() {
            if let Some(index) = self.pages.resolve(*page) {
                self.touch(index);
            }
        }
        Ok(committed)
    }

    /// Gives all grants of a lease back. Also ends the quarantine of a lease that expired.
    pub fn abort_offload(&mut self, lease: LeaseId, client: ClientId) -> Result<(), PoolError> {
        let held = self.leases.get(lease, client).filter(|held| held.kind.is_write());
        held.ok_or(PoolError::LeaseUnknown)?;
        self.begin_call();
        self.end_lease(lease);
        Ok(())
    }

    pub(crate) fn check_offload(&self, ask: &OffloadAsk<'_>) -> Result<(), PoolError> {
        let desc = self.desc(ask.ns)?;
        check_ask(ask.hashes, ask.shard, desc.shards)?;
        if ask.tail_tokens >= desc.page_tokens && ask.tail_tokens > 0 {
            return Err(PoolError::Invalid("a partial tail has fewer tokens than a page"));
        }
        Ok(())
    }

    /// The page to hang the first one on, NONE for a root; or why all are declined.
    pub(crate) fn offload_parent(&self, ask: &OffloadAsk<'_>) -> Result<u32, Outcome> {
        let Some(hash) = ask.parent else { return Ok(NONE) };
        let index = self.pages.find(ask.ns.0, &hash).ok_or(Outcome::NoParent)?;
        let entry = &self.pages[index];
        let cell = self.pages.cell(index, ask.shard);
        match () {
            () if entry.has(VISIBLE) || cell.committed() => Ok(index),
            () if cell.granted() => Err(Outcome::InFlight),
            () => Err(Outcome::NoParent),
        }
    }

    /// Decides one page; with the entry when it is accepted.
    fn offload_page(
        &mut self,
        ask: &OffloadAsk<'_>,
        hash: BlockHash,
        parent: u32,
        position: usize,
        asked: &mut Asked,
    ) -> (Outcome, Option<u32>) {
        self.step();
        let found = self.pages.find(ask.ns.0, &hash);
        if let Some(index) = found {
            let entry = &self.pages[index];
            let cell = self.pages.cell(index, ask.shard);
            match () {
                () if entry.parent != parent => return (Outcome::NoParent, None),
                () if entry.has(VISIBLE) || cell.committed() => return (Outcome::Present, Some(index)),
                () if cell.granted() => return (Outcome::InFlight, None),
                () => {}
            }
        }
        if asked.items.len() >= asked.room {
            let own = asked.items.len() as u32 + self.leases.counts.of(ask.client).leased;
            // Who holds nothing is not over any bound of its own: others hold all there is.
            return (if own == 0 { Outcome::NoSpace } else { Outcome::LeaseLimit }, None);
        }
        if found.is_none() && !self.make_entry_room(ask.ns.0, parent) {
            return (Outcome::NoSpace, None);
        }
        if found.is_none() && self.is_outranked(ask.ns.0, asked.rank) {
            return (Outcome::Outranked, None);
        }
        let index = found.unwrap_or_else(|| self.pages.insert(ask.ns.0, hash, parent, 0));
        if position + 1 == ask.hashes.len() {
            self.pages[index].cell.tail_tokens = ask.tail_tokens as u16;
        }
        let Some(slot) = self.allocate(index, ask.shard) else {
            self.prune(index);
            return (Outcome::NoSpace, None);
        };
        self.pages.cell_mut(index, ask.shard).slot = slot;
        self.slots.lease(slot);
        self.refresh(index, crate::policy::Position::Hot);
        asked.items.push(LeaseItem { position: position as u32, slot, page: self.pages.key(index) });
        (Outcome::Granted(self.slots.key(slot)), Some(index))
    }

    /// Commits one page. False: it is gone, or the page before it is not committed.
    fn commit_page(&mut self, item: &LeaseItem, shard: u16, checksum: u64) -> bool {
        let Some(index) = self.granted(item, shard) else { return false };
        let parent = self.pages[index].parent;
        if parent != NONE && !self.pages[parent].has(VISIBLE) && !self.pages.cell(parent, shard).committed() {
            return false;
        }
        let cell = self.pages.cell_mut(index, shard);
        cell.state |= FILLED;
        cell.set_checksum(checksum);
        self.settle(index);
        true
    }
}

/// Checks a list of pages and a shard number.
pub(crate) fn check_ask(hashes: &[BlockHash], shard: u16, shards: u16) -> Result<(), PoolError> {
    if hashes.is_empty() {
        return Err(PoolError::Invalid("a call names at least one page"));
    }
    if hashes.len() > HASHES_PER_CALL_MAX {
        return Err(PoolError::Invalid("too many pages in one call: split it"));
    }
    if shard >= shards {
        return Err(PoolError::Invalid("the namespace has fewer shards"));
    }
    Ok(())
}

/// Checks that a commit names granted positions, in order, each once.
fn check_filled(filled: &[(u32, u64)], items: &[LeaseItem]) -> Result<(), PoolError> {
    let mut items = items.iter();
    let known = |(position, _): &(u32, u64)| items.any(|item| item.position == *position);
    match filled.iter().all(known) {
        true => Ok(()),
        false => Err(PoolError::Invalid("a commit names granted positions, ascending, each once")),
    }
}
