//! The framed engine passes the suite, over TCP, and survives peers that do not keep to the protocol.

mod bad_client;
mod bad_server;
mod conformance;
mod control;
pub(super) mod pair;
mod records;
mod slow;
mod tls;
