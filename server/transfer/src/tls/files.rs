//! The files of a certificate, a key, a list of authorities. Owns: reading them within a bound, and what is said of those that
//! cannot be used. Must not know: which end uses them.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::limits::TLS_FILE_BYTES_MAX;

/// Why files are of no use.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// One cannot be read.
    #[error("cannot read {path}, which is to hold {what}")]
    Read {
        /// What it is for.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// One is too long for what it is for.
    #[error("{path} is longer than {TLS_FILE_BYTES_MAX} bytes: it is to hold {what}")]
    Long {
        /// What it is for.
        what: &'static str,
        /// Which.
        path: PathBuf,
    },
    /// One holds nothing of what it is for.
    #[error("{path} holds no {what} in PEM form")]
    Empty {
        /// What it is for.
        what: &'static str,
        /// Which.
        path: PathBuf,
    },
    /// One holds what does not parse, or cannot be used.
    #[error("{path} holds {what} that cannot be used: {why}")]
    Unusable {
        /// What it is for.
        what: &'static str,
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Certificate and key do not belong together.
    #[error("the key in {key} is not that of the certificate in {cert}")]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's.
        key: PathBuf,
    },
    /// The certificate's time is over.
    #[error("the certificate in {path} expired {ago_s} s ago: have a new one signed")]
    Expired {
        /// Its file.
        path: PathBuf,
        /// For so long.
        ago_s: u64,
    },
    /// The certificate's time has not come.
    #[error("the certificate in {path} is not valid for another {in_s} s: correct the clock, or wait")]
    TooEarly {
        /// Its file.
        path: PathBuf,
        /// For so long.
        in_s: u64,
    },
    /// The certificate says that it is for something else.
    #[error(
        "the certificate in {path} is not for a {end}: its extended key usage lacks {lacks}: have one signed with it, or without extended key usages"
    )]
    Purpose {
        /// Its file.
        path: PathBuf,
        /// What it is used as.
        end: &'static str,
        /// What it would have to say.
        lacks: &'static str,
    },
    /// A client that knows no authority can trust no server.
    #[error("name the file of the authority that signed the server's certificate (tls_ca, TURNKV_TLS_CA)")]
    NoAuthority,
    /// A certificate without a key, or the other way round.
    #[error(
        "a certificate and its key are needed together (tls_cert and tls_key, TURNKV_TLS_CERT and TURNKV_TLS_KEY)"
    )]
    Half,
}

/// All of a file.
pub(super) fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read { what, path: path.into(), source };
    let mut bytes = Vec::new();
    let most = TLS_FILE_BYTES_MAX as u64 + 1;
    File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() > TLS_FILE_BYTES_MAX {
        return Err(TlsError::Long { what, path: path.into() });
    }
    Ok(bytes)
}

/// The certificates in a file, at least one.
pub(super) fn certificates(
    what: &'static str,
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::Empty { what, path: path.into() }),
        Ok(found) => Ok(found),
        Err(error) => Err(TlsError::Unusable { what, path: path.into(), why: error.to_string() }),
    }
}

/// The private key in a file. What is wrong with it is never said by its bytes.
pub(super) fn key(path: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(bytes)
        .map_err(|_| TlsError::Empty { what: "private key", path: path.into() })
}

/// The authorities in a file, at least one.
pub(super) fn authorities(path: &Path, bytes: &[u8]) -> Result<RootCertStore, TlsError> {
    let what = "certificate of an authority";
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, path, bytes)? {
        let why = |error: rustls::Error| error.to_string();
        let unusable = |why| TlsError::Unusable { what, path: path.into(), why };
        roots.add(certificate).map_err(why).map_err(unusable)?;
    }
    Ok(roots)
}
