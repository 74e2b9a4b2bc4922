//! Why a handshake failed. Owns: a few faults with names, for counters, and sentences for people at either end. Must not know:
//! what follows from it.

use std::error::Error as StdError;
use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// Why a handshake failed, as the end that found it sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// What came is not TLS.
    NotTls,
    /// The peer speaks no version, or nothing else, that is spoken here.
    Version,
    /// No certificate was shown.
    NoCertificate,
    /// No authority that is known here signed the certificate.
    Authority,
    /// The certificate's time is over, or has not come.
    Time,
    /// The certificate is not for the name that was asked for.
    Name,
    /// The certificate cannot be used for another reason.
    Certificate,
    /// The peer refused: most often the certificate that it was shown.
    RefusedByPeer,
    /// What came is TLS, and wrong.
    Malformed,
}

impl Fault {
    /// Every one.
    pub const ALL: [Fault; 9] = [
        Fault::NotTls,
        Fault::Version,
        Fault::NoCertificate,
        Fault::Authority,
        Fault::Time,
        Fault::Name,
        Fault::Certificate,
        Fault::RefusedByPeer,
        Fault::Malformed,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fault::NotTls => "not_tls",
            Fault::Version => "version",
            Fault::NoCertificate => "no_certificate",
            Fault::Authority => "authority",
            Fault::Time => "time",
            Fault::Name => "name",
            Fault::Certificate => "certificate",
            Fault::RefusedByPeer => "refused_by_peer",
            Fault::Malformed => "malformed",
        }
    }
}

/// Which fault an error is.
#[must_use]
pub fn fault_of(error: &Error) -> Fault {
    match error {
        Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => Fault::NotTls,
        Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Fault::Version,
        Error::NoCertificatesPresented => Fault::NoCertificate,
        Error::InvalidCertificate(fault) => match fault {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Fault::Authority,
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => Fault::Time,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Fault::Name
            }
            _ => Fault::Certificate,
        },
        Error::AlertReceived(_) => Fault::RefusedByPeer,
        _ => Fault::Malformed,
    }
}

/// What a server's log says of a handshake that failed: rustls prints what `trusted` finds as code.
#[must_use]
pub fn server_words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(CertificateError::Other(found)) => {
            format!("the peer's certificate: {}", found.0)
        }
        error => error.to_string(),
    }
}

/// What a client is told of a connection that TLS did not let it make, or that its server refused.
#[must_use]
pub fn client_words(error: &Error) -> String {
    match fault_of(error) {
        Fault::NotTls => "what answers there does not speak TLS: is it http://?".to_owned(),
        Fault::Authority => {
            "the server's certificate is not signed by an authority in the tls_ca file: is it the right file?"
                .to_owned()
        }
        Fault::Time => format!("the server's certificate is out of its time: {error}"),
        Fault::Name => {
            format!("the server's certificate is for another name: name it by tls_server_name ({error})")
        }
        Fault::RefusedByPeer => refused(error),
        _ => format!("TLS: {error}"),
    }
}

/// What a server says of the certificate that it was shown, in its alert.
fn refused(error: &Error) -> String {
    let Error::AlertReceived(alert) = error else { return format!("TLS: {error}") };
    let why = match alert {
        AlertDescription::CertificateRequired => {
            "the server wants a certificate and was shown none: name tls_cert and tls_key"
        }
        AlertDescription::UnknownCA => {
            "the server refuses this client's certificate: no authority that it knows signed it"
        }
        AlertDescription::CertificateExpired => {
            "the server refuses this client's certificate: it is out of its time"
        }
        AlertDescription::CertificateRevoked => "the server refuses this client's certificate: it is revoked",
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::DecryptError
        | AlertDescription::AccessDenied => "the server refuses this client's certificate",
        AlertDescription::InternalError => {
            "the server has no room for another connection, or a fault of its own: try later, its metrics and log say which"
        }
        AlertDescription::ProtocolVersion => "the server speaks another version of TLS",
        AlertDescription::NoApplicationProtocol => "the server does not speak this protocol over TLS",
        other => return format!("the server ended TLS: {other:?}"),
    };
    why.to_owned()
}

/// Whether a server refused because it speaks none of the protocols that it was offered.
#[must_use]
pub fn speaks_others(error: &io::Error) -> bool {
    let refused = Error::AlertReceived(AlertDescription::NoApplicationProtocol);
    tls_cause(error).is_some_and(|cause| *cause == refused || *cause == Error::NoApplicationProtocol)
}

/// The fault of TLS among the causes of an error, if it is one.
#[must_use]
pub fn tls_cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(tls) = error.downcast_ref::<Error>() {
            return Some(tls);
        }
        // What an io error was made of is not among its sources.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        if let Some(tls) = inner.and_then(|inner| tls_cause(inner)) {
            return Some(tls);
        }
        cause = error.source();
    }
    None
}
