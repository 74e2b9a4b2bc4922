//! BeginReload and EndReload on the wire, and the pieces of an inline Reload. Owns: their messages, the wire's names of misses.
//! Must not know: which pages are there.

use super::offload::{check_positions, lease_number, slot_ref};
use super::stats::tier_kind;
use super::{ascending, optional_session, shards};
use crate::access::Guest;
use crate::engine::inline::ReloadPiece;
use crate::engine::reload::{BeginReload, EndReload, ReloadRun, ReloadedPosition};
use crate::engine::stats::TierName;
use turnkv_pool::{LeaseId, MissCause};
use turnkv_proto::{Error, unpack_hashes, wire};

/// Decodes a BeginReload.
pub(crate) fn begin(raw: &wire::BeginReloadRequest, guest: &Guest) -> Result<BeginReload, Error> {
    let hashes = unpack_hashes(&raw.hashes)?;
    if hashes.is_empty() {
        return Err(Error::invalid("BeginReload names no page"));
    }
    Ok(BeginReload {
        namespace: guest.namespace(&raw.namespace)?,
        session: optional_session(&raw.session)?,
        shards: shards(raw.shard, raw.shards, hashes.len())?,
        hashes,
        wait_ms: raw.wait_ms,
        hold: raw.hold,
        may_fetch: !raw.here_only,
    })
}

/// Encodes the first message of its answer, with the pages that are in their slots by now.
pub(crate) fn begun(run: &mut ReloadRun) -> wire::BeginReloadReply {
    let (lease, lease_ms, covered) = (lease_number(run.lease), run.lease_ms, run.covered);
    wire::BeginReloadReply { lease, lease_ms, covered, ..landed(run) }
}

/// Encodes a later message: the pages that are in their slots since the last one.
pub(crate) fn landed(run: &mut ReloadRun) -> wire::BeginReloadReply {
    let pages = std::iter::from_fn(|| run.next_ready()).map(page).collect();
    wire::BeginReloadReply { pages, ..Default::default() }
}

/// Decodes an EndReload.
pub(crate) fn end(raw: wire::EndReloadRequest) -> Result<EndReload, Error> {
    check_positions("EndReload", raw.corrupt.len())?;
    Ok(EndReload { lease: LeaseId(raw.lease), corrupt: ascending(raw.corrupt) })
}

/// Decodes an inline Reload: a BeginReload by somebody who can map nothing.
pub(crate) fn inline(raw: wire::ReloadRequest, guest: &Guest) -> Result<BeginReload, Error> {
    let raw = wire::BeginReloadRequest {
        namespace: raw.namespace,
        hashes: raw.hashes,
        shard: raw.shard,
        shards: raw.shards,
        client: 0,
        wait_ms: raw.wait_ms,
        session: raw.session,
        hold: false,
        here_only: raw.here_only,
    };
    begin(&raw, guest)
}

/// Encodes a piece of an inline Reload.
pub(crate) fn piece(piece: ReloadPiece) -> wire::ReloadReply {
    match piece {
        ReloadPiece::Bytes { index, offset, payload, checksum, tier } => {
            wire::ReloadReply { index, offset, payload, checksum, tier: tier_number(tier), miss: 0 }
        }
        ReloadPiece::Miss { index, cause } => {
            wire::ReloadReply { index, miss: miss_cause(cause).into(), ..Default::default() }
        }
    }
}

/// Encodes one position.
pub(super) fn page(page: ReloadedPosition) -> wire::ReloadedPage {
    let ReloadedPosition { index, checksum, tier, found } = page;
    let miss = found.as_ref().map_or_else(|cause| miss_cause(*cause).into(), |_| 0);
    let slot = found.as_ref().map(slot_ref).ok();
    wire::ReloadedPage { index, slot, checksum, tier: tier_number(tier), miss, ..Default::default() }
}

fn tier_number(tier: Option<TierName>) -> i32 {
    tier.map_or(wire::TierKind::Unspecified, tier_kind).into()
}

/// The wire's name of why a page is not there.
fn miss_cause(cause: MissCause) -> wire::MissCause {
    match cause {
        MissCause::Absent => wire::MissCause::Absent,
        MissCause::Checksum => wire::MissCause::Checksum,
        MissCause::Io => wire::MissCause::Io,
        MissCause::Busy => wire::MissCause::Busy,
        MissCause::Incomplete => wire::MissCause::Incomplete,
    }
}
