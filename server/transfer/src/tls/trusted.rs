//! Which client certificates a server accepts. Owns: that only an authority vouches for others. Must not know: files.
//!
//! A bundle may name a client's own certificate in place of an authority. To the verifier below anything in its store is an
//! authority, whatever it says of itself: the owner of that certificate could sign others for himself, with any role. So such
//! certificates have a store of their own, and count only when they are shown themselves.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::certificate::certificate_facts;
use super::provider::provider;

/// Asks whether anybody in a bundle vouches for a client.
#[derive(Debug)]
pub(super) struct TrustedClients {
    /// Vouch for others.
    authorities: Option<Arc<dyn ClientCertVerifier>>,
    /// Vouch for themselves.
    themselves: Option<Arc<dyn ClientCertVerifier>>,
    /// Those.
    own: Vec<CertificateDer<'static>>,
    hints: Vec<DistinguishedName>,
}

impl TrustedClients {
    /// Those that the certificates of a bundle vouch for.
    ///
    /// # Errors
    /// One of them cannot vouch for anything.
    pub(super) fn new(bundle: Vec<CertificateDer<'static>>) -> Result<TrustedClients, String> {
        let (authorities, own): (Vec<_>, Vec<_>) = bundle.into_iter().partition(|one| is_authority(one));
        let (authorities, themselves) = (verifier(&authorities)?, verifier(&own)?);
        let both = authorities.iter().chain(&themselves);
        let hints = both.flat_map(|of| of.root_hint_subjects()).cloned().collect();
        Ok(TrustedClients { authorities, themselves, own, hints })
    }

    fn any(&self) -> Result<&Arc<dyn ClientCertVerifier>, Error> {
        self.authorities.as_ref().or(self.themselves.as_ref()).ok_or(Error::NoCertificatesPresented)
    }
}

impl ClientCertVerifier for TrustedClients {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let by = if self.own.contains(shown) { &self.themselves } else { &self.authorities };
        let by = by.as_ref().ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let verified = by.verify_client_cert(shown, between, now)?;
        // What cannot be read is refused while its owner can still be told so: after the handshake there are no more words for that.
        certificate_facts(shown).map_err(|fault| {
            Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(fault))))
        })?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any()?.verify_tls12_signature(message, shown, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.any()?.verify_tls13_signature(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.any().map(|of| of.supported_verify_schemes()).unwrap_or_default()
    }
}

/// Whether it says that it may sign others.
fn is_authority(certificate: &CertificateDer<'_>) -> bool {
    let Ok((_, read)) = X509Certificate::from_der(certificate) else { return false };
    let may_sign = match read.key_usage() {
        Ok(usage) => usage.is_none_or(|usage| usage.value.key_cert_sign()),
        Err(_) => false,
    };
    read.is_ca() && may_sign
}

/// Takes what these vouch for; none if there are none.
fn verifier(trusted: &[CertificateDer<'static>]) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
    if trusted.is_empty() {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    for one in trusted {
        roots.add(one.clone()).map_err(|error| error.to_string())?;
    }
    let built = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider()).build();
    built.map(Some).map_err(|error| error.to_string())
}
