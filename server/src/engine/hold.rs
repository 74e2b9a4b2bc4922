//! Slots that clients map: reserve, commit in place, renew, release. Owns: the verbs' order and their
//! waits. Must not know: what is mapped where.

use super::clients::LeftSlots;
use super::decide::{Decision, Later};
use super::durable::{Durability, NotDurable};
use super::recorder::{RecordedKind, Told};
use super::{Engine, refuse};
use crate::limits::RETRY_AFTER_MS;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use turnkv_pool::{
    ClientId, CommitReservedAsk, LeaseId, MappedSlot, OffloadAsk, Outcome, Renewed, ReserveAsk, Reserved,
    ReservedCommit, SlotPlace, TakeOverAsk, TakenOver,
};
use turnkv_proto::{BlockHash, Error, NamespaceId, SessionId, Shards};

/// Slots that are to be written in place.
pub(crate) struct Reserve {
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// Which shard of the pages to come.
    pub(crate) shard: u16,
    /// The lease to add them to; none: a new one.
    pub(crate) lease: Option<LeaseId>,
    /// How many.
    pub(crate) pages: u32,
}

/// Slots that may be written in place.
pub(crate) struct ReservedSlots {
    /// Their lease; none: nothing is reserved.
    pub(crate) lease: Option<LeaseId>,
    /// Renew within so long.
    pub(crate) lease_ms: u32,
    /// Position of the first one in the lease; the others follow.
    pub(crate) first: u32,
    /// Where they are.
    pub(crate) slots: Vec<SlotPlace>,
    /// Why there are fewer than asked for.
    pub(crate) short: Option<Short>,
    /// When it makes sense to ask for the rest again; 0: it does not.
    pub(crate) retry_after_ms: u32,
}

/// Why fewer slots are reserved than were asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Short {
    /// The server takes nothing any more.
    Draining,
    /// The pool has no more for this caller.
    Declined(Outcome),
}

/// Pages in reserved slots.
pub(crate) struct CommitReserved {
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// Of which session, where that is said.
    pub(crate) session: Option<SessionId>,
    /// The page before the first one; none at the root.
    pub(crate) parent: Option<BlockHash>,
    /// The pages.
    pub(crate) hashes: Vec<BlockHash>,
    /// The lease's shard of each.
    pub(crate) shard: u16,
    /// Above 0: the last page is a partial tail of so many tokens.
    pub(crate) tail_tokens: u32,
    /// The lease of their slots.
    pub(crate) lease: LeaseId,
    /// Position of each page's slot in the lease, and its checksum.
    pub(crate) filled: Vec<(u32, u64)>,
    /// Every page hangs on the parent, not on the page before it.
    pub(crate) siblings: bool,
    /// Answer once they are on stable storage.
    pub(crate) durable: bool,
}

/// Slots that a client has mapped since an earlier server.
pub(crate) struct TakeOver {
    /// Of which namespace.
    pub(crate) namespace: NamespaceId,
    /// Which shard is in them.
    pub(crate) shard: u16,
    /// By ascending positions.
    pub(crate) slots: Vec<MappedSlot>,
}

/// Slots that a client has unmapped.
pub(crate) struct Release {
    /// The lease they are of.
    pub(crate) lease: LeaseId,
    /// Their positions, ascending; none: the whole lease.
    pub(crate) positions: Vec<u32>,
    /// Positions that did not verify, ascending, each once.
    pub(crate) corrupt: Vec<u32>,
}

impl Engine {
    /// Gives slots to be written in place, as many as there are now.
    pub(crate) fn reserve(&self, client: ClientId, ask: &Reserve) -> Result<ReservedSlots, Error> {
        let ns = self.find_namespace(&ask.namespace)?;
        if self.draining.load(Ordering::Relaxed) {
            let (lease, short) = (ask.lease, Some(Short::Draining));
            let (lease_ms, first, retry_after_ms) = (0, 0, 0);
            return Ok(ReservedSlots { lease, lease_ms, first, slots: Vec::new(), short, retry_after_ms });
        }
        let now = self.now();
        let (reserved, slots) = {
            let mut core = self.decide();
            let Reserve { shard, lease, pages, .. } = *ask;
            let reserved = reserve_all(&mut core, ReserveAsk { ns, shard, client, lease, pages }, now)?;
            let slots: Vec<SlotPlace> = reserved.slots.iter().map(|slot| core.place(*slot)).collect();
            (reserved, slots)
        };
        let Reserved { lease, lease_ms, first, short, .. } = reserved;
        let retry_after_ms = if short == Some(Outcome::NoSpace) { RETRY_AFTER_MS } else { 0 };
        let short = short.map(Short::Declined);
        Ok(ReservedSlots { lease, lease_ms, first, slots, short, retry_after_ms })
    }

    /// Makes pages in reserved slots visible. What follows is for the caller to let go of once its answer is on its way.
    pub(crate) fn commit_reserved(
        &self,
        client: ClientId,
        ask: &CommitReserved,
    ) -> Result<(ReservedCommit, Later<'_>), Error> {
        let shards = Shards::one(ask.shard);
        let pages = OffloadAsk {
            ns: self.find_namespace(&ask.namespace)?,
            session: ask.session.as_ref(),
            parent: ask.parent,
            hashes: &ask.hashes,
            shards,
            tail_tokens: ask.tail_tokens,
            client,
        };
        let siblings = ask.siblings;
        let commit = CommitReservedAsk { pages, lease: ask.lease, filled: &ask.filled, siblings };
        let now = self.now();
        let mut core = self.decide();
        let committed = core.pool.commit_reserved(commit, now).map_err(refuse)?;
        let later = core.later();
        let of = |wanted: Outcome| committed.outcomes.iter().filter(|outcome| **outcome == wanted).count();
        let (stored, present) = (of(Outcome::Stored), of(Outcome::Present));
        self.metrics.offloaded_pages.increment(committed.shown);
        if shards.are_counted() {
            self.metrics.present_pages.increment(present as u64);
            self.metrics.declined_pages.increment((committed.outcomes.len() - stored - present) as u64);
            if !siblings && stored > 0 {
                let full = ask.hashes.len() - usize::from(ask.tail_tokens > 0 && !ask.hashes.is_empty());
                self.tell(&Told {
                    ns: pages.ns,
                    kind: RecordedKind::Offload,
                    session: pages.session,
                    client,
                    parent: pages.parent,
                    blocks: &ask.hashes[..full],
                });
            }
        }
        Ok((committed, later))
    }

    /// Waits until what a commit accepted, and its ancestors, are on stable storage.
    pub(crate) async fn reserved_durable(
        self: &Arc<Self>,
        ask: &CommitReserved,
        committed: &ReservedCommit,
    ) -> Durability {
        let outcomes = &committed.outcomes;
        let declined = |outcome: &Outcome| ![Outcome::Stored, Outcome::Present].contains(outcome);
        let accepted = outcomes.iter().position(declined).unwrap_or(outcomes.len());
        let mut pages = committed.kept.clone();
        if let Ok(ns) = self.find_namespace(&ask.namespace) {
            // Pages that were there already, perhaps only in DRAM.
            let core = self.decide();
            pages.extend(ask.hashes.iter().take(accepted).filter_map(|hash| core.pool.page_key(ns, hash)));
        }
        if pages.is_empty() { Err(NotDurable::Lost) } else { self.make_durable(&pages).await }
    }

    /// The client maps what these leases are on: they are held, but for those that the answer names. It is asked to do so
    /// again within so many milliseconds.
    pub(crate) fn renew(&self, client: ClientId, leases: &[LeaseId]) -> (Renewed, u32) {
        let now = self.now();
        (self.decide().pool.renew(client, leases, now), self.settings.limits.lease_ms as u32)
    }

    /// The client has these slots mapped since an earlier server: those that are kept for it are under a lease of its own again. It is
    /// asked to renew that within so many milliseconds.
    pub(crate) fn take_over(&self, client: ClientId, ask: &TakeOver) -> Result<(TakenOver, u32), Error> {
        let (ns, now) = (self.find_namespace(&ask.namespace)?, self.now());
        let left = self.clients.left_of(client, LeftSlots::Mapped);
        let mut core = self.decide();
        core.check_present(client)?;
        let asked = TakeOverAsk { client, left: &left, ns, shard: ask.shard, slots: &ask.slots };
        let taken = core.pool.take_over(asked, now).map_err(refuse)?;
        Ok((taken, self.settings.limits.lease_ms as u32))
    }

    /// The client has unmapped these slots.
    pub(crate) fn release(&self, client: ClientId, ask: &Release) -> Result<(), Error> {
        let now = self.now();
        let dropped = self.decide().pool.release(ask.lease, client, &ask.positions, &ask.corrupt, now);
        self.reader_dropped(dropped.map_err(refuse)?);
        Ok(())
    }
}

/// Reserves slice by slice, all under one lease and in one run of positions. Where another call for the same lease came in
/// between, what there is so far is the answer.
fn reserve_all(core: &mut Decision<'_>, ask: ReserveAsk, now: u64) -> Result<Reserved, Error> {
    core.check_present(ask.client)?;
    let mut all = core.pool.reserve(ask, now).map_err(refuse)?;
    while all.short.is_none() && all.slots.len() < ask.pages as usize {
        core.let_others_in();
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
