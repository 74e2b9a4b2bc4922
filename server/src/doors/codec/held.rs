//! Reserve, CommitReserved, Renew and Release on the wire: the verbs on slots that a client maps. Owns: their messages. Must not
//! know: what is mapped where.

use super::offload::{check_positions, durability, lease_number, outcome_name, outcomes, slot_ref};
use super::{ascending, optional_session, shard};
use crate::access::Guest;
use crate::engine::durable::Durability;
use crate::engine::hold::{CommitReserved, Release, Reserve, ReservedSlots, Short, TakeOver};
use turnkv_pool::{LeaseId, MappedSlot, Outcome, Renewed, TakenOver};
use turnkv_proto::limits::{RENEW_LEASES_MAX, RESERVE_PAGES_MAX};
use turnkv_proto::{BlockHash, Error, unpack_hashes, wire};

/// Decodes a Reserve.
pub(crate) fn reserve(raw: &wire::ReserveRequest, guest: &Guest) -> Result<Reserve, Error> {
    if raw.pages > RESERVE_PAGES_MAX {
        let text = format!("one call reserves at most {RESERVE_PAGES_MAX} slots: split it");
        return Err(Error::invalid(text));
    }
    Ok(Reserve {
        namespace: guest.namespace(&raw.namespace)?,
        shard: shard(raw.shard)?,
        lease: (raw.lease != 0).then_some(LeaseId(raw.lease)),
        pages: raw.pages,
    })
}

/// Encodes its answer.
pub(crate) fn reserved(reserved: &ReservedSlots) -> wire::ReserveReply {
    let short = match &reserved.short {
        None => wire::OffloadOutcome::Unspecified,
        Some(Short::Draining) => wire::OffloadOutcome::Draining,
        Some(Short::Declined(outcome)) => outcome_name(outcome),
    };
    wire::ReserveReply {
        lease: lease_number(reserved.lease),
        lease_ms: reserved.lease_ms,
        first: reserved.first,
        slots: reserved.slots.iter().map(slot_ref).collect(),
        short: short.into(),
        retry_after_ms: reserved.retry_after_ms,
    }
}

/// Decodes a CommitReserved.
pub(crate) fn commit(raw: &wire::CommitReservedRequest, guest: &Guest) -> Result<CommitReserved, Error> {
    let namespace = guest.namespace(&raw.namespace)?;
    check_positions("CommitReserved", raw.positions.len())?;
    let hashes = unpack_hashes(&raw.hashes)?;
    let (pages, positions, checksums) = (hashes.len(), raw.positions.len(), raw.checksums.len());
    if pages != positions || pages != checksums {
        let text = format!("{pages} pages, {positions} positions and {checksums} checksums in one commit");
        return Err(Error::invalid(text));
    }
    if raw.siblings && !raw.session.is_empty() {
        return Err(Error::invalid("siblings are no session's list: leave the session out"));
    }
    Ok(CommitReserved {
        session: optional_session(&raw.session)?,
        shard: shard(raw.shard)?,
        namespace,
        parent: BlockHash::parse_optional(&raw.parent)?,
        hashes,
        tail_tokens: raw.tail_tokens,
        lease: LeaseId(raw.lease),
        filled: raw.positions.iter().copied().zip(raw.checksums.iter().copied()).collect(),
        siblings: raw.siblings,
        durable: raw.durable,
    })
}

/// Encodes its answer.
pub(crate) fn committed(of_pages: &[Outcome], durable: Option<Durability>) -> wire::CommitReservedReply {
    let (durable, not_durable) = durability(durable);
    wire::CommitReservedReply { outcomes: outcomes(of_pages), durable, not_durable }
}

/// Decodes the leases of a Renew: ascending, each once.
pub(crate) fn renew(raw: &wire::RenewRequest) -> Result<Vec<LeaseId>, Error> {
    if raw.leases.len() > RENEW_LEASES_MAX {
        let text = format!("one call renews at most {RENEW_LEASES_MAX} leases: split it");
        return Err(Error::invalid(text));
    }
    let mut leases: Vec<LeaseId> = raw.leases.iter().copied().map(LeaseId).collect();
    leases.sort_unstable();
    leases.dedup();
    Ok(leases)
}

/// Encodes its answer.
pub(crate) fn renewed((renewed, lease_ms): (Renewed, u32)) -> wire::RenewReply {
    let numbers = |leases: Vec<LeaseId>| leases.into_iter().map(|lease| lease.0).collect();
    wire::RenewReply { lease_ms, gone: numbers(renewed.gone), refused: numbers(renewed.refused) }
}

/// Decodes a TakeOver.
pub(crate) fn take_over(raw: wire::TakeOverRequest, guest: &Guest) -> Result<TakeOver, Error> {
    let namespace = guest.namespace(&raw.namespace)?;
    check_positions("TakeOver", raw.positions.len().max(raw.slots.len()))?;
    if raw.positions.len() != raw.slots.len() {
        let text = format!("{} positions and {} slots", raw.positions.len(), raw.slots.len());
        return Err(Error::invalid(text));
    }
    let reserved = raw.reserved;
    let slot = |(position, slot): (u32, wire::SlotRef)| {
        let wire::SlotRef { slab, generation, offset } = slot;
        MappedSlot { position, slab, generation, offset, reserved }
    };
    Ok(TakeOver {
        namespace,
        shard: shard(raw.shard)?,
        slots: raw.positions.into_iter().zip(raw.slots).map(slot).collect(),
    })
}

/// Encodes its answer.
pub(crate) fn taken_over((taken, lease_ms): (TakenOver, u32)) -> wire::TakeOverReply {
    let TakenOver { lease, positions, no_room } = taken;
    wire::TakeOverReply { lease: lease_number(lease), lease_ms, positions, no_room }
}

/// Decodes a Release.
pub(crate) fn release(raw: wire::ReleaseRequest) -> Result<Release, Error> {
    check_positions("Release", raw.positions.len().max(raw.corrupt.len()))?;
    let (lease, positions) = (LeaseId(raw.lease), raw.positions);
    Ok(Release { lease, positions, corrupt: ascending(raw.corrupt) })
}
