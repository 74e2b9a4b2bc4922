//! OpenRail, RemoteOffload and RemoteReload on the wire. Owns: their messages, and the checks of what they say of a client's memory. Must
//! not know: which pages are there.

use super::offload::{begin as begin_offload, begun, check_positions, committed};
use super::reload::{begin as begin_reload, page};
use crate::access::Guest;
use crate::engine::offload::{OffloadBegun, OffloadCommitted};
use crate::engine::reload::BeginReload;
use crate::engine::remote::offload::{RemoteOffload, RemotePage};
use crate::engine::remote::reload::{RemoteReload, ToldPage};
use crate::engine::remotes::lent::{Domain, LentRegion, LentSpan};
use crate::engine::remotes::open_rail::{OfferedRail, Taken};
use std::sync::Arc;
use turnkv_proto::limits::{
    CARRIED_BYTES_MAX, RAIL_OFFERS_MAX, RAILS_HELD_MAX, REGION_KEYS_MAX, REMOTE_REGIONS_MAX, REMOTE_SPANS_MAX,
};
use turnkv_proto::{Error, wire};
use turnkv_transfer::fabric::{Engine, RailAddress, RegionKey};

/// Decodes what an OpenRail offers.
pub(crate) fn offers(raw: &wire::OpenRailRequest) -> Result<Vec<OfferedRail>, Error> {
    if raw.offers.len() > RAIL_OFFERS_MAX || raw.held.len() > RAILS_HELD_MAX {
        let text =
            format!("OpenRail offers at most {RAIL_OFFERS_MAX} rails and names {RAILS_HELD_MAX} as held");
        return Err(Error::invalid(text));
    }
    let offer = |raw: &wire::RailOffer| {
        let engine = match raw.fabric() {
            wire::Fabric::Framed => Some(Engine::Framed),
            wire::Fabric::Libfabric => Some(Engine::Libfabric),
            wire::Fabric::Verbs => Some(Engine::Verbs),
            wire::Fabric::Unspecified => None,
        };
        let address = RailAddress::new(raw.address.to_vec());
        let address = address.ok_or_else(|| Error::invalid("the address of a rail is too long"))?;
        Ok(OfferedRail { engine, domain: Domain(raw.domain), address })
    };
    raw.offers.iter().map(offer).collect()
}

/// Encodes the answer to an OpenRail: which offer was taken, if any was made, and which rails its client has in vain.
pub(crate) fn taken(taken: Option<Taken>, lost: Vec<u64>) -> wire::OpenRailReply {
    let reply = match taken {
        None => wire::OpenRailReply::default(),
        Some(Taken::Framed { at, secret, rail }) => wire::OpenRailReply {
            taken: at as u32 + 1,
            secret: secret.as_bytes().to_vec().into(),
            rail,
            ..Default::default()
        },
        Some(Taken::Nic { at, address, rail }) => wire::OpenRailReply {
            taken: at as u32 + 1,
            address: address.as_bytes().to_vec().into(),
            rail,
            ..Default::default()
        },
    };
    wire::OpenRailReply { lost, ..reply }
}

/// Decodes a RemoteOffload.
pub(crate) fn offload(raw: &wire::RemoteOffloadRequest, guest: &Guest) -> Result<RemoteOffload, Error> {
    let begin = begin_offload(raw.begin.as_ref().ok_or_else(no_begin)?, guest)?;
    let carried: usize = raw.pages.iter().map(|page| page.carried.len()).sum();
    if carried > CARRIED_BYTES_MAX as usize {
        let text =
            format!("RemoteOffload carries {carried} bytes: at most {CARRIED_BYTES_MAX} go into one call");
        return Err(Error::invalid(text));
    }
    let pages = pages("RemoteOffload", &raw.regions, &raw.pages)?;
    let positions = begin.shards.positions(begin.hashes.len());
    if let Some(page) = pages.last().filter(|page| page.position as usize >= positions) {
        let text =
            format!("RemoteOffload names position {}: it offers {positions}, from 0 on", page.position);
        return Err(Error::invalid(text));
    }
    Ok(RemoteOffload { begin, pages })
}

/// Encodes its answer.
pub(crate) fn offloaded(begin: OffloadBegun, commit: Option<OffloadCommitted>) -> wire::RemoteOffloadReply {
    wire::RemoteOffloadReply { begin: Some(begun(begin)), commit: commit.map(committed) }
}

/// Decodes a RemoteReload.
pub(crate) fn reload(raw: &wire::RemoteReloadRequest, guest: &Guest) -> Result<RemoteReload, Error> {
    let begin = begin_reload(raw.begin.as_ref().ok_or_else(no_begin)?, guest)?;
    let begin = BeginReload { hold: true, ..begin };
    let pages = pages("RemoteReload", &raw.regions, &raw.pages)?;
    let wanted = begin.shards.positions(begin.hashes.len());
    let in_order = pages.iter().zip(0..).all(|(page, position)| page.position == position);
    if pages.len() != wanted || !in_order {
        let text =
            format!("RemoteReload names memory for {} of {wanted} positions, or not in order", pages.len());
        return Err(Error::invalid(text));
    }
    let bytes: u64 = pages.iter().flat_map(|page| &page.spans).map(|span| u64::from(span.bytes())).sum();
    let may_carry = bytes <= u64::from(raw.carry_bytes_max.min(CARRIED_BYTES_MAX));
    Ok(RemoteReload { begin, pages, verify: raw.verify, may_carry })
}

/// Encodes a part of its answer; `covered`: with the first one, how many positions the call serves.
pub(crate) fn reloaded(pages: Vec<ToldPage>, covered: u32) -> wire::BeginReloadReply {
    let told =
        |told: ToldPage| wire::ReloadedPage { slot: None, carried: told.carried, ..page(told.position) };
    let pages = pages.into_iter().map(told).collect();
    wire::BeginReloadReply { pages, covered, ..Default::default() }
}

fn no_begin() -> Error {
    Error::invalid("a call over a network without `begin`")
}

fn pages(
    verb: &str,
    regions: &[wire::RemoteRegion],
    pages: &[wire::RemotePage],
) -> Result<Vec<RemotePage>, Error> {
    check_positions(verb, pages.len())?;
    let spans: usize = pages.iter().map(|page| page.spans.len()).sum();
    if regions.len() > REMOTE_REGIONS_MAX || spans > REMOTE_SPANS_MAX {
        let text = format!(
            "{verb} names {} regions and {spans} spans: at most {REMOTE_REGIONS_MAX} and {REMOTE_SPANS_MAX} go into one call",
            regions.len()
        );
        return Err(Error::invalid(text));
    }
    if !pages.is_sorted_by(|one, other| one.position < other.position) {
        return Err(Error::invalid(format!("{verb} names its positions in ascending order, each once")));
    }
    let regions: Vec<Arc<LentRegion>> = regions.iter().map(region).collect::<Result<_, _>>()?;
    let span = |raw: &wire::RemoteSpan| {
        let region = regions.get(raw.region as usize)?;
        LentSpan::new(region, raw.offset, raw.bytes)
    };
    let page = |raw: &wire::RemotePage| {
        let spans: Option<Vec<LentSpan>> = raw.spans.iter().map(span).collect();
        let spans = spans.filter(|spans| !spans.is_empty()).ok_or_else(|| {
            let position = raw.position;
            Error::invalid(format!(
                "{verb}: position {position} has no span, or one that is empty or outside of its region"
            ))
        })?;
        let (position, checksum, carried) = (raw.position, raw.checksum, raw.carried.clone());
        Ok(RemotePage { position, checksum, spans, carried })
    };
    pages.iter().map(page).collect()
}

fn region(raw: &wire::RemoteRegion) -> Result<Arc<LentRegion>, Error> {
    if raw.keys.len() > REGION_KEYS_MAX {
        let text = format!("a region has {} keys: at most {REGION_KEYS_MAX}", raw.keys.len());
        return Err(Error::invalid(text));
    }
    let key = |raw_key: &wire::RemoteKey| {
        let key = RegionKey { key: raw_key.key, base: raw_key.base, bytes: raw.bytes };
        (Domain(raw_key.domain), key)
    };
    Ok(Arc::new(LentRegion { keys: raw.keys.iter().map(key).collect() }))
}
