//! What can go wrong for a caller. Every kind means "recompute, go on"; the kinds say whether it will pass.
//! Owns: [`Error`], and how faults of the wire become it. Must not know: what was being done.

use std::io;
use turnkv_proto as proto;
use turnkv_transfer::device::{DeviceError, DeviceErrorKind};
use turnkv_transfer::tls::{client_words, tls_cause};
use turnkv_transfer::{Claimed, DamagedFrame, PlanError};

/// What a call of this crate gives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call failed, by what its caller can expect next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The call makes no sense: the same one will fail again.
    Invalid,
    /// Nobody is there, or the connection broke.
    Unavailable,
    /// No answer by the deadline.
    Deadline,
    /// The pool was sick a moment ago: nothing was sent.
    BreakerOpen,
    /// No room now, another pool that has to answer does not, or pages were damaged on their way.
    Busy {
        /// When a retry makes sense; 0: it does not.
        retry_after_ms: u32,
    },
    /// The server is leaving.
    Draining,
    /// The server does not know the namespace, even after it was opened again.
    NamespaceUnknown,
    /// The server does not know the session: begin a turn of it.
    SessionUnknown,
    /// The lease ended before the call was done.
    LeaseExpired,
    /// A named limit of the server is reached.
    Limit,
    /// The GPU, or what stands for it, refused or broke: go on without it. The pool is well.
    Device,
    /// The server failed, or does not speak this protocol.
    Internal,
    /// This caller's role or tenants do not allow it: an operator grants it, or the same call fails again.
    PermissionDenied,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What to expect.
    pub kind: ErrorKind,
    /// What happened, in one sentence.
    pub message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn unavailable(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Unavailable, message)
    }

    pub(crate) fn deadline() -> Error {
        Error::new(ErrorKind::Deadline, "no answer by the deadline")
    }

    /// The peer said something that no server of this protocol says.
    pub(crate) fn protocol(what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Internal, format!("the server broke the protocol: {what}"))
    }

    pub(crate) fn from_io(doing: &str, error: &io::Error) -> Error {
        match error.kind() {
            io::ErrorKind::TimedOut => Error::deadline(),
            // Not the peer's mistake: the next connection does better.
            io::ErrorKind::InvalidData if DamagedFrame::is_why(error) => {
                Error::unavailable(format!("{doing}: {error}"))
            }
            // Under TLS most often the server's refusal of a certificate, which comes once the handshake seems to be over.
            io::ErrorKind::InvalidData => match tls_cause(error) {
                Some(tls) => Error::unavailable(client_words(tls)),
                None => Error::protocol(error),
            },
            io::ErrorKind::InvalidInput => Error::invalid(format!("{doing}: {error}")),
            _ => Error::unavailable(format!("{doing}: {error}")),
        }
    }
}

impl From<proto::Error> for Error {
    fn from(error: proto::Error) -> Error {
        let kind = match error.kind {
            proto::ErrorKind::Invalid => ErrorKind::Invalid,
            proto::ErrorKind::NamespaceUnknown => ErrorKind::NamespaceUnknown,
            proto::ErrorKind::LeaseUnknown => ErrorKind::LeaseExpired,
            proto::ErrorKind::Busy { retry_after_ms } => ErrorKind::Busy { retry_after_ms },
            proto::ErrorKind::Draining => ErrorKind::Draining,
            proto::ErrorKind::SessionUnknown => ErrorKind::SessionUnknown,
            proto::ErrorKind::Limit => ErrorKind::Limit,
            proto::ErrorKind::Internal => ErrorKind::Internal,
            proto::ErrorKind::PermissionDenied => ErrorKind::PermissionDenied,
            // This pool is there and answers: it is not to be thought sick.
            proto::ErrorKind::Unavailable => ErrorKind::Busy { retry_after_ms: 0 },
        };
        Error { kind, message: error.message }
    }
}

impl From<Claimed> for Error {
    fn from(error: Claimed) -> Error {
        // The slot was granted while an earlier copy of this process into it had not ended.
        Error::new(ErrorKind::Internal, error.to_string())
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Error {
        let kind = match error.kind {
            DeviceErrorKind::Invalid => ErrorKind::Invalid,
            DeviceErrorKind::Absent
            | DeviceErrorKind::NoMemory
            | DeviceErrorKind::Unsupported
            | DeviceErrorKind::Cancelled
            | DeviceErrorKind::Broken => ErrorKind::Device,
        };
        Error { kind, message: error.message }
    }
}

impl From<PlanError> for Error {
    fn from(error: PlanError) -> Error {
        Error::invalid(error.to_string())
    }
}

impl From<proto::LayoutError> for Error {
    fn from(error: proto::LayoutError) -> Error {
        Error::invalid(error.to_string())
    }
}

impl From<proto::IdError> for Error {
    fn from(error: proto::IdError) -> Error {
        Error::invalid(error.to_string())
    }
}

impl From<tonic::Status> for Error {
    fn from(status: tonic::Status) -> Error {
        use tonic::Code;
        if let Some(error) = proto::Error::from_status(&status) {
            return error.into();
        }
        if let Some(words) = proto::Error::parting_words(&status) {
            return Error::unavailable(format!("the server refused the connection: {words}"));
        }
        // Not said by a TurnKV server: the transport's own words.
        // What has a cause here, the server did not say: the connection ended before the call was sent.
        let was_unsent = std::error::Error::source(&status).is_some();
        // An answer that is no gRPC at all is a proxy's, or another server's; tonic says so in these words.
        let was_gateway = status.message().contains("grpc-status header missing");
        let kind = match status.code() {
            _ if was_gateway => ErrorKind::Unavailable,
            Code::Cancelled if was_unsent => ErrorKind::Unavailable,
            Code::DeadlineExceeded | Code::Cancelled => ErrorKind::Deadline,
            Code::Unimplemented | Code::OutOfRange | Code::DataLoss => ErrorKind::Internal,
            _ => ErrorKind::Unavailable,
        };
        let said = if status.message().is_empty() { status.code().description() } else { status.message() };
        let mut message = format!("gRPC: {said}");
        if let Some(cause) = root_cause(&status).filter(|cause| !message.contains(cause.as_str())) {
            message = format!("{message}: {cause}");
        }
        Error { kind, message }
    }
}

/// The system's error at the root of a status, if a connection could not be made or broke.
pub(crate) fn io_cause(status: &tonic::Status) -> Option<&io::Error> {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return Some(io);
        }
        cause = error.source();
    }
    None
}

/// What the innermost of a status' causes says: the outer ones only say whose it was.
fn root_cause(status: &tonic::Status) -> Option<String> {
    let mut cause = std::error::Error::source(status)?;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    Some(cause.to_string())
}

/// Whether connecting failed because nobody listens: nothing was sent, so trying again is safe.
pub(crate) fn nobody_there(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::{Error, ErrorKind};
    use tonic::Status;

    #[test]
    fn an_answer_that_is_no_grpc_is_a_pool_that_is_not_there() {
        let kind = |words: &str| Error::from(Status::unimplemented(words)).kind;
        assert_eq!(
            kind("grpc-status header missing, mapped from HTTP status code 404"),
            ErrorKind::Unavailable
        );
        assert_eq!(kind("a call that this server does not have"), ErrorKind::Internal);
    }
}
