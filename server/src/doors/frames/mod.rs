//! Requests in frames, whatever stream they come over. Owns: what the doors of frames share. Must not know: which verbs a door
//! adds, where it listens.
//!
//! - [`connection`]: one connection: receive a frame, do its verb, answer
//! - [`farewell`]: what a peer is told that is not served any more
//! - [`large`]: memory for large frames

pub(in crate::doors) mod connection;
pub(in crate::doors) mod farewell;
pub(in crate::doors) mod large;
