//! TLS for what crosses a network: certificates from files, as one provider's configurations for both ends, and words for what
//! goes wrong. Owns: versions (1.3 only), the checks of a set of files, what a certificate says of its owner. Must not know:
//! who may do what.
//!
//! - [`files`]: reading them, within a bound
//! - [`server`]: the server's end; [`client`]: the client's
//! - `provider`: whose cryptography it is; `landing`: decrypting into the memory that a reader offers
//! - `trusted`: whose client certificates are accepted
//! - [`dial`]: a client's connections
//! - [`certificate`]: what one says; [`words`]: why a handshake failed, for people
//!
//! Sessions are never resumed: a resumed one would not be asked for its certificate again.

pub mod certificate;
pub mod client;
pub mod dial;
pub mod files;
pub mod server;
pub mod words;

mod landing;
mod provider;
#[cfg(test)]
mod tests;
mod trusted;

pub use certificate::{CertificateFacts, certificate_facts};
pub use client::{TlsConfig, client_config};
pub use dial::{Dial, Dialed};
pub use files::TlsError;
pub(crate) use landing::land;
pub use provider::provider;
pub use server::{ServerBytes, ServerFiles, ServerTls};
pub use words::{Fault, client_words, fault_of, server_words, speaks_others, tls_cause};

/// What ALPN calls HTTP/2, and so gRPC.
pub const ALPN_HTTP2: &[u8] = b"h2";
/// What ALPN calls frames.
pub const ALPN_FRAMES: &[u8] = b"turnkv/1";
