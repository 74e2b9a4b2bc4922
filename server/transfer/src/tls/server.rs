//! The server's end: a certificate with its key, and the authorities of its clients' certificates. Owns: the checks of a set of
//! files before it is used, and asking a certificate again once the set has changed. Must not know: when that is.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::ClientCertVerifier;
use rustls::{Error, ServerConfig};
use sha2::{Digest, Sha256};

use super::certificate::certificate_facts;
use super::files::{TlsError, certificates, key, read};
use super::provider::{VERSIONS, provider};
use super::trusted::TrustedClients;

/// Where a server's set is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// Its certificate, then those between it and its authority.
    pub cert: PathBuf,
    /// The certificate's key.
    pub key: PathBuf,
    /// The authorities of its clients' certificates.
    pub client_ca: PathBuf,
}

/// What the files held at one moment. It is not printed: there is a key in it.
pub struct ServerBytes {
    cert: Vec<u8>,
    key: Vec<u8>,
    client_ca: Vec<u8>,
}

/// A set that can be used.
pub struct ServerTls {
    /// For handshakes.
    pub config: Arc<ServerConfig>,
    /// The last second of the server's own certificate, in Unix time.
    pub not_after_s: i64,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ServerFiles {
    /// Reads them all.
    ///
    /// # Errors
    /// One cannot be read, or is too long.
    pub fn read(&self) -> Result<ServerBytes, TlsError> {
        Ok(ServerBytes {
            cert: read("the server's certificate", &self.cert)?,
            key: read("the certificate's private key", &self.key)?,
            client_ca: read("the authorities of client certificates", &self.client_ca)?,
        })
    }

    /// Checks what was read, for connections that speak one of these protocols.
    ///
    /// # Errors
    /// Something of it cannot be used, or not now: the error says what and why.
    pub fn load(
        &self,
        bytes: &ServerBytes,
        protocols: &[&[u8]],
        now: UnixTime,
    ) -> Result<ServerTls, TlsError> {
        let chain = certificates("certificate", &self.cert, &bytes.cert)?;
        let not_after_s = self.check_own(&chain, now)?;
        let key = key(&self.key, &bytes.key)?;
        let what = "certificate of an authority";
        let trusted = TrustedClients::new(certificates(what, &self.client_ca, &bytes.client_ca)?);
        let unusable = |why| TlsError::Unusable { what, path: self.client_ca.clone(), why };
        let verifier: Arc<dyn ClientCertVerifier> = Arc::new(trusted.map_err(unusable)?);
        let config =
            ServerConfig::builder_with_provider(provider()).with_protocol_versions(VERSIONS).and_then(
                |config| config.with_client_cert_verifier(Arc::clone(&verifier)).with_single_cert(chain, key),
            );
        let mut config = config.map_err(|error| match error {
            Error::InconsistentKeys(_) => {
                TlsError::Mismatch { cert: self.cert.clone(), key: self.key.clone() }
            }
            error => {
                let why = error.to_string();
                TlsError::Unusable { what: "a certificate with its key", path: self.cert.clone(), why }
            }
        })?;
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(ServerTls { config: Arc::new(config), not_after_s, verifier })
    }

    /// Checks what the server's certificate says of itself; its last second.
    fn check_own(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Result<i64, TlsError> {
        let path = || self.cert.clone();
        let unusable = |why: String| TlsError::Unusable { what: "a certificate", path: path(), why };
        let own = chain.first().map_or(&[][..], |own| own.as_ref());
        let facts = certificate_facts(own).map_err(|fault| unusable(fault.to_string()))?;
        let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        if facts.not_after_s < now_s {
            return Err(TlsError::Expired { path: path(), ago_s: now_s.abs_diff(facts.not_after_s) });
        }
        if facts.not_before_s > now_s {
            return Err(TlsError::TooEarly { path: path(), in_s: facts.not_before_s.abs_diff(now_s) });
        }
        if !facts.is_for_servers {
            return Err(TlsError::Purpose { path: path(), end: "server", lacks: "serverAuth" });
        }
        Ok(facts.not_after_s)
    }
}

impl ServerBytes {
    /// What tells them from others, and nothing of the key.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut all = Sha256::new();
        for part in [&self.cert, &self.key, &self.client_ca] {
            all.update((part.len() as u64).to_le_bytes());
            all.update(part);
        }
        all.finalize().into()
    }
}

impl ServerTls {
    /// Asks of the certificates that a client once showed whether they are accepted by this set, now.
    ///
    /// # Errors
    /// They are not; why.
    pub fn accepts(&self, shown: &[CertificateDer<'_>], now: UnixTime) -> Result<(), Error> {
        let (own, between) = shown.split_first().ok_or(Error::NoCertificatesPresented)?;
        self.verifier.verify_client_cert(own, between, now).map(drop)
    }
}
