//! The two wire forms of an [`Error`]: a gRPC status with google.rpc details, and the local socket's `Failure`.
//! Owns: the mapping both ways. Must not know: why an error was raised.

use crate::error::{Error, ErrorKind};
use crate::limits::{ERROR_TEXT_BYTES_MAX, RETRY_AFTER_MS_MAX};
use crate::wire;
use std::collections::HashMap;
use std::time::Duration;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of TurnKV's `ErrorInfo` details.
pub const ERROR_DOMAIN: &str = "turnkv";

impl Error {
    /// Reads a status that a TurnKV server made. `None`: it came from elsewhere (the transport, a proxy).
    pub fn from_status(status: &Status) -> Option<Error> {
        let details = status.get_error_details();
        let info = details.error_info().filter(|info| info.domain == ERROR_DOMAIN)?;
        let delay = details.retry_info().and_then(|retry| retry.retry_delay).unwrap_or_default();
        let retry_after_ms = u32::try_from(delay.as_millis()).unwrap_or(u32::MAX).min(RETRY_AFTER_MS_MAX);
        let kind = match info.reason.as_str() {
            "INVALID" => ErrorKind::Invalid,
            "NAMESPACE_UNKNOWN" => ErrorKind::NamespaceUnknown,
            "LEASE_UNKNOWN" => ErrorKind::LeaseUnknown,
            "BUSY" => ErrorKind::Busy { retry_after_ms },
            "DRAINING" => ErrorKind::Draining,
            "SESSION_UNKNOWN" => ErrorKind::SessionUnknown,
            "LIMIT" => ErrorKind::Limit,
            "PERMISSION_DENIED" => ErrorKind::PermissionDenied,
            "UNAVAILABLE" => ErrorKind::Unavailable,
            // A newer server may know more kinds: recompute and report is right for all of them.
            _ => ErrorKind::Internal,
        };
        Some(Error::new(kind, cut(status.message())))
    }

    /// The words with which a server that takes no calls on a connection ended it (HTTP/2's GOAWAY), if it gave any.
    pub fn parting_words(status: &Status) -> Option<String> {
        let mut cause = std::error::Error::source(status);
        while let Some(error) = cause {
            // There is no other way to them: `h2` shows what came with a GOAWAY in its text only.
            let text = error.to_string();
            let words = text.split_once("(b\"").and_then(|(_, rest)| rest.strip_suffix("\")"));
            if let Some(words) = words.filter(|words| !words.is_empty()) {
                return Some(cut(words).to_owned());
            }
            cause = error.source();
        }
        None
    }

    /// The local socket's form.
    pub fn to_failure(&self) -> wire::Failure {
        let (kind, retry_after_ms) = match self.kind {
            ErrorKind::Invalid => (wire::ErrorKind::Invalid, 0),
            ErrorKind::NamespaceUnknown => (wire::ErrorKind::NamespaceUnknown, 0),
            ErrorKind::LeaseUnknown => (wire::ErrorKind::LeaseUnknown, 0),
            ErrorKind::Busy { retry_after_ms } => (wire::ErrorKind::Busy, retry_after_ms),
            ErrorKind::Draining => (wire::ErrorKind::Draining, 0),
            ErrorKind::SessionUnknown => (wire::ErrorKind::SessionUnknown, 0),
            ErrorKind::Limit => (wire::ErrorKind::Limit, 0),
            ErrorKind::Internal => (wire::ErrorKind::Internal, 0),
            ErrorKind::PermissionDenied => (wire::ErrorKind::PermissionDenied, 0),
            ErrorKind::Unavailable => (wire::ErrorKind::Unavailable, 0),
        };
        let retry_after_ms = retry_after_ms.min(RETRY_AFTER_MS_MAX);
        wire::Failure { kind: kind as i32, message: cut(&self.message).to_owned(), retry_after_ms }
    }

    /// Reads the local socket's form. Kinds that this version does not know are [`ErrorKind::Internal`].
    pub fn from_failure(failure: &wire::Failure) -> Error {
        let retry_after_ms = failure.retry_after_ms.min(RETRY_AFTER_MS_MAX);
        let kind = match wire::ErrorKind::try_from(failure.kind) {
            Ok(wire::ErrorKind::Invalid) => ErrorKind::Invalid,
            Ok(wire::ErrorKind::NamespaceUnknown) => ErrorKind::NamespaceUnknown,
            Ok(wire::ErrorKind::LeaseUnknown) => ErrorKind::LeaseUnknown,
            Ok(wire::ErrorKind::Busy) => ErrorKind::Busy { retry_after_ms },
            Ok(wire::ErrorKind::Draining) => ErrorKind::Draining,
            Ok(wire::ErrorKind::SessionUnknown) => ErrorKind::SessionUnknown,
            Ok(wire::ErrorKind::Limit) => ErrorKind::Limit,
            Ok(wire::ErrorKind::PermissionDenied) => ErrorKind::PermissionDenied,
            Ok(wire::ErrorKind::Unavailable) => ErrorKind::Unavailable,
            Ok(wire::ErrorKind::Internal | wire::ErrorKind::Unspecified) | Err(_) => ErrorKind::Internal,
        };
        Error::new(kind, cut(&failure.message))
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Status {
        let code = match error.kind {
            ErrorKind::Invalid => Code::InvalidArgument,
            ErrorKind::NamespaceUnknown | ErrorKind::SessionUnknown => Code::NotFound,
            ErrorKind::LeaseUnknown => Code::FailedPrecondition,
            ErrorKind::Busy { .. } | ErrorKind::Limit => Code::ResourceExhausted,
            ErrorKind::Draining | ErrorKind::Unavailable => Code::Unavailable,
            ErrorKind::Internal => Code::Internal,
            ErrorKind::PermissionDenied => Code::PermissionDenied,
        };
        let advice = HashMap::from([("advice".to_owned(), error.kind.advice().to_owned())]);
        let mut details = ErrorDetails::with_error_info(error.kind.reason(), ERROR_DOMAIN, advice);
        if let ErrorKind::Busy { retry_after_ms } = error.kind
            && retry_after_ms > 0
        {
            let delay = Duration::from_millis(retry_after_ms.min(RETRY_AFTER_MS_MAX).into());
            details.set_retry_info(Some(delay));
        }
        Status::with_error_details(code, cut(&error.message), details)
    }
}

/// At most [`ERROR_TEXT_BYTES_MAX`] bytes of `text`, cut between characters.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(ERROR_TEXT_BYTES_MAX)]
}
