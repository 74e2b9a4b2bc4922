//! Offload: slots for new pages, and their commit.
//! Owns: begin, commit and abort of an offload. Must not know: who copies the bytes.

use crate::Pool;
use crate::entry::{FILLED, NONE, RECOVERING, VISIBLE};
use crate::error::PoolError;
use crate::ids::{ClientId, LeaseId, NamespaceIndex, Now, PageKey, SlotKey};
use crate::lease::{LeaseItem, LeaseKind};
use crate::limits::HASHES_PER_CALL_MAX;
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

/// What one call asks for, and was granted so far.
struct Asked {
    /// Slots that it may hold.
    room: usize,
    /// What its new pages would be worth to the policy.
    rank: Option<u32>,
    items: Vec<LeaseItem>,
}

impl Pool {
    /// Grants slots for the pages that are not here yet. After the first declined page all others are declined too.
    /// Slabs may have changed tenant: `take_slab_actions` before handing out the grants.
    pub fn begin_offload(&mut self, ask: OffloadAsk<'_>, now: Now) -> Result<OffloadPlan, PoolError> {
        self.check_offload(&ask)?;
        let room = self.lease_room(ask.client, ask.ns)?;
        let now = self.tick(now);
        let session = self.reserve_session(&ask, now)?;
        if let Some(session) = session {
            self.continue_another(session, ask.hashes);
        }

        let mut outcomes = Vec::with_capacity(ask.hashes.len());
        let mut items = Vec::new();
        let mut last = NONE;
        match self.offload_parent(&ask) {
            Err(declined) => outcomes.push(declined),
            Ok(parent) => {
                last = parent;
                let rank = session.and_then(|session| self.rank_of(session, parent, ask.hashes.len()));
                let mut asked = Asked { room, rank, items: Vec::new() };
                for hash in ask.hashes {
                    let (outcome, index) = self.offload_page(&ask, *hash, last, outcomes.len(), &mut asked);
                    outcomes.push(outcome);
                    let Some(index) = index else { break };
                    last = index;
                }
                items = asked.items;
            }
        }
        let accepted =
            outcomes.iter().take_while(|outcome| matches!(outcome, Outcome::Present | Outcome::Granted(_)));
        let accepted = accepted.count();
        if let (Some(declined), true) = (outcomes.last().copied(), accepted < outcomes.len()) {
            outcomes.resize(ask.hashes.len(), declined);
        }
        self.note_offload(last, accepted, session);
        self.observe_offload(&ask, &outcomes, session);
        let lease_ms = self.config.limits.lease_ms;
        let deadline = now + u64::from(lease_ms);
        let lease = (!items.is_empty())
            .then(|| self.leases.insert(LeaseKind::Write, ask.client, ask.shard, deadline, items));
        Ok(OffloadPlan { lease, lease_ms, outcomes })
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
            () if entry.has(RECOVERING) => Err(Outcome::NoParent),
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
        let found = self.pages.find(ask.ns.0, &hash);
        if let Some(index) = found {
            let entry = &self.pages[index];
            let cell = self.pages.cell(index, ask.shard);
            match () {
                () if entry.has(RECOVERING) => return (Outcome::InFlight, None),
                () if entry.parent != parent => return (Outcome::NoParent, None),
                () if entry.has(VISIBLE) || cell.committed() => return (Outcome::Present, Some(index)),
                () if cell.granted() => return (Outcome::InFlight, None),
                () => {}
            }
        }
        if asked.items.len() >= asked.room {
            return (Outcome::LeaseLimit, None);
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

    /// Touches what was accepted, tail first, and the page before; extends the session's list.
    pub(crate) fn note_offload(&mut self, last: u32, accepted: usize, session: Option<u32>) {
        let mut index = last;
        for _ in 0..=accepted {
            if index == NONE {
                break;
            }
            self.touch(index);
            index = self.pages[index].parent;
        }
        if last != NONE {
            self.touch_ancestors(last);
        }
        if let (Some(session), true) = (session, accepted > 0) {
            self.extend_session(session, last);
        }
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
