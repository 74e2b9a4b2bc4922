//! Reload: pages into a caller's reach, DRAM at once and NVMe as the reads land. Owns: the verb's order, its waits and
//! the run of pages in the order asked. Must not know: who copies.

use super::hold::{check_positions, once};
use super::metrics::{Corrupt, Misses};
use super::offload::{parse_session, parse_shards, slot_to_wire};
use super::promote::Waiter;
use super::record::Told;
use super::verify::Check;
use super::{Engine, malformed, refuse};
use crate::clock::Clock;
use crate::config::Verify;
use crate::limits::WAIT_MS_MAX;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use turnkv_pool::{
    ClientId, LeaseId, MissCause, NamespaceIndex, Promotion, ReloadAsk, ReloadPlan, ReloadStep,
};
use turnkv_proto::{BlockHash, Error, ErrorKind, SessionId, Shards, unpack_hashes, wire};

/// A checked BeginReload.
pub(super) struct Ask {
    pub(super) ns: NamespaceIndex,
    pub(super) session: Option<SessionId>,
    pub(super) hashes: Vec<BlockHash>,
    pub(super) shards: Shards,
    pub(super) client: ClientId,
    pub(super) deadline: Duration,
    pub(super) clock: Clock,
    /// The slots will be mapped.
    pub(super) hold: bool,
    /// Pages in DRAM are checked before they are told.
    pub(super) check: bool,
}

/// A reload under way: its positions in the order asked, some still on their way from NVMe.
pub(crate) struct ReloadRun {
    /// 0 when nothing was leased.
    pub(crate) lease: u64,
    /// Time to finish reading in.
    pub(crate) lease_ms: u32,
    /// When that time is over, counted from before the lease was given.
    pub(crate) lease_ends: Duration,
    /// Positions of the request that this call serves: whole pages, or up to a miss.
    pub(crate) covered: u32,
    /// Which shards of its pages that is of.
    pub(crate) shards: Shards,
    pages: VecDeque<(wire::ReloadedPage, Arrival)>,
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
    /// The leading pages that are in their slots now, in order. A miss is counted as it is told.
    pub(crate) fn take_ready(&mut self) -> Vec<wire::ReloadedPage> {
        let mut ready = Vec::new();
        while let Some((_, Arrival::Here)) = self.pages.front() {
            if let Some((page, _)) = self.pages.pop_front() {
                self.first += 1;
                let miss = page.miss();
                ready.push(page);
                if miss != wire::MissCause::Unspecified {
                    self.pages.clear(); // nothing after a miss is served
                    if self.shards.are_counted() {
                        self.misses.count(miss);
                    }
                }
            }
        }
        ready
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
                    page.slot = None;
                    page.miss = wire::MissCause::Busy.into();
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
            page.slot = None;
            page.miss = miss_to_wire(cause).into();
        }
    }
}

impl Engine {
    /// Leases the leading pages that are there and starts the reads of those on NVMe. When not even the first page
    /// finds a slot to be read into, waits up to `wait_ms` for one.
    pub(crate) async fn begin_reload(
        self: &Arc<Self>,
        raw: &wire::BeginReloadRequest,
    ) -> Result<ReloadRun, Error> {
        self.begin_reload_as(self.clients.check(raw.client)?, raw).await
    }

    /// [`Engine::begin_reload`] for a caller whose identity is known.
    pub(super) async fn begin_reload_as(
        self: &Arc<Self>,
        client: ClientId,
        raw: &wire::BeginReloadRequest,
    ) -> Result<ReloadRun, Error> {
        let ask = self.check_reload(client, raw)?;
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(run) = self.try_reload(&ask)? {
                return Ok(run);
            }
            if !self.slots_freed(freed, ask.deadline).await {
                return Ok(busy(&ask, Arc::clone(&self.metrics.misses)));
            }
        }
    }

    /// [`Engine::begin_reload`] without its wait; `None` where a wait would be worth it.
    pub(crate) fn begin_reload_now(
        self: &Arc<Self>,
        raw: &wire::BeginReloadRequest,
    ) -> Result<Option<ReloadRun>, Error> {
        self.try_reload(&self.check_reload(self.clients.check(raw.client)?, raw)?)
    }

    fn check_reload(&self, client: ClientId, raw: &wire::BeginReloadRequest) -> Result<Ask, Error> {
        let hashes = unpack_hashes(&raw.hashes).map_err(malformed)?;
        if hashes.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "BeginReload names no page".to_owned()));
        }
        Ok(Ask {
            ns: self.find_namespace(&raw.namespace)?,
            session: parse_session(&raw.session)?,
            shards: parse_shards(raw.shard, raw.shards, hashes.len())?,
            hashes,
            client,
            deadline: self.clock.now() + Duration::from_millis(raw.wait_ms.min(WAIT_MS_MAX).into()),
            clock: self.clock.clone(),
            hold: raw.hold,
            check: self.settings.verify == Verify::Always,
        })
    }

    /// One decision: `None` when the first page wants a slot and there is none now.
    fn try_reload(self: &Arc<Self>, ask: &Ask) -> Result<Option<ReloadRun>, Error> {
        let (now, began) = (self.now(), self.clock.now());
        let (plan, laid_out, renewals) = {
            let mut core = self.core();
            core.check_present(ask.client)?;
            let view = ReloadAsk {
                ns: ask.ns,
                hashes: &ask.hashes,
                shards: ask.shards,
                client: ask.client,
                session: ask.session.as_ref(),
                hold: ask.hold,
            };
            let plan = core.pool.begin_reload(view, now).map_err(refuse)?;
            let stuck = matches!(plan.pages.first(), Some(ReloadStep::NoSlot));
            let laid_out =
                (!stuck).then(|| core.lay_out(&plan, ask, began, Arc::clone(&self.metrics.misses)));
            (plan, laid_out, core.pool.take_slab_actions())
        };
        self.renew_slabs(renewals);
        self.start_promotions(plan.ahead.clone());
        let run = laid_out.map(|(run, started)| {
            self.count_reload(ask, &plan);
            self.start_promotions(started.promotions);
            self.start_checks(started.checks);
            run
        });
        self.pass_place_notes();
        Ok(run)
    }

    fn count_reload(&self, ask: &Ask, plan: &ReloadPlan) {
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
            let core = self.core();
            let page_tokens = core.pool.namespace_desc(ask.ns).map_or(0, |desc| desc.page_tokens);
            let tokens = (dram + nvme) * u64::from(page_tokens);
            (tokens, core.pool.prefill_us(ask.ns, tokens).unwrap_or(0))
        };
        self.metrics.reloaded(dram, nvme, tokens, saved_us);
        self.tell(&Told {
            ns: ask.ns,
            kind: wire::RecordedKind::Reload,
            session: ask.session.as_ref(),
            client: ask.client,
            parent: None,
            blocks: &ask.hashes,
        });
    }

    /// The reader is done with these slots; positions in `corrupt` did not verify at its end.
    pub(crate) fn end_reload(&self, ask: &wire::EndReloadRequest) -> Result<(), Error> {
        self.end_reload_as(self.clients.check(ask.client)?, ask)
    }

    /// [`Engine::end_reload`] for a caller whose identity is known.
    pub(super) fn end_reload_as(&self, client: ClientId, ask: &wire::EndReloadRequest) -> Result<(), Error> {
        let now = self.now();
        check_positions("EndReload", ask.corrupt.len())?;
        let corrupt = once(&ask.corrupt);
        let dropped = self.core().pool.end_reload(LeaseId(ask.lease), client, &corrupt, now);
        self.reader_dropped(dropped.map_err(refuse)?);
        self.freed.notify_waiters();
        Ok(())
    }

    /// So many pages went because a reader found bytes that do not verify.
    pub(super) fn reader_dropped(&self, pages: u64) {
        if pages > 0 {
            self.metrics.corrupted(Corrupt::Reader, pages);
            tracing::warn!(pages, "a reader found pages whose bytes do not verify: dropped");
            self.pass_place_notes();
        }
    }
}

impl super::Core {
    /// Turns a plan into a run, and registers it with the promotions it waits for before any of them can land.
    fn lay_out(
        &mut self,
        plan: &ReloadPlan,
        ask: &Ask,
        began: Duration,
        misses: Arc<Misses>,
    ) -> (ReloadRun, Started) {
        let (tell, landed) = mpsc::channel(plan.pages.len().max(1));
        let mut started = Started::default();
        let mut pages = VecDeque::with_capacity(plan.pages.len());
        for (position, step) in plan.pages.iter().enumerate() {
            let (index, shard) = (position as u32, ask.shards.shard(position));
            let (slot, checksum, tier, arrival) = match step {
                ReloadStep::Ready { page, slot, checksum } if ask.check => {
                    started.checks.push(Check {
                        index,
                        page: *page,
                        shard,
                        slot: *slot,
                        place: self.place(*slot),
                        checksum: *checksum,
                        tell: tell.clone(),
                    });
                    (*slot, *checksum, wire::TierKind::Dram, Arrival::OnItsWay)
                }
                ReloadStep::Ready { slot, checksum, .. } => {
                    (*slot, *checksum, wire::TierKind::Dram, Arrival::Here)
                }
                ReloadStep::Promote(promotion) => {
                    started.promotions.push(*promotion);
                    let waiter = Waiter { index, tell: tell.clone() };
                    self.promotions.add(promotion.page, promotion.shard, waiter);
                    (promotion.slot, promotion.checksum, wire::TierKind::Nvme, Arrival::OnItsWay)
                }
                ReloadStep::Join { page, slot, checksum } => {
                    self.promotions.add(*page, shard, Waiter { index, tell: tell.clone() });
                    (*slot, *checksum, wire::TierKind::Nvme, Arrival::OnItsWay)
                }
                ReloadStep::NoSlot => break,
                ReloadStep::Miss(cause) => {
                    let miss = miss_to_wire(*cause).into();
                    pages
                        .push_back((wire::ReloadedPage { index, miss, ..Default::default() }, Arrival::Here));
                    break;
                }
            };
            let slot = Some(slot_to_wire(&self.place(slot)));
            pages.push_back((
                wire::ReloadedPage { index, slot, checksum, tier: tier.into(), miss: 0 },
                arrival,
            ));
        }
        let lease_ends = began + Duration::from_millis(plan.lease_ms.into());
        // A check takes its time, whether the caller would wait for a read or not.
        let deadline = if started.checks.is_empty() { ask.deadline } else { ask.deadline.max(lease_ends) };
        let run = ReloadRun {
            lease: plan.lease.map_or(0, |lease| lease.0),
            lease_ms: plan.lease_ms,
            lease_ends,
            covered: pages.len() as u32,
            shards: ask.shards,
            pages,
            first: 0,
            landed,
            deadline,
            clock: ask.clock.clone(),
            misses,
        };
        (run, started)
    }
}

/// What a caller gets when time ran out before the first page found a slot.
fn busy(ask: &Ask, misses: Arc<Misses>) -> ReloadRun {
    let miss = wire::ReloadedPage { miss: wire::MissCause::Busy.into(), ..Default::default() };
    let (_, landed) = mpsc::channel(1);
    ReloadRun {
        lease: 0,
        lease_ms: 0,
        lease_ends: ask.deadline,
        covered: 1,
        shards: ask.shards,
        pages: VecDeque::from([(miss, Arrival::Here)]),
        first: 0,
        landed,
        deadline: ask.deadline,
        clock: ask.clock.clone(),
        misses,
    }
}

/// The wire's name of a cause.
pub(super) fn miss_to_wire(cause: MissCause) -> wire::MissCause {
    match cause {
        MissCause::Absent => wire::MissCause::Absent,
        MissCause::Checksum => wire::MissCause::Checksum,
        MissCause::Io => wire::MissCause::Io,
        MissCause::Busy => wire::MissCause::Busy,
        MissCause::Incomplete => wire::MissCause::Incomplete,
    }
}
