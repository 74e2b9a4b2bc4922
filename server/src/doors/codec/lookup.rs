//! Lookup on the wire. Owns: its two messages. Must not know: the index.

use super::pages_of;
use crate::access::Guest;
use crate::engine::lookup::Lookup;
use turnkv_pool::Found;
use turnkv_proto::{Error, wire};

/// Decodes a Lookup.
pub(crate) fn ask(raw: &wire::LookupRequest, guest: &Guest) -> Result<Lookup, Error> {
    let namespace = guest.namespace(&raw.namespace)?;
    let pages = pages_of(&raw.session, &raw.hashes)?;
    Ok(Lookup { namespace, pages, only_posts: raw.only_posts, only_here: raw.only_here })
}

/// Encodes its answer; `wants_posts`: as [`Engine::find_prefix`](crate::engine::Engine::find_prefix) said.
pub(crate) fn reply(found: Found, wants_posts: bool) -> wire::LookupReply {
    wire::LookupReply { present: found.present, dram: found.dram, wants_posts }
}
