//! Route on the wire. Owns: its messages. Must not know: how engines are ranked.

use super::optional_session;
use crate::access::Guest;
use crate::engine::route::{RouteTurn, Routed};
use turnkv_proto::{Error, unpack_hashes, wire};
use turnkv_router::Candidate;

/// Decodes a Route.
pub(crate) fn ask<'a>(raw: &'a wire::RouteRequest, guest: &Guest) -> Result<RouteTurn<'a>, Error> {
    Ok(RouteTurn {
        namespace: guest.namespace(&raw.namespace)?,
        session: optional_session(&raw.session)?,
        hashes: unpack_hashes(&raw.hashes)?,
        candidates: raw.engines.iter().map(candidate).collect(),
    })
}

/// Decodes what another member asks of engines.
pub(crate) fn look<'a>(raw: &'a wire::LookAtEnginesRequest, guest: &Guest) -> Result<RouteTurn<'a>, Error> {
    let named = |name: &'a String| Candidate {
        name: name.as_str(),
        capacity_pages: 0,
        used_pages: 0,
        running: 0,
        waiting: 0,
    };
    Ok(RouteTurn {
        namespace: guest.namespace(&raw.namespace)?,
        session: optional_session(&raw.session)?,
        hashes: unpack_hashes(&raw.hashes)?,
        candidates: raw.engines.iter().map(named).collect(),
    })
}

/// Encodes its answer, for the engines that the request names.
pub(crate) fn reply(raw: &wire::RouteRequest, routed: Routed) -> wire::RouteReply {
    let choices = routed.ranked.into_iter().map(|ranked| wire::RouteChoice {
        name: raw.engines[ranked.candidate].name.clone(),
        held_pages: ranked.held_pages,
        overflow_pages: ranked.overflow_pages,
        home: ranked.is_home,
        score: ranked.score,
    });
    wire::RouteReply { choices: choices.collect(), pool_pages: routed.pool_pages }
}

fn candidate(engine: &wire::RouteEngine) -> Candidate<'_> {
    Candidate {
        name: &engine.name,
        capacity_pages: engine.capacity_pages,
        used_pages: engine.used_pages,
        running: engine.running,
        waiting: engine.waiting,
    }
}
