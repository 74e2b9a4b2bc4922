//! Pin and Unpin on the wire. Owns: their messages. Must not know: budgets.

use super::pages_of;
use crate::access::Guest;
use crate::engine::pin::{Pin, Unpin};
use turnkv_pool::Pinned;
use turnkv_proto::{BlockHash, Error, wire};

/// Decodes a Pin.
pub(crate) fn pin(raw: &wire::PinRequest, guest: &Guest) -> Result<Pin, Error> {
    let namespace = guest.namespace(&raw.namespace)?;
    let prefix = pages_of(&raw.session, &raw.hashes)?;
    if raw.session.is_empty() == raw.hashes.is_empty() {
        return Err(Error::invalid("Pin names either the pages of a prefix or a session"));
    }
    let pages = (raw.pages > 0).then_some(raw.pages as usize);
    Ok(Pin { namespace, prefix, pages, ttl_ms: raw.ttl_ms })
}

/// Encodes its answer.
pub(crate) fn pinned(pinned: Pinned) -> wire::PinReply {
    let Pinned { pages, pin, ends_in_ms } = pinned;
    wire::PinReply { pages, pin: pin.0.to_vec().into(), ends_in_ms }
}

/// Decodes an Unpin.
pub(crate) fn unpin(raw: &wire::UnpinRequest, guest: &Guest) -> Result<Unpin, Error> {
    let namespace = guest.namespace(&raw.namespace)?;
    let pin = BlockHash::parse_optional(&raw.pin)?;
    let pin = pin.ok_or_else(|| Error::invalid("Unpin names the page that Pin answered with"))?;
    Ok(Unpin { namespace, pin })
}
