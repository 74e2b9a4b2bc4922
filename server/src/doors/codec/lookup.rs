//! Lookup on the wire. Owns: its two messages. Must not know: the index.

use super::pages_of;
use crate::access::Guest;
use crate::engine::lookup::Lookup;
use turnkv_pool::Found;
use turnkv_proto::{Error, wire};

/// Decodes a Lookup.
pub(crate) fn ask(raw: &wire::LookupRequest, guest: &Guest) -> Result<Lookup, Error> {
    let namespace = guest.namespace(&raw.namespace)?;
    Ok(Lookup { namespace, pages: pages_of(&raw.session, &raw.hashes)? })
}

/// Encodes its answer.
pub(crate) fn reply(found: Found) -> wire::LookupReply {
    wire::LookupReply { present: found.present, dram: found.dram }
}
