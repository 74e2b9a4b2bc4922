//! Pin and Unpin on the wire. Owns: their messages. Must not know: budgets.

use super::pages_of;
use crate::access::Guest;
use crate::engine::pin::{Pin, PinHere, Unpin};
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
    if raw.copies > 2 {
        return Err(Error::invalid("a pin has one copy, or two: copies is 0, 1 or 2"));
    }
    Ok(Pin { namespace, prefix, pages, ttl_ms: raw.ttl_ms, second: raw.copies == 2 })
}

/// Encodes its answer, and where its second copy is, or why there is none; none: it was to have one copy.
pub(crate) fn pinned(here: PinHere, second: Option<Result<String, String>>) -> wire::PinReply {
    let Pinned { pages, pin, ends_in_ms } = here.pinned;
    let (second_at, no_second) = match second {
        Some(Ok(name)) => (name, String::new()),
        Some(Err(why)) => (String::new(), why),
        None => Default::default(),
    };
    wire::PinReply { pages, pin: pin.0.to_vec().into(), ends_in_ms, second_at, no_second }
}

/// Decodes an Unpin.
pub(crate) fn unpin(raw: &wire::UnpinRequest, guest: &Guest) -> Result<Unpin, Error> {
    let namespace = guest.namespace(&raw.namespace)?;
    let pin = BlockHash::parse_optional(&raw.pin)?;
    let pin = pin.ok_or_else(|| Error::invalid("Unpin names the page that Pin answered with"))?;
    Ok(Unpin { namespace, pin })
}
