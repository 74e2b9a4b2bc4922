//! BeginOffload, CommitOffload and AbortOffload on the wire. Owns: their messages, the wire's names of what becomes of a page, of
//! slots and of durability. Must not know: which pages are there.

use super::{optional_session, shards};
use crate::access::Guest;
use crate::engine::durable::{Durability, NotDurable};
use crate::engine::offload::{BeginOffload, CommitOffload, OffloadBegun, OffloadCommitted, Outcomes};
use turnkv_pool::{LeaseId, Outcome, SlotPlace};
use turnkv_proto::limits::LEASE_PAGES_MAX;
use turnkv_proto::{BlockHash, Error, unpack_hashes, wire};

/// Decodes a BeginOffload.
pub(crate) fn begin(raw: &wire::BeginOffloadRequest, guest: &Guest) -> Result<BeginOffload, Error> {
    let hashes = unpack_hashes(&raw.hashes)?;
    if hashes.is_empty() {
        return Err(Error::invalid("BeginOffload names no page"));
    }
    Ok(BeginOffload {
        namespace: guest.namespace(&raw.namespace)?,
        session: optional_session(&raw.session)?,
        parent: BlockHash::parse_optional(&raw.parent)?,
        shards: shards(raw.shard, raw.shards, hashes.len())?,
        hashes,
        tail_tokens: raw.tail_tokens,
        wait_ms: raw.wait_ms,
        durable: raw.durable,
    })
}

/// Encodes its answer.
pub(crate) fn begun(begun: OffloadBegun) -> wire::BeginOffloadReply {
    let (durable, not_durable) = durability(begun.durable);
    wire::BeginOffloadReply {
        lease: lease_number(begun.lease),
        lease_ms: begun.lease_ms,
        outcomes: match begun.outcomes {
            Outcomes::Each(each) => outcomes(&each),
            Outcomes::AllPresent(positions) => vec![wire::OffloadOutcome::Present.into(); positions],
            Outcomes::AllDraining(positions) => vec![wire::OffloadOutcome::Draining.into(); positions],
        },
        slots: begun.slots.iter().map(slot_ref).collect(),
        retry_after_ms: begun.retry_after_ms,
        durable,
        not_durable,
    }
}

/// Decodes a CommitOffload.
pub(crate) fn commit(raw: &wire::CommitOffloadRequest) -> Result<CommitOffload, Error> {
    if raw.pages.len() != raw.checksums.len() {
        let (positions, checksums) = (raw.pages.len(), raw.checksums.len());
        return Err(Error::invalid(format!("{positions} positions but {checksums} checksums in one commit")));
    }
    check_positions("CommitOffload", raw.pages.len())?;
    let pages = raw.pages.iter().copied().zip(raw.checksums.iter().copied()).collect();
    Ok(CommitOffload { lease: LeaseId(raw.lease), pages, durable: raw.durable })
}

/// Encodes its answer.
pub(crate) fn committed(committed: OffloadCommitted) -> wire::CommitOffloadReply {
    let (durable, not_durable) = durability(committed.durable);
    wire::CommitOffloadReply { dropped: committed.dropped, durable, not_durable }
}

/// The wire's form of what becomes of pages.
pub(super) fn outcomes(outcomes: &[Outcome]) -> Vec<i32> {
    outcomes.iter().map(|outcome| outcome_name(outcome).into()).collect()
}

/// The wire's name of what becomes of a page.
pub(super) fn outcome_name(outcome: &Outcome) -> wire::OffloadOutcome {
    match outcome {
        Outcome::Present => wire::OffloadOutcome::Present,
        Outcome::Granted(_) => wire::OffloadOutcome::Granted,
        Outcome::Stored => wire::OffloadOutcome::Stored,
        Outcome::NoSpace => wire::OffloadOutcome::NoSpace,
        Outcome::Outranked => wire::OffloadOutcome::Outranked,
        Outcome::InFlight => wire::OffloadOutcome::InFlight,
        Outcome::NoParent => wire::OffloadOutcome::NoParent,
        Outcome::LeaseLimit => wire::OffloadOutcome::LeaseLimit,
    }
}

/// The wire's form of whether pages are on stable storage: are they, and why not; neither where nobody asked.
pub(super) fn durability(durable: Option<Durability>) -> (bool, i32) {
    let why = match durable {
        None => return (false, wire::NotDurable::Unspecified.into()),
        Some(Ok(())) => return (true, wire::NotDurable::Unspecified.into()),
        Some(Err(NotDurable::NoTier)) => wire::NotDurable::NoTier,
        Some(Err(NotDurable::Timeout)) => wire::NotDurable::Timeout,
        Some(Err(NotDurable::Changed)) => wire::NotDurable::Changed,
        Some(Err(NotDurable::Lost)) => wire::NotDurable::Lost,
        Some(Err(NotDurable::Device)) => wire::NotDurable::Device,
    };
    (false, why.into())
}

/// The wire's form of a slot's place.
pub(super) fn slot_ref(place: &SlotPlace) -> wire::SlotRef {
    wire::SlotRef { slab: place.slab, generation: place.generation, offset: place.offset }
}

/// A lease's number; 0: nothing was leased.
pub(super) fn lease_number(lease: Option<LeaseId>) -> u64 {
    lease.map_or(0, |lease| lease.0)
}

/// A call names no more positions than a lease has.
pub(super) fn check_positions(verb: &str, count: usize) -> Result<(), Error> {
    if count <= LEASE_PAGES_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{verb} names {count} positions, a lease has at most {LEASE_PAGES_MAX}: split it"
    )))
}
