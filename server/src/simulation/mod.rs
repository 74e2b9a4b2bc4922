//! The pool server in one process, without a thread or a socket of its own, in simulated time: what the seeded fault
//! simulation drives. Owns: what a simulator may do with an engine. Must not know: which faults it makes.
//!
//! - `time`: the clock that the simulator moves
//! - `server`: one life of a server, and its verbs
//! - `shape`: how large it is

mod server;
mod shape;
mod time;

pub use server::{Reload, Server};
pub use shape::Shape;
pub use time::Time;
