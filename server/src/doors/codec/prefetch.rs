//! Prefetch on the wire. Owns: its two messages. Must not know: where pages are.

use super::pages_of;
use crate::access::Guest;
use crate::engine::lookup::PagesOf;
use crate::engine::prefetch::{Prefetch, PrefetchBegun, When};
use turnkv_proto::{Error, wire};

/// Decodes a Prefetch.
pub(crate) fn ask(raw: &wire::PrefetchRequest, guest: &Guest) -> Result<Prefetch, Error> {
    let namespace = guest.namespace(&raw.namespace)?;
    if raw.session.is_empty() && raw.in_ms > 0 {
        return Err(Error::invalid("a prefetch by time is of a session: name it, or leave in_ms out"));
    }
    let when = match pages_of(&raw.session, &raw.hashes)? {
        PagesOf::Session(session) if raw.in_ms > 0 => When::Within { session, ms: raw.in_ms },
        pages => When::Now(pages),
    };
    Ok(Prefetch { namespace, when })
}

/// Encodes its answer.
pub(crate) fn reply(begun: PrefetchBegun) -> wire::PrefetchReply {
    wire::PrefetchReply { started: begun.started, ready: begun.ready }
}
