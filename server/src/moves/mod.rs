//! Sessions of this pool that other members take over, because this host is to be emptied. Owns: which of them goes when, and whom it
//! is offered to. Must not know: how pages travel (the member that takes a session pulls it), why the host is to be empty.
//!
//! ```text
//!   engine.moves --asked--> mover --the most valuable first--> a member takes it: pulls it, becomes its home
//!                             \--no room, no answer--> the next in rank --none is left--> it stays, and that is told
//! ```
//! - [`mover`]: passes over all sessions; [`offer`]: one session, member by member; [`pace`]: bytes a
//!   second; [`counts`]: what is counted

mod counts;
mod mover;
mod offer;
mod pace;

pub(crate) use mover::Mover;
