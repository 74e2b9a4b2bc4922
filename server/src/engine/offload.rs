//! Offload: grant slots, make filled pages visible. Owns: the verb's order and its waits. Must not know: who copies.

use super::clients::InlineCaller;
use super::decide::Later;
use super::durable::{Durability, NotDurable};
use super::recorder::{RecordedKind, Told};
use super::{Engine, refuse};
use crate::limits::{PULL_YIELD_WAIT, RETRY_AFTER_MS, WAIT_MS_MAX};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use turnkv_pool::{
    ClientId, Committed, LeaseId, NamespaceIndex, OffloadAsk, OffloadPlan, Outcome, SlotPlace,
};
use turnkv_proto::{BlockHash, Error, NamespaceId, SessionId, Shards};

/// Pages that are offered.
pub(crate) struct BeginOffload {
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// Of which session, where that is said.
    pub(crate) session: Option<SessionId>,
    /// The page before the first one; none at the root.
    pub(crate) parent: Option<BlockHash>,
    /// The pages, in prefix order; at least one.
    pub(crate) hashes: Vec<BlockHash>,
    /// Which shards of each.
    pub(crate) shards: Shards,
    /// Above 0: the last page is a partial tail of so many tokens.
    pub(crate) tail_tokens: u32,
    /// How long to wait for free slots, within the server's bound.
    pub(crate) wait_ms: u32,
    /// Where every page is present: answer once they are on stable storage.
    pub(crate) durable: bool,
}

/// What becomes of the pages offered.
#[derive(Debug)]
pub(crate) struct OffloadBegun {
    /// On the granted slots; none when nothing was granted.
    pub(crate) lease: Option<LeaseId>,
    /// Commit within so long.
    pub(crate) lease_ms: u32,
    /// Of each position.
    pub(crate) outcomes: Outcomes,
    /// One a granted position, in order.
    pub(crate) slots: Vec<SlotPlace>,
    /// When it makes sense to offer the rest again; 0: it does not.
    pub(crate) retry_after_ms: u32,
    /// Asked for, and every page is present: whether they are on stable storage.
    pub(crate) durable: Option<Durability>,
}

/// What becomes of the positions of an offload.
#[derive(Debug)]
pub(crate) enum Outcomes {
    /// Of each, in order.
    Each(Vec<Outcome>),
    /// So many are all there already.
    AllPresent(usize),
    /// So many are all declined, because the server takes nothing any more.
    AllDraining(usize),
}

/// Slots that were filled.
pub(crate) struct CommitOffload {
    /// The lease they were granted under.
    pub(crate) lease: LeaseId,
    /// Positions of the offload, ascending, each with its checksum.
    pub(crate) pages: Vec<(u32, u64)>,
    /// Answer once they are on stable storage.
    pub(crate) durable: bool,
}

/// What became of filled slots.
#[derive(Debug, Default)]
pub(crate) struct OffloadCommitted {
    /// Positions not kept.
    pub(crate) dropped: Vec<u32>,
    /// Asked for: whether what was kept is on stable storage.
    pub(crate) durable: Option<Durability>,
}

/// An offload whose namespace and caller are known.
struct Offer<'a> {
    ns: NamespaceIndex,
    client: ClientId,
    ask: &'a BeginOffload,
}

impl Outcomes {
    /// How many positions they are of.
    fn len(&self) -> usize {
        match self {
            Outcomes::Each(each) => each.len(),
            Outcomes::AllPresent(positions) | Outcomes::AllDraining(positions) => *positions,
        }
    }

    /// Positions whose slots are to be filled.
    pub(crate) fn granted(&self) -> impl Iterator<Item = u32> {
        let each: &[Outcome] = if let Outcomes::Each(each) = self { each } else { &[] };
        let granted = |(_, outcome): &(u32, &Outcome)| matches!(outcome, Outcome::Granted(_));
        (0..).zip(each).filter(granted).map(|(position, _)| position)
    }

    fn are_present(&self) -> bool {
        match self {
            Outcomes::Each(each) => each.iter().all(|outcome| *outcome == Outcome::Present),
            Outcomes::AllPresent(_) => true,
            Outcomes::AllDraining(_) => false,
        }
    }

    /// What became of each page: a page is present where all positions of it are, and declined as a whole.
    fn count_pages(&self, shards: Shards) -> PageCounts {
        let pages = self.len().div_ceil(shards.count()) as u64;
        let mut counts = PageCounts { pages, ..PageCounts::default() };
        match self {
            Outcomes::AllPresent(_) => counts.present = pages,
            Outcomes::AllDraining(_) => {}
            Outcomes::Each(each) => {
                for page in each.chunks(shards.count()) {
                    match page.iter().find(|outcome| **outcome != Outcome::Present) {
                        None => counts.present += 1,
                        Some(Outcome::Granted(_)) => counts.granted += 1,
                        Some(Outcome::Outranked) => counts.outranked += 1,
                        Some(_) => {}
                    }
                }
            }
        }
        counts
    }
}

/// Pages of an offload, by what became of them.
#[derive(Default)]
struct PageCounts {
    pages: u64,
    present: u64,
    granted: u64,
    outranked: u64,
}

impl OffloadBegun {
    /// Nothing granted, and what was wanted first found no slot.
    fn is_starved(&self) -> bool {
        match &self.outcomes {
            Outcomes::Each(each) => self.slots.is_empty() && each.contains(&Outcome::NoSpace),
            Outcomes::AllPresent(_) | Outcomes::AllDraining(_) => false,
        }
    }
}

impl Engine {
    /// Says for each position whether it is there, granted or declined. When the first page wanted finds no slot, waits
    /// for one as long as the caller would.
    pub(crate) async fn begin_offload(
        self: &Arc<Self>,
        client: ClientId,
        ask: &BeginOffload,
    ) -> Result<OffloadBegun, Error> {
        let offer = self.offer(client, ask)?;
        let mut begun = self.try_offload(&offer)?;
        if self.meets_pull(&offer, &begun) {
            begun = self.offload_before_pull(&offer, begun).await?;
        }
        if begun.is_starved() && ask.wait_ms > 0 {
            drop(begun);
            begun = self.offload_when_freed(&offer).await?;
        }
        // Whatever was waited for: others may have stored all of it meanwhile.
        if ask.durable && begun.outcomes.are_present() {
            // No wait holds a list of outcomes: where many shards of each page are moved it is longer than the request.
            begun.outcomes = Outcomes::AllPresent(begun.outcomes.len());
            begun.durable = Some(self.make_present_durable(&offer).await);
        }
        Ok(self.counted(&offer, begun))
    }

    /// Asks again whenever slots have become free, as long as the caller would wait.
    async fn offload_when_freed(&self, offer: &Offer<'_>) -> Result<OffloadBegun, Error> {
        let deadline = self.clock.now() + Duration::from_millis(offer.ask.wait_ms.min(WAIT_MS_MAX).into());
        loop {
            // Armed before the second look, so that a slot freed in between is not missed.
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            let begun = self.try_offload(offer)?;
            if !begun.is_starved() {
                return Ok(begun);
            }
            drop(begun);
            if !self.slots_freed(freed, deadline).await {
                return self.try_offload(offer);
            }
        }
    }

    /// [`Engine::begin_offload`] without its wait; `None` where a wait would be worth it.
    pub(crate) fn begin_offload_now(
        &self,
        client: ClientId,
        ask: &BeginOffload,
    ) -> Result<Option<OffloadBegun>, Error> {
        let offer = self.offer(client, ask)?;
        let begun = self.try_offload(&offer)?;
        if self.meets_pull(&offer, &begun) {
            self.give_back(&offer, &begun)?;
            return Ok(None);
        }
        let wait = (begun.is_starved() && ask.wait_ms > 0) || (ask.durable && begun.outcomes.are_present());
        Ok(if wait { None } else { Some(self.counted(&offer, begun)) })
    }

    /// Whether the first page declined is one that a pull is bringing: whoever has computed it is sooner.
    fn meets_pull(&self, offer: &Offer<'_>, begun: &OffloadBegun) -> bool {
        let Outcomes::Each(outcomes) = &begun.outcomes else { return false };
        if self.cluster().is_none() || self.clients.is_caller(offer.client, InlineCaller::Pulls) {
            return false;
        }
        let page = outcomes.iter().position(|outcome| *outcome == Outcome::InFlight);
        let page = page.and_then(|at| offer.ask.hashes.get(offer.ask.shards.page(at)));
        page.is_some_and(|page| self.afar.give_way(&offer.ask.namespace, page))
    }

    /// Asks again once the pull has let go of the page. What was granted before it is given back first.
    async fn offload_before_pull(
        &self,
        offer: &Offer<'_>,
        mut begun: OffloadBegun,
    ) -> Result<OffloadBegun, Error> {
        let until = self.clock.now() + PULL_YIELD_WAIT;
        loop {
            self.give_back(offer, &begun)?;
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            begun = self.try_offload(offer)?;
            if !self.meets_pull(offer, &begun) || !self.slots_freed(freed, until).await {
                return Ok(begun);
            }
        }
    }

    fn give_back(&self, offer: &Offer<'_>, begun: &OffloadBegun) -> Result<(), Error> {
        begun.lease.map_or(Ok(()), |lease| self.abort_offload(offer.client, lease))
    }

    fn offer<'a>(&self, client: ClientId, ask: &'a BeginOffload) -> Result<Offer<'a>, Error> {
        Ok(Offer { ns: self.find_namespace(&ask.namespace)?, client, ask })
    }

    fn try_offload(&self, offer: &Offer<'_>) -> Result<OffloadBegun, Error> {
        let (client, ask) = (offer.client, offer.ask);
        if self.draining.load(Ordering::Relaxed) {
            let outcomes = Outcomes::AllDraining(ask.shards.positions(ask.hashes.len()));
            let (lease, lease_ms, retry_after_ms) = (None, 0, 0);
            return Ok(OffloadBegun {
                lease,
                lease_ms,
                outcomes,
                slots: Vec::new(),
                retry_after_ms,
                durable: None,
            });
        }
        let now = self.now();
        let view = OffloadAsk {
            ns: offer.ns,
            session: ask.session.as_ref(),
            parent: ask.parent,
            hashes: &ask.hashes,
            shards: ask.shards,
            tail_tokens: ask.tail_tokens,
            client,
        };
        let (plan, slots) = {
            let mut core = self.decide();
            core.check_present(client)?;
            let mut offloading = core.pool.start_offload(&view, now).map_err(refuse)?;
            while !core.pool.offload_some(&view, &mut offloading, now).map_err(refuse)? {
                core.let_others_in();
                core.check_present(client)?;
            }
            let plan = core.pool.offload_plan(offloading);
            let slots: Vec<SlotPlace> = granted(&plan).map(|slot| core.place(slot)).collect();
            (plan, slots)
        };
        let OffloadPlan { lease, lease_ms, outcomes } = plan;
        let retry_after_ms = if outcomes.contains(&Outcome::NoSpace) { RETRY_AFTER_MS } else { 0 };
        let outcomes = Outcomes::Each(outcomes);
        Ok(OffloadBegun { lease, lease_ms, outcomes, slots, retry_after_ms, durable: None })
    }

    /// Pages that were there already, perhaps only in DRAM, made durable; the last one's ancestors are the others.
    async fn make_present_durable(self: &Arc<Self>, offer: &Offer<'_>) -> Durability {
        let last = offer.ask.hashes.last().and_then(|hash| self.decide().pool.page_key(offer.ns, hash));
        match last {
            Some(page) => self.make_durable(&[page]).await,
            None => Err(NotDurable::Lost), // evicted meanwhile
        }
    }

    /// Counts the pages of what a caller is told, once: not every look that a waiting call takes, nor every shard's call.
    fn counted(&self, offer: &Offer<'_>, begun: OffloadBegun) -> OffloadBegun {
        let ask = offer.ask;
        if !ask.shards.are_counted() {
            return begun;
        }
        let PageCounts { pages, present, granted, outranked } = begun.outcomes.count_pages(ask.shards);
        self.metrics.present_pages.increment(present);
        self.metrics.outranked_pages.increment(outranked);
        self.metrics.declined_pages.increment(pages - present - granted - outranked);
        if present < ask.hashes.len() as u64 {
            let full = ask.hashes.len() - usize::from(ask.tail_tokens > 0);
            self.tell(&Told {
                ns: offer.ns,
                kind: RecordedKind::Offload,
                session: ask.session.as_ref(),
                client: offer.client,
                parent: ask.parent,
                blocks: &ask.hashes[..full],
            });
        }
        begun
    }

    /// Makes filled pages visible; with `durable`, answers when they and their ancestors are on stable storage.
    pub(crate) async fn commit_offload(
        self: &Arc<Self>,
        client: ClientId,
        ask: &CommitOffload,
    ) -> Result<OffloadCommitted, Error> {
        let (Committed { kept, dropped, .. }, later) = self.commit(client, ask)?;
        drop(later);
        if !ask.durable {
            return Ok(OffloadCommitted { dropped, durable: None });
        }
        let outcome = if kept.is_empty() { Err(NotDurable::Lost) } else { self.make_durable(&kept).await };
        Ok(OffloadCommitted { dropped, durable: Some(outcome) })
    }

    /// [`Engine::commit_offload`] without `durable`: it never waits, and what follows is for the caller to let go of once its
    /// answer is on its way.
    pub(crate) fn commit_offload_now(
        &self,
        client: ClientId,
        ask: &CommitOffload,
    ) -> Result<(OffloadCommitted, Later<'_>), Error> {
        let (committed, later) = self.commit(client, ask)?;
        Ok((OffloadCommitted { dropped: committed.dropped, durable: None }, later))
    }

    fn commit(&self, client: ClientId, ask: &CommitOffload) -> Result<(Committed, Later<'_>), Error> {
        let now = self.now();
        let mut core = self.decide();
        let committed = core.pool.commit_offload(ask.lease, client, &ask.pages, now).map_err(refuse)?;
        let later = core.later();
        self.metrics.offloaded_pages.increment(committed.shown);
        Ok((committed, later))
    }

    /// Gives back what was granted: the caller no longer writes to those slots.
    pub(crate) fn abort_offload(&self, client: ClientId, lease: LeaseId) -> Result<(), Error> {
        self.decide().pool.abort_offload(lease, client).map_err(refuse)
    }
}

fn granted(plan: &OffloadPlan) -> impl Iterator<Item = turnkv_pool::SlotKey> {
    plan.outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Granted(slot) => Some(*slot),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
