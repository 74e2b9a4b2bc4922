//! Pages to and from clients on other hosts: the server starts every transfer, over the client's rails. Owns: the verbs' rooms.
//! Must not know: messages, sockets, which fabric a rail is of.
//!
//! ```text
//! begin --slots--> transfers over the client's rails --all landed or failed--> checksum --> commit / release --> answer
//! ```
//! Quarantine: a call that has posted transfers does not end before every one of them has completed, and a rail's transfers
//! complete only when nothing touches their slots any more. So a slot is given back by a completion, or by the end of a rail,
//! never by time: a write lease is given more time while its transfers go on, a read lease is a held one.
//!
//! - [`come`]: Hello and the end of connections; [`offload`], [`reload`]: the verbs

pub(crate) mod come;
pub(crate) mod offload;
pub(crate) mod reload;

#[cfg(test)]
mod tests;
