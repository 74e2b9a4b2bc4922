//! The gRPC door. Owns: decoding a request, asking the engine, encoding its answer. Must not know: how it is decided.
//!
//! - [`pool`], [`inline`], [`sessions`], [`admin`]: the services' verbs
//! - [`grpc`]: the services put together, on their listeners
//! - [`requests`], [`budget`]: what every request passes, and what it may take
//! - [`answers`]: the same of answers
//! - [`serve`]: the life of the server; [`caretaker`]: what it looks after meanwhile

pub(crate) mod admin;
mod answers;
mod budget;
mod caretaker;
mod grpc;
mod inline;
pub(crate) mod pool;
mod requests;
pub(crate) mod serve;
pub(crate) mod sessions;
