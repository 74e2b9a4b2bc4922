//! Reload: pages into a caller's reach, DRAM at once and NVMe as the reads land. Owns: the verb's order, its waits and
//! the run of pages in the order asked. Must not know: who copies.

use super::metrics::{Corrupt, Misses};
use super::promotions::Waiter;
use super::recorder::{RecordedKind, Told};
use super::stats::TierName;
use super::verifier::Check;
use super::{Engine, refuse};
use crate::clock::Clock;
use crate::config::Verify;
use crate::limits::WAIT_MS_MAX;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use turnkv_pool::{
    ClientId, LeaseId, MissCause, NamespaceIndex, Promotion, ReloadAsk, ReloadPlan, ReloadStep, SlotPlace,
};
use turnkv_proto::{BlockHash, Error, NamespaceId, SessionId, Shards};

/// Pages that are wanted.
pub(crate) struct BeginReload {
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// The session that reads, where that is said.
    pub(crate) session: Option<SessionId>,
    /// The pages, in prefix order; at least one.
    pub(crate) hashes: Vec<BlockHash>,
    /// Which shards of each.
    pub(crate) shards: Shards,
    /// How long to wait for slots and reads, within the server's bound.
    pub(crate) wait_ms: u32,
    /// The slots will be mapped.
    pub(crate) hold: bool,
    /// What is on its way from another pool, or only the archive has, is waited for as well.
    pub(crate) may_fetch: bool,
}

/// What a reader is done with.
pub(crate) struct EndReload {
    /// The lease that its reload was given.
    pub(crate) lease: LeaseId,
    /// Positions that did not verify, ascending, each once.
    pub(crate) corrupt: Vec<u32>,
}

/// One position of a reload, as it is told.
#[derive(Debug)]
pub(crate) struct ReloadedPosition {
    /// Which one.
    pub(crate) index: u32,
    /// CRC-64/NVME of its bytes; 0 where no page was found.
    pub(crate) checksum: u64,
    /// Where it was found, if it was.
    pub(crate) tier: Option<TierName>,
    /// Where its bytes are, or why they are not.
    pub(crate) found: Result<SlotPlace, MissCause>,
}

/// A reload whose namespace and caller are known.
pub(super) struct Wish<'a> {
    pub(super) ns: NamespaceIndex,
    client: ClientId,
    pub(super) ask: &'a BeginReload,
    pub(super) deadline: Duration,
    clock: &'a Clock,
    /// Pages in DRAM are checked before they are told.
    check: bool,
}

/// A reload under way: its positions in the order asked, some still on their way from NVMe.
pub(crate) struct ReloadRun {
    /// None when nothing was leased.
    pub(crate) lease: Option<LeaseId>,
    /// Time to finish reading in.
    pub(crate) lease_ms: u32,
    /// When that time is over, counted from before the lease was given.
    pub(crate) lease_ends: Duration,
    /// Positions of the request that this call serves: whole pages, or up to a miss.
    pub(crate) covered: u32,
    /// Which shards of its pages that is of.
    pub(crate) shards: Shards,
    pages: VecDeque<(ReloadedPosition, Arrival)>,
    first: u32,
    landed: mpsc::Receiver<(u32, Result<(), MissCause>)>,
    deadline: Duration,
    clock: Clock,
    misses: Arc<Misses>,
}

/// What a reload has to wait for, to be started once the lock is free.
#[derive(Default)]
struct Started {
    promotions: Vec<Promotion>,
    checks: Vec<Check>,
}

#[derive(Clone, Copy, PartialEq)]
enum Arrival {
    Here,
    OnItsWay,
}

impl ReloadRun {
    /// The next position, if it is in its slot now. A miss is counted as it is told, and nothing after it is served.
    pub(crate) fn next_ready(&mut self) -> Option<ReloadedPosition> {
        if !matches!(self.pages.front(), Some((_, Arrival::Here))) {
            return None;
        }
        let (page, _) = self.pages.pop_front()?;
        self.first += 1;
        if let Err(cause) = page.found {
            self.pages.clear();
            if self.shards.are_counted() {
                self.misses.count(cause);
            }
        }
        Some(page)
    }

    /// Nothing more will come.
    pub(crate) fn is_done(&self) -> bool {
        self.pages.is_empty()
    }

    /// Waits until at least one more page has landed, or failed, or time is up (then the next page is a miss).
    pub(crate) async fn wait(&mut self) {
        match self.clock.until(self.deadline, self.landed.recv()).await {
            Some(Some((index, result))) => self.land(index, result),
            Some(None) | None => {
                if let Some((page, arrival)) = self.pages.front_mut() {
                    *arrival = Arrival::Here;
                    page.found = Err(MissCause::Busy);
                }
            }
        }
        while let Ok((index, result)) = self.landed.try_recv() {
            self.land(index, result);
        }
    }

    fn land(&mut self, index: u32, result: Result<(), MissCause>) {
        let Some((page, arrival)) =
            index.checked_sub(self.first).and_then(|at| self.pages.get_mut(at as usize))
        else {
            return; // behind a miss: nobody waits for it any more
        };
        *arrival = Arrival::Here;
        if let Err(cause) = result {
            page.found = Err(cause);
        }
    }
}

impl Engine {
    /// Leases the leading pages that are there and starts the reads of those on NVMe. When not even the first page
    /// finds a slot to be read into, waits for one as long as the caller would; so it does for pages that are on their way
    /// from another pool, and those that only the archive has.
    pub(crate) async fn begin_reload(
        self: &Arc<Self>,
        client: ClientId,
        ask: &BeginReload,
    ) -> Result<ReloadRun, Error> {
        let wish = self.wish(client, ask)?;
        self.afar_landed(&wish).await;
        self.archived_landed(&wish).await;
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(run) = self.try_reload(&wish)? {
                return Ok(run);
            }
            if !self.slots_freed(freed, wish.deadline).await {
                return Ok(busy(&wish, Arc::clone(&self.metrics.misses)));
            }
        }
    }

    /// [`Engine::begin_reload`] without its wait; `None` where a wait would be worth it.
    pub(crate) fn begin_reload_now(
        self: &Arc<Self>,
        client: ClientId,
        ask: &BeginReload,
    ) -> Result<Option<ReloadRun>, Error> {
        let wish = self.wish(client, ask)?;
        let waits = self.lacks_afar(&wish) || self.lacks_archived(&wish);
        if waits { Ok(None) } else { self.try_reload(&wish) }
    }

    fn wish<'a>(&'a self, client: ClientId, ask: &'a BeginReload) -> Result<Wish<'a>, Error> {
        Ok(Wish {
            ns: self.find_namespace(&ask.namespace)?,
            client,
            ask,
            deadline: self.clock.now() + Duration::from_millis(ask.wait_ms.min(WAIT_MS_MAX).into()),
            clock: &self.clock,
            check: self.settings.verify == Verify::Always,
        })
    }

    /// One decision: `None` when the first page wants a slot and there is none now.
    fn try_reload(self: &Arc<Self>, wish: &Wish<'_>) -> Result<Option<ReloadRun>, Error> {
        let ask = wish.ask;
        let (now, began) = (self.now(), self.clock.now());
        let (plan, laid_out) = {
            let mut core = self.decide();
            core.check_present(wish.client)?;
            let view = ReloadAsk {
                ns: wish.ns,
                hashes: &ask.hashes,
                shards: ask.shards,
                client: wish.client,
                session: ask.session.as_ref(),
                hold: ask.hold,
            };
            let plan = core.pool.begin_reload(view, now).map_err(refuse)?;
            let stuck = matches!(plan.pages.first(), Some(ReloadStep::NoSlot));
            let comes = |page: &BlockHash| self.waits_for_afar(wish, page);
            let misses = Arc::clone(&self.metrics.misses);
            let laid_out = (!stuck).then(|| core.lay_out(&plan, wish, began, misses, &comes));
            (plan, laid_out)
        };
        self.start_promotions(plan.ahead.clone());
        let run = laid_out.map(|(run, started)| {
            self.count_reload(wish, &plan);
            self.start_promotions(started.promotions);
            self.start_checks(started.checks);
            run
        });
        Ok(run)
    }

    fn count_reload(&self, wish: &Wish<'_>, plan: &ReloadPlan) {
        let (ns, ask) = (wish.ns, wish.ask);
        // Of the calls that read a page shard by shard one counts: its pages are found, and its tokens saved, once.
        if !ask.shards.are_counted() {
            return;
        }
        // A page one of whose shards is read from NVMe comes from there.
        let (mut dram, mut nvme) = (0, 0);
        for page in plan.pages.chunks(ask.shards.count()) {
            match page {
                [ReloadStep::NoSlot | ReloadStep::Miss(_), ..] => {}
                steps if steps.iter().any(|step| matches!(step, ReloadStep::Promote(_))) => nvme += 1,
                _ => dram += 1,
            }
        }
        let (tokens, saved_us) = {
            let core = self.decide();
            let page_tokens = core.pool.namespace_desc(ns).map_or(0, |desc| desc.page_tokens);
            let tokens = (dram + nvme) * u64::from(page_tokens);
            (tokens, core.pool.prefill_us(ns, tokens).unwrap_or(0))
        };
        self.metrics.reloaded(dram, nvme, tokens, saved_us);
        self.tell(&Told {
            ns,
            kind: RecordedKind::Reload,
            session: ask.session.as_ref(),
            client: wish.client,
            parent: None,
            blocks: &ask.hashes,
        });
    }

    /// The reader is done with these slots.
    pub(crate) fn end_reload(&self, client: ClientId, ask: &EndReload) -> Result<(), Error> {
        let now = self.now();
        let dropped = self.decide().pool.end_reload(ask.lease, client, &ask.corrupt, now);
        self.reader_dropped(dropped.map_err(refuse)?);
        Ok(())
    }

    /// So many pages went because a reader found bytes that do not verify.
    pub(super) fn reader_dropped(&self, pages: u64) {
        if pages > 0 {
            self.metrics.corrupted(Corrupt::Reader, pages);
            tracing::warn!(pages, "a reader found pages whose bytes do not verify: dropped");
        }
    }
}

impl super::Core {
    /// Turns a plan into a run, and registers it with the promotions it waits for before any of them can land. It ends before a page
    /// that `comes` from another pool: that is asked for again.
    fn lay_out(
        &mut self,
        plan: &ReloadPlan,
        wish: &Wish<'_>,
        began: Duration,
        misses: Arc<Misses>,
        comes: &dyn Fn(&BlockHash) -> bool,
    ) -> (ReloadRun, Started) {
        let shards = wish.ask.shards;
        let (tell, landed) = mpsc::channel(plan.pages.len().max(1));
        let mut started = Started::default();
        let mut pages = VecDeque::with_capacity(plan.pages.len());
        for (position, step) in plan.pages.iter().enumerate() {
            let (index, shard) = (position as u32, shards.shard(position));
            let (slot, checksum, tier, arrival) = match step {
                ReloadStep::Ready { page, slot, checksum } if wish.check => {
                    started.checks.push(Check {
                        index,
                        page: *page,
                        shard,
                        slot: *slot,
                        place: self.place(*slot),
                        checksum: *checksum,
                        tell: tell.clone(),
                    });
                    (*slot, *checksum, TierName::Dram, Arrival::OnItsWay)
                }
                ReloadStep::Ready { slot, checksum, .. } => (*slot, *checksum, TierName::Dram, Arrival::Here),
                ReloadStep::Promote(promotion) => {
                    started.promotions.push(*promotion);
                    let waiter = Waiter { index, tell: tell.clone() };
                    self.promotions.add(promotion.page, promotion.shard, waiter);
                    (promotion.slot, promotion.checksum, TierName::Nvme, Arrival::OnItsWay)
                }
                ReloadStep::Join { page, slot, checksum } => {
                    self.promotions.add(*page, shard, Waiter { index, tell: tell.clone() });
                    (*slot, *checksum, TierName::Nvme, Arrival::OnItsWay)
                }
                ReloadStep::NoSlot => break,
                ReloadStep::Miss(_)
                    if position > 0
                        && shard == shards.first()
                        && comes(&wish.ask.hashes[shards.page(position)]) =>
                {
                    break;
                }
                ReloadStep::Miss(cause) => {
                    pages.push_back((miss(index, *cause), Arrival::Here));
                    break;
                }
            };
            let found = Ok(self.place(slot));
            pages.push_back((ReloadedPosition { index, checksum, tier: Some(tier), found }, arrival));
        }
        let lease_ends = began + Duration::from_millis(plan.lease_ms.into());
        // A check takes its time, whether the caller would wait for a read or not.
        let deadline = if started.checks.is_empty() { wish.deadline } else { wish.deadline.max(lease_ends) };
        let run = ReloadRun {
            lease: plan.lease,
            lease_ms: plan.lease_ms,
            lease_ends,
            covered: pages.len() as u32,
            shards,
            pages,
            first: 0,
            landed,
            deadline,
            clock: wish.clock.clone(),
            misses,
        };
        (run, started)
    }
}

/// What a caller gets when time ran out before the first page found a slot.
fn busy(wish: &Wish<'_>, misses: Arc<Misses>) -> ReloadRun {
    let (_, landed) = mpsc::channel(1);
    ReloadRun {
        lease: None,
        lease_ms: 0,
        lease_ends: wish.deadline,
        covered: 1,
        shards: wish.ask.shards,
        pages: VecDeque::from([(miss(0, MissCause::Busy), Arrival::Here)]),
        first: 0,
        landed,
        deadline: wish.deadline,
        clock: wish.clock.clone(),
        misses,
    }
}

/// A position of which nothing was found.
fn miss(index: u32, cause: MissCause) -> ReloadedPosition {
    ReloadedPosition { index, checksum: 0, tier: None, found: Err(cause) }
}
