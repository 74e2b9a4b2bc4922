//! Eviction: the order in which pages go. Owns: the policies, and what is known of pages that go, or go last, beside
//! a policy's order. Must not know: who needs the room, how a page goes.
//!
//! - `policy`: the orders of eviction
//! - `deferred`: pages that go when nothing else can; `protections`: pages that pins and priorities hold
//! - `condemned`: pages that go with all that hangs on them; `unfinished_pages`: pages of which some shards
//!   are missing
//! - `left_branches`: pages that sessions had
//! - `turns`: whose turn it is to give up pages

pub(crate) mod condemned;
pub(crate) mod deferred;
pub(crate) mod left_branches;
pub(crate) mod policy;
pub(crate) mod protections;
pub(crate) mod turns;
pub(crate) mod unfinished_pages;
