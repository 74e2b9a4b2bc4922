//! `[tls]`: how TCP is protected. Owns: its keys, and the rule that TCP off the loopback is never plain by accident. Must not
//! know: what is in the files.

use super::error::ConfigError;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::PathBuf;
use turnkv_transfer::tls::ServerFiles;

/// `[tls]`
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TlsFile {
    /// The server's certificate, then those between it and its authority (PEM); read anew when it changes, as the other two.
    cert: Option<PathBuf>,
    /// The certificate's private key (PEM).
    key: Option<PathBuf>,
    /// The authorities whose client certificates are accepted (PEM, one or more).
    client_ca: Option<PathBuf>,
    /// Plain TCP off the loopback; default false.
    insecure: Option<bool>,
}

/// Checked `[tls]`.
#[derive(Debug, Clone)]
pub(crate) enum Tls {
    /// TCP, if it is on, is plain and on the loopback.
    Loopback,
    /// TCP is plain wherever it listens: its owner said so.
    Insecure,
    /// TCP is TLS.
    Files(ServerFiles),
}

impl Tls {
    /// Checks the keys, and that TCP at this address is protected or said not to be.
    pub(super) fn check(file: Option<TlsFile>, tcp: Option<SocketAddr>) -> Result<Tls, ConfigError> {
        let bad = |key, why: String| Err(ConfigError::Value { key, why });
        let file = file.unwrap_or_default();
        let insecure = file.insecure.unwrap_or(false);
        let tls = match (file.cert, file.key, file.client_ca) {
            (Some(cert), Some(key), Some(client_ca)) => {
                if insecure {
                    return bad(
                        "tls.insecure",
                        "true contradicts the certificate beside it: keep one of them".to_owned(),
                    );
                }
                Tls::Files(ServerFiles { cert, key, client_ca })
            }
            (None, None, None) if insecure => Tls::Insecure,
            (None, None, None) => Tls::Loopback,
            (cert, key, _) => {
                let missing = if cert.is_none() {
                    "tls.cert"
                } else if key.is_none() {
                    "tls.key"
                } else {
                    "tls.client_ca"
                };
                return bad(missing, "cert, key and client_ca are needed together".to_owned());
            }
        };
        match tcp {
            Some(address) if matches!(tls, Tls::Loopback) && !is_loopback(address) => bad(
                "tcp",
                format!(
                    "{address} is not the loopback: give [tls] a cert, a key and a client_ca, or say `insecure = true` there"
                ),
            ),
            _ => Ok(tls),
        }
    }

    /// The keys that say as much; none: nothing was said.
    pub(super) fn as_file(&self) -> Option<TlsFile> {
        match self {
            Tls::Loopback => None,
            Tls::Insecure => Some(TlsFile { insecure: Some(true), ..TlsFile::default() }),
            Tls::Files(ServerFiles { cert, key, client_ca }) => Some(TlsFile {
                cert: Some(cert.clone()),
                key: Some(key.clone()),
                client_ca: Some(client_ca.clone()),
                insecure: Some(false),
            }),
        }
    }

    /// Whether plain TCP is open off the loopback.
    pub(crate) fn is_exposed(&self, tcp: Option<SocketAddr>) -> bool {
        matches!(self, Tls::Insecure) && tcp.is_some_and(|address| !is_loopback(address))
    }
}

fn is_loopback(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}
