//! Eviction: who makes room, who goes last, who goes bit by bit. Owns: the order in which pages go.
//! Must not know: who needs the room.
//!
//! - `search`: a slot for a page, an entry for it, a slab for a namespace
//! - `policy`: the orders of eviction
//! - `deferred_victims`: pages that go when nothing else can; `protection`: pages that pins and priorities hold
//! - `decline_newcomer`: pages that are not taken, because what would make way for them is worth more
//! - `condemn`: pages that go with all that hangs on them; `unfinished`: pages of which some shards never come
//! - `left`: pages that sessions had

pub(crate) mod condemn;
pub(crate) mod decline_newcomer;
pub(crate) mod deferred_victims;
pub(crate) mod left;
pub(crate) mod policy;
pub(crate) mod protection;
pub(crate) mod search;
pub(crate) mod unfinished;
