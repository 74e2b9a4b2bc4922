//! The engine over byte streams: always there. Owns: one-sided reads and writes emulated with frames on a data
//! connection. Must not know: how a connection was accepted, who may open one, what TLS is configured with.
//!
//! - [`wire`]: the headers, as bytes, and what joins a data connection to its control connection
//! - [`stream`]: the byte stream: plain TCP or TLS
//! - `inbox`, `outbox`: headers and payloads coming and going, in part and in few calls
//! - [`initiator`]: the server's end; `initiating`: its thread; `pending`: what it has to do, and in what order
//! - [`domain`]: the client's memory; [`target`]: its end; `serving`: its thread; `life`: what the two share
//! - `pace`: how fast a rail must be; `waker`: waking a thread that waits for its connection
//!
//! One thread a connection at each end. It reads and writes without blocking and waits in `poll`, so a stalled
//! peer holds a thread and never a lock.
//!
//! No deadlock: a target sends nothing unasked, and the initiator begins no WRITE while it has not all
//! answers to its READs. So the two never both wait for the other to take a payload; answers without payload
//! are few and small enough for any socket's buffer.
//!
//! Every answer comes in the order of what is asked. A header that does not fit what was asked ends the
//! connection: nothing behind it could be trusted. A refused operation does not: its payload is read and
//! dropped.

pub mod domain;
mod inbox;
mod initiating;
pub mod initiator;
mod life;
mod outbox;
mod pace;
mod pending;
mod serving;
pub mod stream;
pub mod target;
mod waker;
pub mod wire;

pub use domain::FramedDomain;
pub use initiator::{FramedInitiator, UnstartedRail};
pub use stream::FramedStream;
pub use target::FramedTarget;
pub use wire::{Join, JoinAnswer, JoinError, RailSecret};

#[cfg(test)]
mod tests;
