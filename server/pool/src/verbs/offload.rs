//! Offload: slots for new pages. Owns: begin of an offload. Must not know: who copies the bytes, what is
//! committed.

use crate::Pool;
use crate::call::Slice;
use crate::error::PoolError;
use crate::eviction::policy::Newcomer;
use crate::ids::{ClientId, LeaseId, NONE, NamespaceIndex, Now, PageKey, SlotKey};
use crate::index::arena::Pages;
use crate::limits::{FIND_PAGES_AT_ONCE, HASHES_PER_CALL_MAX};
use crate::memory::leases::{LeaseItem, LeaseKind, NewLease};
use crate::sizing::curve::Seen;
use crate::sizing::curves::{Curves, asker};
use std::ops::Range;
use turnkv_proto::{BlockHash, SessionId, Shards};

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
    /// Which shards of each. What follows speaks of positions: page after page, of each page one shard after
    /// another.
    pub shards: Shards,
    /// Above 0: the last page is a partial tail of so many tokens.
    pub tail_tokens: u32,
    /// Who will fill the slots.
    pub client: ClientId,
}

/// What happens with one position of an offload: a shard of a page.
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
    /// One outcome a position. A page is accepted whole, or declined whole; after the first declined page all
    /// are declined for the same reason.
    pub outcomes: Vec<Outcome>,
}

/// An offload that is being decided, position by position.
pub struct Offloading {
    outcomes: Vec<Outcome>,
    /// The lease on what was granted so far.
    lease: Option<LeaseId>,
    /// What its new pages would be worth to the policy.
    rank: Option<u32>,
    /// The last page accepted whole; none at the root.
    last: Option<PageKey>,
    /// Leading positions accepted.
    accepted: usize,
    granted: usize,
    stage: OffloadStage,
}

/// How far an offload is.
#[derive(Clone, Copy)]
enum OffloadStage {
    Deciding,
    /// Counting what is used from the end: pages before this position, and the accepted one that comes next.
    Noting(usize, Option<PageKey>),
}

/// What one slice grants.
struct Asked {
    /// Slots that it may take.
    room: usize,
    rank: Option<u32>,
    items: Vec<LeaseItem>,
}

impl Pool {
    /// Grants slots for the pages that are not here yet. After the first declined page all others are
    /// declined too. Slabs may have changed tenant: renew them (`take_effects`) before handing out the grants.
    pub fn begin_offload(&mut self, ask: OffloadAsk<'_>, now: Now) -> Result<OffloadPlan, PoolError> {
        let mut offloading = self.start_offload(&ask, now)?;
        while !self.offload_some(&ask, &mut offloading, now)? {}
        Ok(self.offload_plan(offloading))
    }

    /// Begins to decide an offload: then `offload_some` until it says so, then `offload_plan`. Other calls
    /// may come in between.
    pub fn start_offload(&mut self, ask: &OffloadAsk<'_>, now: Now) -> Result<Offloading, PoolError> {
        self.check_offload(ask)?;
        self.lease_room(ask.client, ask.ns)?;
        let now = self.store.tick(now);
        let session = self.reserve_session(ask, now)?;
        if let Some(session) = session {
            self.sessions.continue_another(&mut self.store, session, ask.hashes);
        }
        let parent = offload_parent(self.store.pages(), ask);
        let rank = match (session, parent) {
            // What its owner gave a priority is wanted.
            (Some(session), Ok(parent)) if self.sessions[session].priority == 0 => {
                let (turn, pages) = (self.sessions[session].turn, ask.hashes.len() as u32);
                self.store.rank_of(Newcomer { ns: ask.ns.0, session, turn, pages }, parent)
            }
            _ => None,
        };
        let mut outcomes = Vec::with_capacity(ask.shards.positions(ask.hashes.len()));
        outcomes.extend(parent.err());
        let last = parent.ok().filter(|parent| *parent != NONE).map(|parent| self.store.pages().key(parent));
        let stage = OffloadStage::Deciding;
        Ok(Offloading { outcomes, lease: None, rank, last, accepted: 0, granted: 0, stage })
    }

    /// Decides some more positions. True: that is all.
    pub fn offload_some(
        &mut self,
        ask: &OffloadAsk<'_>,
        offloading: &mut Offloading,
        now: Now,
    ) -> Result<bool, PoolError> {
        self.namespaces.desc(ask.ns)?; // it may have retired meanwhile, and its place be another's
        let (now, slice) = (self.store.tick(now), self.store.call.slice());
        if let OffloadStage::Deciding = offloading.stage {
            if !self.decide_some(ask, offloading, slice, now)? {
                return Ok(false);
            }
            if let (Some(declined), true) =
                (offloading.outcomes.last().copied(), offloading.accepted < offloading.outcomes.len())
            {
                let declined = self.decline_page(ask, offloading, declined);
                offloading.outcomes.resize(ask.shards.positions(ask.hashes.len()), declined);
            }
            offloading.stage = OffloadStage::Noting(ask.hashes.len(), offloading.last);
        }
        Ok(self.note_some(ask, offloading, slice))
    }

    /// The answer to an offload that is decided.
    pub fn offload_plan(&self, offloading: Offloading) -> OffloadPlan {
        let Offloading { lease, outcomes, .. } = offloading;
        OffloadPlan { lease, lease_ms: self.store.limits().lease_ms, outcomes }
    }

    /// Decides positions from the first on. True: one was declined, or all were accepted.
    fn decide_some(
        &mut self,
        ask: &OffloadAsk<'_>,
        offloading: &mut Offloading,
        slice: Slice,
        now: Now,
    ) -> Result<bool, PoolError> {
        if offloading.lease.is_some_and(|lease| !self.leases.is_being_filled(lease, ask.client)) {
            return Err(PoolError::LeaseUnknown);
        }
        let most = (self.store.limits().lease_pages_max as usize).saturating_sub(offloading.granted);
        let room = self.room().slot_room(ask.client, ask.ns).min(most);
        let mut asked = Asked { room, rank: offloading.rank, items: Vec::new() };
        let mut last = offloading.last.map_or(Some(NONE), |page| self.store.pages().resolve(page));
        let positions = ask.shards.positions(ask.hashes.len());
        while offloading.outcomes.len() == offloading.accepted && offloading.accepted < positions {
            if self.store.call.is_over(slice) {
                self.lease_grants(ask, offloading, asked.items, now);
                return Ok(false);
            }
            let position = offloading.accepted;
            let (outcome, index) = match last {
                Some(parent) => self.offload_shard(ask, parent, position, &mut asked),
                None => (Outcome::NoParent, None), // it went away meanwhile
            };
            offloading.outcomes.push(outcome);
            if let Some(index) = index {
                offloading.accepted += 1;
                if offloading.accepted.is_multiple_of(ask.shards.count()) {
                    (last, offloading.last) = (Some(index), Some(self.store.pages().key(index)));
                }
            }
        }
        self.lease_grants(ask, offloading, asked.items, now);
        Ok(true)
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
            self.store.note_writer(&items, ask.client);
            self.leases.grow(lease, &items);
            return;
        }
        let deadline = now + u64::from(self.store.limits().lease_ms);
        let (kind, client, ns, shards) = (LeaseKind::Write, ask.client, ask.ns, ask.shards);
        let lease = NewLease { kind, client, ns, shards, deadline, found: false, items };
        offloading.lease = Some(self.insert_lease(lease));
    }

    /// A page of which a shard was declined is declined whole: the slots of the shards before it are free
    /// again. Returns why.
    fn decline_page(&mut self, ask: &OffloadAsk<'_>, offloading: &mut Offloading, why: Outcome) -> Outcome {
        let first = ask.shards.positions(ask.shards.page(offloading.accepted));
        let granted = |at: &usize| matches!(offloading.outcomes[*at], Outcome::Granted(_));
        let granted: Vec<u32> = (first..offloading.accepted).filter(granted).map(|at| at as u32).collect();
        offloading.outcomes.truncate(first);
        offloading.accepted = first;
        offloading.granted -= granted.len();
        let Some(lease) = offloading.lease.filter(|_| !granted.is_empty()) else { return why };
        if offloading.granted == 0 {
            offloading.lease = None;
            self.end_lease(lease);
        } else {
            let items = self.leases.take_items(lease, &granted);
            self.store.give_up_grants(&items, ask.shards);
            items.iter().for_each(|item| self.store.unlease(item.slot));
        }
        // Who holds nothing is not over any bound of its own: others hold so much that a page finds no room.
        let own = self.leases.counts().of(ask.client).leased;
        if why == Outcome::LeaseLimit && own == 0 { Outcome::NoSpace } else { why }
    }

    /// Counts pages as used, and tells the curve of them, from the last one back: tails before heads. True:
    /// all of them.
    fn note_some(&mut self, ask: &OffloadAsk<'_>, offloading: &mut Offloading, slice: Slice) -> bool {
        let OffloadStage::Noting(mut end, mut next) = offloading.stage else { return true };
        let session = ask.session.and_then(|session| self.sessions.find(ask.ns, session));
        let turn = session.map(|at| (at, self.sessions[at].turn));
        while end > 0 {
            if self.store.call.is_over(slice) {
                offloading.stage = OffloadStage::Noting(end, next);
                return false;
            }
            let from = end.saturating_sub(FIND_PAGES_AT_ONCE);
            observe_offload(
                &mut self.curves,
                ask,
                &offloading.outcomes,
                from..end,
                turn,
                self.store.call.now(),
            );
            self.store.call.add((end - from) as u64);
            for _ in from..end.min(ask.shards.page(offloading.accepted)) {
                next = next.and_then(|page| self.touch_and_up(page));
            }
            end = from;
        }
        if let Some(before) = next {
            self.touch_and_up(before);
        }
        offloading.stage = OffloadStage::Noting(0, None);
        let last = offloading.last.and_then(|page| self.store.pages().resolve(page));
        if let Some(last) = last {
            self.store.touch_ancestors(last);
        }
        if let (Some(session), Some(last), true) = (session, last, offloading.accepted > 0) {
            self.sessions.extend(&mut self.store, session, last);
        }
        true
    }

    /// The page is used; returns the one before it.
    fn touch_and_up(&mut self, page: PageKey) -> Option<PageKey> {
        let index = self.store.pages().resolve(page)?;
        self.store.touch(index);
        Some(self.store.pages()[index].parent)
            .filter(|parent| *parent != NONE)
            .map(|parent| self.store.pages().key(parent))
    }

    /// The session of an offload, made if new; checked before anything else changes.
    pub(super) fn reserve_session(
        &mut self,
        ask: &OffloadAsk<'_>,
        now: Now,
    ) -> Result<Option<u32>, PoolError> {
        let Some(id) = ask.session else { return Ok(None) };
        let parent = ask.parent.and_then(|hash| self.store.pages().find(ask.ns.0, &hash));
        let before = match (self.sessions.find(ask.ns, id), parent) {
            (Some(at), Some(parent)) => self
                .store
                .pages()
                .end_within(self.sessions.list_end(self.store.pages(), at), parent)
                .map_or(0, |end| end.pages as usize),
            _ => 0,
        };
        if before + ask.hashes.len() > self.store.limits().session_pages_max as usize {
            return Err(PoolError::Limit("session_pages_max"));
        }
        let at = self.sessions.open(&mut self.store, ask.ns, id, now)?;
        self.sessions[at].last_used = now;
        Ok(Some(at))
    }

    pub(super) fn check_offload(&self, ask: &OffloadAsk<'_>) -> Result<(), PoolError> {
        let desc = self.namespaces.desc(ask.ns)?;
        check_ask(ask.hashes, ask.shards, desc.shards)?;
        self.check_lease_size(ask.shards)?;
        if ask.tail_tokens >= desc.page_tokens && ask.tail_tokens > 0 {
            return Err(PoolError::Invalid("a partial tail has fewer tokens than a page"));
        }
        Ok(())
    }

    /// Checks that a lease has room for a page.
    pub(super) fn check_lease_size(&self, moved: Shards) -> Result<(), PoolError> {
        match moved.count() > self.store.limits().lease_pages_max as usize {
            true => Err(PoolError::Invalid(
                "a lease has fewer slots than one page has shards in this call: move fewer shards",
            )),
            false => Ok(()),
        }
    }

    /// What is said of a shard whose page has an entry already; none: it is wanted.
    pub(super) fn is_here(&self, index: u32, shard: u16, parent: u32) -> Option<(Outcome, Option<u32>)> {
        let (entry, cell) = (&self.store.pages()[index], self.store.pages().cell(index, shard));
        match () {
            () if entry.parent != parent => Some((Outcome::NoParent, None)),
            () if entry.is_visible() || cell.committed() => Some((Outcome::Present, Some(index))),
            () if cell.granted() => Some((Outcome::InFlight, None)),
            () => None,
        }
    }

    /// Decides one shard of a page; with the entry when it is accepted.
    fn offload_shard(
        &mut self,
        ask: &OffloadAsk<'_>,
        parent: u32,
        position: usize,
        asked: &mut Asked,
    ) -> (Outcome, Option<u32>) {
        self.store.call.step();
        let (page, shard) = (ask.shards.page(position), ask.shards.shard(position));
        let hash = ask.hashes[page];
        let found = self.store.pages().find(ask.ns.0, &hash);
        if let Some(decided) = found.and_then(|index| self.is_here(index, shard, parent)) {
            return decided;
        }
        if asked.items.len() >= asked.room {
            let own = asked.items.len() as u32 + self.leases.counts().of(ask.client).leased;
            // Who holds nothing is not over any bound of its own: others hold all there is.
            return (if own == 0 { Outcome::NoSpace } else { Outcome::LeaseLimit }, None);
        }
        if found.is_none() && !self.store.make_entry_room(ask.ns.0, parent) {
            return (Outcome::NoSpace, None);
        }
        if found.is_none() && self.store.declines_newcomer(ask.ns.0, asked.rank) {
            return (Outcome::Outranked, None);
        }
        let index = found.unwrap_or_else(|| self.store.insert(ask.ns.0, hash, parent));
        if page + 1 == ask.hashes.len() {
            self.store.set_tail_tokens(index, ask.tail_tokens);
        }
        let Some(slot) = self.store.grant(index, shard) else { return (Outcome::NoSpace, None) };
        asked.items.push(LeaseItem { position: position as u32, slot, page: self.store.pages().key(index) });
        (Outcome::Granted(self.store.slots().key(slot)), Some(index))
    }
}

/// Checks a list of pages and which shards of them are moved; a page has `shards`.
pub(crate) fn check_ask(hashes: &[BlockHash], moved: Shards, shards: u16) -> Result<(), PoolError> {
    if hashes.is_empty() {
        return Err(PoolError::Invalid("a call names at least one page"));
    }
    if moved.end() > shards {
        return Err(PoolError::Invalid("the namespace has fewer shards"));
    }
    if moved.positions(hashes.len()) > HASHES_PER_CALL_MAX {
        return Err(PoolError::Invalid(
            "too many pages in one call, each counted once for every shard that the call moves: split it",
        ));
    }
    Ok(())
}

/// What became of a page: declined, or granted a slot for some shard, or all there.
pub(crate) fn outcome_of_page(outcomes: &[Outcome], shards: Shards, page: usize) -> Outcome {
    let mut positions = outcomes[shards.positions(page)..shards.positions(page + 1)].iter();
    positions.find(|outcome| **outcome != Outcome::Present).copied().unwrap_or(Outcome::Present)
}

/// The page to hang the first one on, NONE for a root; or why all are declined.
pub(crate) fn offload_parent(pages: &Pages, ask: &OffloadAsk<'_>) -> Result<u32, Outcome> {
    let Some(hash) = ask.parent else { return Ok(NONE) };
    let index = pages.find(ask.ns.0, &hash).ok_or(Outcome::NoParent)?;
    if pages[index].is_visible() {
        return Ok(index);
    }
    for shard in ask.shards.iter() {
        let cell = pages.cell(index, shard);
        match () {
            () if cell.committed() => {}
            () if cell.granted() => return Err(Outcome::InFlight),
            () => return Err(Outcome::NoParent),
        }
    }
    Ok(index)
}

/// An offload was answered so, as far as these pages of it: tells the curve which of them turns needed. Pages
/// that are here already were computed without need, or offloaded twice: they are no references. Neither are
/// those that another turn is offloading now, or whose parent must come first. `turn`: the session's place
/// and its turn, where there is one.
pub(crate) fn observe_offload(
    curves: &mut Curves,
    ask: &OffloadAsk<'_>,
    outcomes: &[Outcome],
    which: Range<usize>,
    turn: Option<(u32, u32)>,
    now: Now,
) {
    if ask.shards.first() > 0 {
        return;
    }
    let asker = asker(ask.client, turn, now);
    let seen = |page: usize| match outcome_of_page(outcomes, ask.shards, page) {
        Outcome::Present => Some((&ask.hashes[page], Seen::Recent)),
        Outcome::Granted(_) | Outcome::Stored => Some((&ask.hashes[page], Seen::Stored(asker))),
        Outcome::NoSpace | Outcome::Outranked | Outcome::LeaseLimit => {
            Some((&ask.hashes[page], Seen::Declined(asker)))
        }
        Outcome::InFlight | Outcome::NoParent => None,
    };
    curves.observe(ask.ns.0, which.rev().filter_map(seen), true, now);
}
