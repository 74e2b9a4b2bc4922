//! The pool of local connections: one operation at a time each, never out of step with the server.
//! Owns: its map. Must not know: pages, plans.
//!
//! ```text
//!            acquire                       reply complete, lease ended
//!   idle ------------->  lent  ------------------------------------------------->  idle
//!                          |  dropped with an answer on its way
//!                          +------> settling (a task reads the answer and ends its lease) ------>  idle
//!                          |  broken, or the answer never comes
//!                          +------> closed
//! ```
//!
//! - `connection`: a connection, the server at its other end; `talk`: messages as frames
//! - `place`: where a server listens for frames; `pool`: [`LocalPool`], the connections at rest there; `lent`: one of them while an operation has it
//! - `given_up`: telling a server what nothing else will be asked of any more
//! - `mapped_slabs`, `attach`: the server's slabs, mapped here; `held`, `hold`: leases of pages that are
//!   mapped
//! - `read_grant`: a read lease that outlives its operation
//! - `writes`: into which servers' slots this process writes

mod attach;
mod connection;
mod given_up;
mod held;
mod hold;
mod lent;
mod mapped_slabs;
mod place;
mod pool;
mod read_grant;
mod talk;
mod writes;

pub(crate) use attach::SlotOf;
pub(crate) use connection::{ConnectError, Server};
pub(crate) use held::HeldSlots;
pub(crate) use hold::{Holding, WillMap};
pub(crate) use lent::Lent;
pub(crate) use place::{Place, Port};
pub(crate) use pool::LocalPool;
pub(crate) use read_grant::ReadGrant;

#[cfg(test)]
pub(crate) mod tests;
