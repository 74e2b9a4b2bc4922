//! TLS at the TCP port. Owns: the server's set of files while it runs, handshakes, and that a connection ends once its certificate
//! is not accepted any more. Must not know: doors, what is spoken under it.
//!
//! - [`credentials`]: the set in force, and taking over a changed one; [`certified`]: the connections that showed a certificate
//! - [`handshake`]: from a socket to a stream with a caller; [`secured`]: such a stream, or a plain one
//! - [`first`]: what the first bytes of a connection say; [`counters`]: what is counted and shown

mod certified;
mod counters;
mod credentials;
pub(crate) mod first;
mod handshake;
mod secured;

pub(crate) use certified::Certified;
pub(crate) use counters::{TlsCounters, TlsRefusal};
pub(crate) use credentials::Credentials;
#[cfg(test)]
pub(crate) use credentials::tests::trial;
pub(crate) use handshake::{Protocol, Shaken, handshake};
pub(crate) use secured::TcpWire;
