//! Slots that clients map: reserve, commit in place, renew, release. Owns: the verbs' order and their
//! waits. Must not know: what is mapped where.

use super::durable::not_durable;
use super::offload::{outcome_to_wire, parse_session, parse_shard, slot_to_wire};
use super::record::Told;
use super::{Core, Engine, malformed, refuse};
use crate::limits::RETRY_AFTER_MS;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use turnkv_pool::{
    CommitReservedAsk, LeaseId, OffloadAsk, Outcome, PageKey, ReserveAsk, Reserved, ReservedCommit, SlotPlace,
};
use turnkv_proto::limits::{LEASE_PAGES_MAX, RENEW_LEASES_MAX, RESERVE_PAGES_MAX};
use turnkv_proto::{BlockHash, Error, ErrorKind, Shards, unpack_hashes, wire};
use wire::{NotDurable, OffloadOutcome as Wire};

impl Engine {
    /// Gives slots to be written in place, as many as there are now.
    pub(crate) fn reserve(&self, raw: &wire::ReserveRequest) -> Result<wire::ReserveReply, Error> {
        if raw.pages > RESERVE_PAGES_MAX {
            let text = format!("one call reserves at most {RESERVE_PAGES_MAX} slots: split it");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let ask = ReserveAsk {
            ns: self.find_namespace(&raw.namespace)?,
            shard: parse_shard(raw.shard)?,
            client: self.clients.check(raw.client)?,
            lease: (raw.lease != 0).then_some(LeaseId(raw.lease)),
            pages: raw.pages,
        };
        if self.draining.load(Ordering::Relaxed) {
            let short = Wire::Draining.into();
            return Ok(wire::ReserveReply { lease: raw.lease, short, ..Default::default() });
        }
        let now = self.now();
        let (reserved, slots, renewals) = {
            let mut core = self.core();
            let reserved = reserve_all(&mut core, ask, now)?;
            let slots: Vec<SlotPlace> = reserved.slots.iter().map(|slot| core.place(*slot)).collect();
            (reserved, slots, core.pool.take_slab_actions())
        };
        self.renew_slabs(renewals);
        self.pass_place_notes();
        let starved = reserved.short == Some(Outcome::NoSpace);
        Ok(wire::ReserveReply {
            lease: reserved.lease.map_or(0, |lease| lease.0),
            lease_ms: reserved.lease_ms,
            first: reserved.first,
            slots: slots.iter().map(slot_to_wire).collect(),
            short: reserved.short.as_ref().map_or(Wire::Unspecified, outcome_to_wire).into(),
            retry_after_ms: if starved { RETRY_AFTER_MS } else { 0 },
        })
    }

    /// Makes pages in reserved slots visible. Also returns those stored: the caller starts their writes.
    pub(crate) fn commit_reserved(
        &self,
        raw: &wire::CommitReservedRequest,
    ) -> Result<(wire::CommitReservedReply, Vec<PageKey>), Error> {
        check_positions("CommitReserved", raw.positions.len())?;
        let hashes = unpack_hashes(&raw.hashes).map_err(malformed)?;
        if hashes.len() != raw.positions.len() || hashes.len() != raw.checksums.len() {
            let (pages, positions, checksums) = (hashes.len(), raw.positions.len(), raw.checksums.len());
            let text =
                format!("{pages} pages, {positions} positions and {checksums} checksums in one commit");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if raw.siblings && !raw.session.is_empty() {
            let text = "siblings are no session's list: leave the session out".to_owned();
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let session = parse_session(&raw.session)?;
        let filled: Vec<(u32, u64)> =
            raw.positions.iter().copied().zip(raw.checksums.iter().copied()).collect();
        let shards = Shards::one(parse_shard(raw.shard)?);
        let pages = OffloadAsk {
            ns: self.find_namespace(&raw.namespace)?,
            session: session.as_ref(),
            parent: BlockHash::parse_optional(&raw.parent).map_err(malformed)?,
            hashes: &hashes,
            shards,
            tail_tokens: raw.tail_tokens,
            client: self.clients.check(raw.client)?,
        };
        let (lease, siblings) = (LeaseId(raw.lease), raw.siblings);
        let told = Told {
            ns: pages.ns,
            kind: wire::RecordedKind::Offload,
            session: pages.session,
            client: pages.client,
            parent: pages.parent,
            blocks: &hashes[..hashes.len() - usize::from(raw.tail_tokens > 0 && !hashes.is_empty())],
        };
        let ask = CommitReservedAsk { pages, lease, filled: &filled, siblings };
        let now = self.now();
        let ReservedCommit { outcomes, kept, shown } =
            self.core().pool.commit_reserved(ask, now).map_err(refuse)?;
        self.pass_place_notes();
        let count = |wanted: Outcome| outcomes.iter().filter(|outcome| **outcome == wanted).count() as u64;
        let (stored, present) = (count(Outcome::Stored), count(Outcome::Present));
        self.metrics.offloaded_pages.increment(shown);
        if shards.are_counted() {
            self.metrics.present_pages.increment(present);
            self.metrics.declined_pages.increment(outcomes.len() as u64 - stored - present);
            if !siblings && stored > 0 {
                self.tell(&told);
            }
        }
        let outcomes = outcomes.iter().map(|outcome| outcome_to_wire(outcome).into()).collect();
        Ok((wire::CommitReservedReply { outcomes, ..Default::default() }, kept))
    }

    /// Waits until what a commit accepted, and its ancestors, are on stable storage, and says so in the reply.
    pub(crate) async fn reserved_durable(
        self: &Arc<Self>,
        raw: &wire::CommitReservedRequest,
        reply: &mut wire::CommitReservedReply,
        kept: &[PageKey],
    ) {
        let declined = |outcome: &i32| ![Wire::Stored as i32, Wire::Present as i32].contains(outcome);
        let accepted = reply.outcomes.iter().position(declined);
        let accepted = accepted.unwrap_or(reply.outcomes.len());
        let mut pages = kept.to_vec();
        if let (Ok(ns), Ok(hashes)) = (self.find_namespace(&raw.namespace), unpack_hashes(&raw.hashes)) {
            // Pages that were there already, perhaps only in DRAM.
            let core = self.core();
            pages.extend(hashes.iter().take(accepted).filter_map(|hash| core.pool.page_key(ns, hash)));
        }
        let outcome = if pages.is_empty() { Err(NotDurable::Lost) } else { self.make_durable(&pages).await };
        reply.durable = outcome.is_ok();
        reply.not_durable = not_durable(outcome);
    }

    /// The client maps what these leases are on: they are held, but for those that the answer names.
    pub(crate) fn renew(&self, raw: &wire::RenewRequest) -> Result<wire::RenewReply, Error> {
        let client = self.clients.check(raw.client)?;
        if raw.leases.len() > RENEW_LEASES_MAX {
            let text = format!("one call renews at most {RENEW_LEASES_MAX} leases: split it");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let mut leases: Vec<LeaseId> = raw.leases.iter().copied().map(LeaseId).collect();
        leases.sort_unstable();
        leases.dedup();
        let now = self.now();
        let renewed = self.core().pool.renew(client, &leases, now);
        let numbers = |leases: Vec<LeaseId>| leases.into_iter().map(|lease| lease.0).collect();
        Ok(wire::RenewReply {
            lease_ms: self.settings.limits.lease_ms as u32,
            gone: numbers(renewed.gone),
            refused: numbers(renewed.refused),
        })
    }

    /// The client has unmapped these slots; positions in `corrupt` did not verify at its end.
    pub(crate) fn release(&self, raw: &wire::ReleaseRequest) -> Result<(), Error> {
        let (client, now) = (self.clients.check(raw.client)?, self.now());
        check_positions("Release", raw.positions.len().max(raw.corrupt.len()))?;
        let (lease, corrupt) = (LeaseId(raw.lease), &once(&raw.corrupt));
        let dropped = self.core().pool.release(lease, client, &raw.positions, corrupt, now);
        self.reader_dropped(dropped.map_err(refuse)?);
        self.freed.notify_waiters();
        Ok(())
    }
}

/// Reserves slice by slice, all under one lease and in one run of positions. Where another call for the same lease came in
/// between, what there is so far is the answer.
fn reserve_all(core: &mut MutexGuard<'_, Core>, ask: ReserveAsk, now: u64) -> Result<Reserved, Error> {
    core.check_present(ask.client)?;
    let mut all = core.pool.reserve(ask, now).map_err(refuse)?;
    while all.short.is_none() && all.slots.len() < ask.pages as usize {
        MutexGuard::bump(core);
        core.check_present(ask.client)?;
        let pages = ask.pages - all.slots.len() as u32;
        let next = all.first + all.slots.len() as u32;
        let more = core.pool.reserve_more(ReserveAsk { lease: all.lease, pages, ..ask }, next, now);
        let Some(more) = more.map_err(refuse)? else {
            all.short = Some(Outcome::NoSpace);
            break;
        };
        all.slots.extend(more.slots);
        all.short = more.short;
    }
    Ok(all)
}

/// A call names no more positions than a lease has.
pub(super) fn check_positions(verb: &str, count: usize) -> Result<(), Error> {
    if count <= LEASE_PAGES_MAX {
        return Ok(());
    }
    let text = format!("{verb} names {count} positions, a lease has at most {LEASE_PAGES_MAX}: split it");
    Err(Error::new(ErrorKind::Invalid, text))
}

/// Positions, ascending, each once.
pub(super) fn once(positions: &[u32]) -> Vec<u32> {
    let mut positions = positions.to_vec();
    positions.sort_unstable();
    positions.dedup();
    positions
}
