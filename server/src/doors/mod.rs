//! The doors: where requests enter. Owns: decoding a request, asking the engine, encoding its answer. Must not know: how it is
//! decided.
//!
//! - [`local`]: frames on the Unix socket, for processes of this host; [`frames`]: what doors of frames share
//! - [`framed`]: frames on TCP, for clients of other hosts
//! - [`grpc`]: gRPC on the Unix socket and on TCP; [`inline`]: its streams that carry pages
//! - [`http`]: /metrics and /healthz
//! - [`codec`]: between messages and what the engine is asked; [`calls`]: how long verbs take; [`needs`]: what each of them needs
//! - [`unreadable`]: what is said of a request that does not parse

pub(crate) mod calls;
pub(crate) mod codec;
pub(crate) mod framed;
mod frames;
pub(crate) mod grpc;
pub(crate) mod http;
mod inline;
pub(crate) mod local;
mod needs;
mod unreadable;
