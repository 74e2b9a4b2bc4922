//! Offload: grant slots, make filled pages visible. Owns: the verb's order and its waits. Must not know: who copies.

use super::durable::{Durability, not_durable};
use super::hold::check_positions;
use super::record::Told;
use super::{Engine, malformed, refuse};
use crate::limits::{RETRY_AFTER_MS, WAIT_MS_MAX};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use turnkv_pool::{
    ClientId, Committed, LeaseId, NamespaceIndex, OffloadAsk, OffloadPlan, Outcome, SlotPlace,
};
use turnkv_proto::limits::HASHES_PER_CALL_MAX;
use turnkv_proto::{BlockHash, Error, ErrorKind, SessionId, Shards, unpack_hashes, wire};
use wire::{NotDurable, OffloadOutcome as Wire};

/// A checked BeginOffload.
struct Ask {
    ns: NamespaceIndex,
    session: Option<SessionId>,
    parent: Option<BlockHash>,
    hashes: Vec<BlockHash>,
    shards: Shards,
    tail_tokens: u32,
    client: ClientId,
}

impl Engine {
    /// Says for each position whether it is there, granted or declined. When the first page wanted finds no slot, waits
    /// up to `wait_ms` for one.
    pub(crate) async fn begin_offload(
        self: &Arc<Self>,
        raw: &wire::BeginOffloadRequest,
    ) -> Result<wire::BeginOffloadReply, Error> {
        self.begin_offload_as(self.clients.check(raw.client)?, raw).await
    }

    /// [`Engine::begin_offload`] for a caller whose identity is known.
    pub(super) async fn begin_offload_as(
        self: &Arc<Self>,
        client: ClientId,
        raw: &wire::BeginOffloadRequest,
    ) -> Result<wire::BeginOffloadReply, Error> {
        let ask = self.check_offload(client, raw)?;
        let mut reply = self.try_offload(&ask)?;
        // No wait holds a list of outcomes: where many shards of each page are moved it is longer than the request.
        if raw.durable && all_present(&reply) {
            let positions = std::mem::take(&mut reply.outcomes).len();
            let outcome = self.make_present_durable(&ask).await;
            reply.outcomes = vec![Wire::Present.into(); positions];
            reply.durable = outcome.is_ok();
            reply.not_durable = not_durable(outcome);
        }
        if !starved(&reply) || raw.wait_ms == 0 {
            return Ok(self.answer(&ask, reply));
        }
        let deadline = self.clock.now() + Duration::from_millis(raw.wait_ms.min(WAIT_MS_MAX).into());
        loop {
            // Armed before the second look, so that a slot freed in between is not missed.
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            reply = self.try_offload(&ask)?;
            if !starved(&reply) {
                return Ok(self.answer(&ask, reply));
            }
            drop(reply);
            if !self.slots_freed(freed, deadline).await {
                return Ok(self.answer(&ask, self.try_offload(&ask)?));
            }
        }
    }

    /// [`Engine::begin_offload`] without its wait; `None` where a wait would be worth it.
    pub(crate) fn begin_offload_now(
        &self,
        raw: &wire::BeginOffloadRequest,
    ) -> Result<Option<wire::BeginOffloadReply>, Error> {
        let client = self.clients.check(raw.client)?;
        let ask = self.check_offload(client, raw)?;
        let reply = self.try_offload(&ask)?;
        let wait = (starved(&reply) && raw.wait_ms > 0) || (raw.durable && all_present(&reply));
        Ok(if wait { None } else { Some(self.answer(&ask, reply)) })
    }

    fn check_offload(&self, client: ClientId, raw: &wire::BeginOffloadRequest) -> Result<Ask, Error> {
        let hashes = unpack_hashes(&raw.hashes).map_err(malformed)?;
        if hashes.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "BeginOffload names no page".to_owned()));
        }
        Ok(Ask {
            ns: self.find_namespace(&raw.namespace)?,
            session: parse_session(&raw.session)?,
            parent: BlockHash::parse_optional(&raw.parent).map_err(malformed)?,
            shards: parse_shards(raw.shard, raw.shards, hashes.len())?,
            hashes,
            tail_tokens: raw.tail_tokens,
            client,
        })
    }

    fn try_offload(&self, ask: &Ask) -> Result<wire::BeginOffloadReply, Error> {
        if self.draining.load(Ordering::Relaxed) {
            let outcomes = vec![Wire::Draining.into(); ask.shards.positions(ask.hashes.len())];
            return Ok(wire::BeginOffloadReply { outcomes, ..Default::default() });
        }
        let now = self.now();
        let view = OffloadAsk {
            ns: ask.ns,
            session: ask.session.as_ref(),
            parent: ask.parent,
            hashes: &ask.hashes,
            shards: ask.shards,
            tail_tokens: ask.tail_tokens,
            client: ask.client,
        };
        let (plan, slots, renewals) = {
            let mut core = self.core();
            core.check_present(ask.client)?;
            let mut offloading = core.pool.start_offload(&view, now).map_err(refuse)?;
            while !core.pool.offload_some(&view, &mut offloading, now).map_err(refuse)? {
                MutexGuard::bump(&mut core);
                core.check_present(ask.client)?;
            }
            let plan = core.pool.offload_plan(offloading);
            let slots: Vec<SlotPlace> = granted(&plan).map(|slot| core.place(slot)).collect();
            (plan, slots, core.pool.take_slab_actions())
        };
        self.renew_slabs(renewals);
        self.pass_place_notes();
        Ok(wire::BeginOffloadReply {
            lease: plan.lease.map_or(0, |lease| lease.0),
            lease_ms: plan.lease_ms,
            outcomes: plan.outcomes.iter().map(|outcome| outcome_to_wire(outcome).into()).collect(),
            slots: slots.iter().map(slot_to_wire).collect(),
            retry_after_ms: if plan.outcomes.contains(&Outcome::NoSpace) { RETRY_AFTER_MS } else { 0 },
            ..Default::default()
        })
    }

    /// Pages that were there already, perhaps only in DRAM, made durable; the last one's ancestors are the others.
    async fn make_present_durable(self: &Arc<Self>, ask: &Ask) -> Durability {
        let last = ask.hashes.last().and_then(|hash| self.core().pool.page_key(ask.ns, hash));
        match last {
            Some(page) => self.make_durable(&[page]).await,
            None => Err(NotDurable::Lost), // evicted meanwhile
        }
    }

    /// Counts the pages of what a caller is told, once: not every look that a waiting call takes, nor every shard's call.
    fn answer(&self, ask: &Ask, reply: wire::BeginOffloadReply) -> wire::BeginOffloadReply {
        if !ask.shards.are_counted() {
            return reply;
        }
        let pages = outcomes_of_pages(&reply.outcomes, ask.shards);
        let count = |wanted: Wire| pages.iter().filter(|outcome| **outcome == wanted as i32).count() as u64;
        let present = count(Wire::Present);
        self.metrics.present_pages.increment(present);
        let outranked = count(Wire::Outranked);
        self.metrics.outranked_pages.increment(outranked);
        let taken = present + count(Wire::Granted);
        self.metrics.declined_pages.increment(pages.len() as u64 - taken - outranked);
        if present < ask.hashes.len() as u64 {
            let full = ask.hashes.len() - usize::from(ask.tail_tokens > 0);
            self.tell(&Told {
                ns: ask.ns,
                kind: wire::RecordedKind::Offload,
                session: ask.session.as_ref(),
                client: ask.client,
                parent: ask.parent,
                blocks: &ask.hashes[..full],
            });
        }
        reply
    }

    /// Makes filled pages visible; with `durable`, answers when they and their ancestors are on stable storage.
    pub(crate) async fn commit_offload(
        self: &Arc<Self>,
        ask: &wire::CommitOffloadRequest,
    ) -> Result<wire::CommitOffloadReply, Error> {
        self.commit_offload_as(self.clients.check(ask.client)?, ask).await
    }

    /// [`Engine::commit_offload`] for a caller whose identity is known.
    pub(super) async fn commit_offload_as(
        self: &Arc<Self>,
        client: ClientId,
        ask: &wire::CommitOffloadRequest,
    ) -> Result<wire::CommitOffloadReply, Error> {
        let Committed { kept, dropped, .. } = self.commit(client, ask)?;
        self.pump_writes();
        if !ask.durable {
            return Ok(wire::CommitOffloadReply { dropped, ..Default::default() });
        }
        let outcome = if kept.is_empty() { Err(NotDurable::Lost) } else { self.make_durable(&kept).await };
        let (durable, not_durable) = (outcome.is_ok(), not_durable(outcome));
        Ok(wire::CommitOffloadReply { dropped, durable, not_durable })
    }

    /// [`Engine::commit_offload`] without `durable`: it never waits, and leaves it to the caller to start the writes
    /// ([`Engine::pump_writes`]) once its answer is on its way.
    pub(crate) fn commit_offload_now(
        self: &Arc<Self>,
        ask: &wire::CommitOffloadRequest,
    ) -> Result<wire::CommitOffloadReply, Error> {
        let client = self.clients.check(ask.client)?;
        Ok(wire::CommitOffloadReply { dropped: self.commit(client, ask)?.dropped, ..Default::default() })
    }

    fn commit(
        self: &Arc<Self>,
        client: ClientId,
        ask: &wire::CommitOffloadRequest,
    ) -> Result<Committed, Error> {
        if ask.pages.len() != ask.checksums.len() {
            let text =
                format!("{} positions but {} checksums in one commit", ask.pages.len(), ask.checksums.len());
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        check_positions("CommitOffload", ask.pages.len())?;
        let pages: Vec<(u32, u64)> = ask.pages.iter().copied().zip(ask.checksums.iter().copied()).collect();
        let now = self.now();
        let committed =
            self.core().pool.commit_offload(LeaseId(ask.lease), client, &pages, now).map_err(refuse)?;
        self.metrics.offloaded_pages.increment(committed.shown);
        if committed.freed > 0 {
            self.freed.notify_waiters();
        }
        Ok(committed)
    }

    /// Gives back what was granted: the caller no longer writes to those slots.
    pub(crate) fn abort_offload(&self, ask: &wire::AbortOffloadRequest) -> Result<(), Error> {
        self.abort_offload_as(self.clients.check(ask.client)?, ask.lease)
    }

    /// [`Engine::abort_offload`] for a caller whose identity is known.
    pub(super) fn abort_offload_as(&self, client: ClientId, lease: u64) -> Result<(), Error> {
        self.core().pool.abort_offload(LeaseId(lease), client).map_err(refuse)?;
        self.freed.notify_waiters();
        Ok(())
    }
}

/// What became of each page: a page is present where all positions of it are, and declined as a whole.
fn outcomes_of_pages(outcomes: &[i32], shards: Shards) -> Vec<i32> {
    let present = Wire::Present as i32;
    let page = |positions: &[i32]| positions.iter().copied().find(|at| *at != present).unwrap_or(present);
    outcomes.chunks(shards.count()).map(page).collect()
}

/// Nothing granted, and what was wanted first found no slot.
fn starved(reply: &wire::BeginOffloadReply) -> bool {
    reply.slots.is_empty() && reply.outcomes.contains(&Wire::NoSpace.into())
}

fn all_present(reply: &wire::BeginOffloadReply) -> bool {
    reply.outcomes.iter().all(|outcome| *outcome == Wire::Present as i32)
}

fn granted(plan: &OffloadPlan) -> impl Iterator<Item = turnkv_pool::SlotKey> {
    plan.outcomes.iter().filter_map(|outcome| match outcome {
        Outcome::Granted(slot) => Some(*slot),
        _ => None,
    })
}

/// The wire's form of what becomes of a page.
pub(super) fn outcome_to_wire(outcome: &Outcome) -> Wire {
    match outcome {
        Outcome::Present => Wire::Present,
        Outcome::Granted(_) => Wire::Granted,
        Outcome::Stored => Wire::Stored,
        Outcome::NoSpace => Wire::NoSpace,
        Outcome::Outranked => Wire::Outranked,
        Outcome::InFlight => Wire::InFlight,
        Outcome::NoParent => Wire::NoParent,
        Outcome::LeaseLimit => Wire::LeaseLimit,
    }
}

/// The wire's form of a slot's place.
pub(super) fn slot_to_wire(place: &SlotPlace) -> wire::SlotRef {
    wire::SlotRef { slab: place.slab, generation: place.generation, offset: place.offset }
}

/// An optional session id.
pub(super) fn parse_session(text: &str) -> Result<Option<SessionId>, Error> {
    if text.is_empty() { Ok(None) } else { SessionId::parse(text).map(Some).map_err(malformed) }
}

/// Which shards of so many pages a call moves; whether the namespace has so many is the pool's to say.
pub(super) fn parse_shards(first: u32, count: u32, pages: usize) -> Result<Shards, Error> {
    let shards = Shards::new(first, count).ok_or_else(|| {
        Error::new(ErrorKind::Invalid, format!("{count} shards from shard {first} on are out of range"))
    })?;
    if shards.positions(pages) > HASHES_PER_CALL_MAX {
        let text = format!(
            "{} shards of {pages} pages are too many for one call, which moves at most {HASHES_PER_CALL_MAX} shards: split it",
            shards.count()
        );
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(shards)
}

/// A shard's number; whether the namespace has so many is the pool's to say.
pub(super) fn parse_shard(shard: u32) -> Result<u16, Error> {
    u16::try_from(shard).map_err(|_| Error::new(ErrorKind::Invalid, format!("shard {shard} is out of range")))
}
