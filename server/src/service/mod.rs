//! The gRPC door. Owns: decoding a request, asking the engine, encoding its answer. Must not know: how it is decided.
//!
//! - [`pool`], [`inline`], [`sessions`], [`admin`]: the services' verbs
//! - [`serve`]: listeners and the life of the server

pub(crate) mod admin;
mod inline;
pub(crate) mod pool;
pub(crate) mod serve;
pub(crate) mod sessions;
