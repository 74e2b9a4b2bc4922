//! Few kinds of error, each with what to do about it.
//! Owns: [`Error`], its advice, and its two wire forms (gRPC status with details, local-socket failure).
//! Must not know: who raises it.

use crate::ids::IdError;
use crate::layout::LayoutError;

#[cfg(feature = "wire")]
mod status;
#[cfg(feature = "wire")]
pub use status::ERROR_DOMAIN;
#[cfg(all(test, feature = "wire"))]
mod tests;

/// What went wrong, by what the caller should do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The request makes no sense: fix it.
    Invalid,
    /// The server does not know the namespace (it may have restarted): open it again.
    NamespaceUnknown,
    /// The lease ended, was never given, or is another client's: begin again.
    LeaseUnknown,
    /// No room now.
    Busy {
        /// When a retry makes sense; 0: it does not.
        retry_after_ms: u32,
    },
    /// The server is leaving.
    Draining,
    /// The server does not know the session: begin it again.
    SessionUnknown,
    /// A named limit is reached.
    Limit,
    /// The server failed.
    Internal,
    /// The caller's role or tenants do not allow it: have an operator grant it.
    PermissionDenied,
    /// Another pool would have to answer, and does not, or what came was damaged: ask again later, or go on without.
    Unavailable,
}

/// An error as it travels: its kind and one sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What to do.
    pub kind: ErrorKind,
    /// What happened.
    pub message: String,
}

impl ErrorKind {
    /// The machine-readable name, the same as the wire's without its prefix.
    pub fn reason(self) -> &'static str {
        match self {
            ErrorKind::Invalid => "INVALID",
            ErrorKind::NamespaceUnknown => "NAMESPACE_UNKNOWN",
            ErrorKind::LeaseUnknown => "LEASE_UNKNOWN",
            ErrorKind::Busy { .. } => "BUSY",
            ErrorKind::Draining => "DRAINING",
            ErrorKind::SessionUnknown => "SESSION_UNKNOWN",
            ErrorKind::Limit => "LIMIT",
            ErrorKind::Internal => "INTERNAL",
            ErrorKind::PermissionDenied => "PERMISSION_DENIED",
            ErrorKind::Unavailable => "UNAVAILABLE",
        }
    }

    /// What the caller should do.
    pub fn advice(self) -> &'static str {
        match self {
            ErrorKind::Invalid => "mend what the message names; until then the same request will fail again",
            ErrorKind::NamespaceUnknown => "open the namespace again, then retry once",
            ErrorKind::LeaseUnknown => "begin the offload or reload again",
            ErrorKind::Busy { .. } => "retry after the given time, or recompute",
            ErrorKind::Draining => "recompute; the server is leaving",
            ErrorKind::SessionUnknown => "begin the session again",
            ErrorKind::Limit => "stay below the named limit, or raise it in the server's configuration",
            ErrorKind::Internal => "recompute, and report the message with the server's log",
            ErrorKind::PermissionDenied => {
                "ask an operator for a certificate, or an entry in the server's [access], that grants it"
            }
            ErrorKind::Unavailable => {
                "go on without it, or ask again later: what it needs does not answer, or what came was damaged"
            }
        }
    }
}

impl Error {
    /// An error of `kind`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    /// A request that makes no sense.
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    /// No room now; a retry makes sense after `retry_after_ms`.
    pub fn busy(retry_after_ms: u32, message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Busy { retry_after_ms }, message)
    }
}

impl From<IdError> for Error {
    fn from(error: IdError) -> Error {
        Error::invalid(error.to_string())
    }
}

impl From<LayoutError> for Error {
    fn from(error: LayoutError) -> Error {
        Error::invalid(error.to_string())
    }
}
