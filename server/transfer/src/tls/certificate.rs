//! What a certificate says of its owner: names and time. Owns: reading these out of DER within bounds. Must not know: whether
//! anybody vouches for them; that is asked of the verifier first.

use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::limits::{TLS_NAME_BYTES_MAX, TLS_NAMES_MAX};

/// What is read out of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// Its URI names, at most [`TLS_NAMES_MAX`].
    pub uris: Vec<String>,
    /// The common name of its subject, cut; empty: it has none.
    pub name: String,
    /// Whether it may be a server's: its extended key usage has `serverAuth`, or there is none.
    pub is_for_servers: bool,
    /// Whether it may be a client's: the same with `clientAuth`.
    pub is_for_clients: bool,
    /// Valid from this second of Unix time on.
    pub not_before_s: i64,
    /// And until this one.
    pub not_after_s: i64,
}

/// Why a certificate says nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateFault {
    /// It is not one.
    #[error("it does not parse as a certificate")]
    Malformed,
    /// More names, or longer ones, than anybody needs.
    #[error("it has more than {TLS_NAMES_MAX} URI names, or one of more than {TLS_NAME_BYTES_MAX} bytes")]
    Names,
}

/// Reads a certificate.
///
/// # Errors
/// It does not parse, or has too many names.
pub fn certificate_facts(der: &[u8]) -> Result<CertificateFacts, CertificateFault> {
    let (_, certificate) = X509Certificate::from_der(der).map_err(|_| CertificateFault::Malformed)?;
    let names = certificate.subject_alternative_name().map_err(|_| CertificateFault::Malformed)?;
    let mut uris = Vec::new();
    for name in names.iter().flat_map(|names| &names.value.general_names) {
        if let GeneralName::URI(uri) = name {
            if uris.len() == TLS_NAMES_MAX || uri.len() > TLS_NAME_BYTES_MAX {
                return Err(CertificateFault::Names);
            }
            uris.push((*uri).to_owned());
        }
    }
    let common = certificate.subject().iter_common_name().next();
    let name = common.and_then(|name| name.as_str().ok()).unwrap_or_default();
    let name = name[..name.floor_char_boundary(TLS_NAME_BYTES_MAX)].to_owned();
    let usage = certificate.extended_key_usage().map_err(|_| CertificateFault::Malformed)?;
    // Who verifies it does not take `anyExtendedKeyUsage` for either.
    let is_for_servers = usage.as_ref().is_none_or(|usage| usage.value.server_auth);
    let is_for_clients = usage.as_ref().is_none_or(|usage| usage.value.client_auth);
    let validity = certificate.validity();
    let (not_before_s, not_after_s) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    Ok(CertificateFacts { uris, name, is_for_servers, is_for_clients, not_before_s, not_after_s })
}
