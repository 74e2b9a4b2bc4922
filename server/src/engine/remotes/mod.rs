//! Clients on other hosts, and what is under way to them. Owns: their rails, and the transfers from their posting to their
//! completion. Must not know: the engine, its verbs.
//!
//! - [`clients`]: who is connected so; [`open_rail`]: how rails come to be; [`secrets`]: how connections become such; [`rails`]: those of one client
//! - [`nics`]: the NICs that rails may be over; [`lent`]: memory that a call names
//! - [`inflight`]: what one client, one peer, and all may have in flight
//! - [`flights`]: transfers under way, from their posting to their completion; [`transfers`]: those of one call
//! - [`series`]: what is counted and shown

pub(crate) mod clients;
mod flights;
mod inflight;
pub(crate) mod lent;
pub(crate) mod nics;
pub(crate) mod open_rail;
mod rails;
mod secrets;
mod series;
pub(super) mod transfers;
