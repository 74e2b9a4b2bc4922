//! The client's end: the authority of the server's certificate, and a certificate of its own. Owns: the checks of the files.
//! Must not know: addresses.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;

use super::certificate::certificate_facts;
use super::files::{TlsError, authorities, certificates, key, read};
use super::provider::{VERSIONS, provider};

/// A client's part of TLS, for addresses that begin with `tls://`. The files are read anew for every connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsConfig {
    /// The authorities that a server's certificate may be signed by; needed.
    pub ca: Option<PathBuf>,
    /// The client's certificate, then those between it and its authority.
    pub cert: Option<PathBuf>,
    /// The certificate's key.
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must have; none: the address's host.
    pub server_name: Option<String>,
}

impl TlsConfig {
    /// The same, with what it does not say from `TURNKV_TLS_CA`, `TURNKV_TLS_CERT`, `TURNKV_TLS_KEY` and `TURNKV_TLS_SERVER_NAME`.
    /// A certificate and its key come from one place, both.
    #[must_use]
    pub fn or_environment(self) -> TlsConfig {
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let (cert, key) = match (self.cert, self.key) {
            (None, None) => (path("TURNKV_TLS_CERT"), path("TURNKV_TLS_KEY")),
            own => own,
        };
        let named = || std::env::var("TURNKV_TLS_SERVER_NAME").ok().filter(|name| !name.is_empty());
        TlsConfig {
            ca: self.ca.or_else(|| path("TURNKV_TLS_CA")),
            cert,
            key,
            server_name: self.server_name.or_else(named),
        }
    }
}

/// Reads and checks a client's files, for connections that speak one of these protocols.
///
/// # Errors
/// Something of them cannot be used: the error says what and why.
pub fn client_config(files: &TlsConfig, protocols: &[&[u8]]) -> Result<Arc<ClientConfig>, TlsError> {
    let ca = files.ca.as_ref().ok_or(TlsError::NoAuthority)?;
    let roots = authorities(ca, &read("the authority of the server's certificate", ca)?)?;
    let unusable = |why: rustls::Error| TlsError::Unusable {
        what: "certificate of an authority",
        path: ca.clone(),
        why: why.to_string(),
    };
    let builder = rustls::ClientConfig::builder_with_provider(provider());
    let builder = builder.with_protocol_versions(VERSIONS).map_err(unusable)?.with_root_certificates(roots);
    let mut config = match (&files.cert, &files.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key_file)) => {
            let chain = certificates("certificate", cert, &read("the client's certificate", cert)?)?;
            check_own(cert, &chain)?;
            let key = key(key_file, &read("the certificate's private key", key_file)?)?;
            builder.with_client_auth_cert(chain, key).map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    TlsError::Mismatch { cert: cert.clone(), key: key_file.clone() }
                }
                error => {
                    let (what, why) = ("a certificate with its key", error.to_string());
                    TlsError::Unusable { what, path: cert.clone(), why }
                }
            })?
        }
        _ => return Err(TlsError::Half),
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

/// Checks what the client's certificate says of itself. Its time is the server's to judge: their clocks may differ.
fn check_own(path: &Path, chain: &[CertificateDer<'_>]) -> Result<(), TlsError> {
    let own = chain.first().map_or(&[][..], |own| own.as_ref());
    let unusable = |why: String| TlsError::Unusable { what: "a certificate", path: path.into(), why };
    let facts = certificate_facts(own).map_err(|fault| unusable(fault.to_string()))?;
    if !facts.is_for_clients {
        return Err(TlsError::Purpose { path: path.into(), end: "client", lacks: "clientAuth" });
    }
    Ok(())
}
