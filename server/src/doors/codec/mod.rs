//! Between the wire's messages and what the engine is asked and answers. Owns: the checks of what a message says by itself (ids,
//! packed lists, lengths), and every mapping of one side's names to the other's. Must not know: what is so in the pool, which
//! door a message came through.
//!
//! Every verb of every door is one line of four steps: decode, ask, act, reply.
//! ```text
//! codec::lookup::reply(engine.lookup(&codec::lookup::ask(&message)?)?)
//! ```
//!
//! One file a verb, or a group of like ones:
//! - [`namespace`], [`lookup`], [`offload`], [`reload`]; [`held`]: slots that a client maps; [`remote`]: over a network
//! - [`sessions`], [`pin`], [`prefetch`], [`route`]
//! - [`stats`], [`advice`], [`record`]; [`snapshots`]

pub(crate) mod advice;
pub(crate) mod held;
pub(crate) mod lookup;
pub(crate) mod namespace;
pub(crate) mod offload;
pub(crate) mod pin;
pub(crate) mod prefetch;
pub(crate) mod record;
pub(crate) mod reload;
pub(crate) mod remote;
pub(crate) mod route;
pub(crate) mod sessions;
pub(crate) mod snapshots;
pub(crate) mod stats;

use crate::engine::lookup::PagesOf;
use turnkv_proto::limits::HASHES_PER_CALL_MAX;
use turnkv_proto::{Error, SessionId, Shards, unpack_hashes};

/// A session, where a message names one.
fn optional_session(name: &str) -> Result<Option<SessionId>, Error> {
    if name.is_empty() { Ok(None) } else { Ok(Some(SessionId::parse(name)?)) }
}

/// The pages of a session, or, where none is named, these.
fn pages_of(session: &str, hashes: &[u8]) -> Result<PagesOf, Error> {
    Ok(match optional_session(session)? {
        Some(session) => PagesOf::Session(session),
        None => PagesOf::Hashes(unpack_hashes(hashes)?),
    })
}

/// Which shards of so many pages a call moves; whether the namespace has so many is the pool's to say.
fn shards(first: u32, count: u32, pages: usize) -> Result<Shards, Error> {
    let shards = Shards::new(first, count)
        .ok_or_else(|| Error::invalid(format!("{count} shards from shard {first} on are out of range")))?;
    if shards.positions(pages) > HASHES_PER_CALL_MAX {
        let text = format!(
            "{} shards of {pages} pages are too many for one call, which moves at most {HASHES_PER_CALL_MAX} shards: split it",
            shards.count()
        );
        return Err(Error::invalid(text));
    }
    Ok(shards)
}

/// A shard's number, likewise.
fn shard(number: u32) -> Result<u16, Error> {
    u16::try_from(number).map_err(|_| Error::invalid(format!("shard {number} is out of range")))
}

/// Positions, ascending, each once.
fn ascending(mut positions: Vec<u32>) -> Vec<u32> {
    positions.sort_unstable();
    positions.dedup();
    positions
}

#[cfg(test)]
mod tests;
