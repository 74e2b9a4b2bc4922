//! `turnkv.Error`. Owns: how a client's error looks in Python, and what to do about each kind. Must not know: calls.

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use turnkv_client::{ConfigError, ErrorKind};

create_exception!(
    turnkv,
    Error,
    PyException,
    "The pool could not serve a call. Nothing is lost but time: recompute and go on. See .kind, .advice, .retry_after_ms."
);

/// The exception's class, with values for whoever raises one by hand.
pub(crate) fn class(py: Python<'_>) -> PyResult<Bound<'_, pyo3::types::PyType>> {
    let class = py.get_type::<Error>();
    class.setattr("kind", "internal")?;
    class.setattr("advice", advice(ErrorKind::Internal))?;
    class.setattr("retry_after_ms", 0)?;
    Ok(class)
}

/// A client's error as the exception to raise.
pub(crate) fn from_client(py: Python<'_>, error: turnkv_client::Error) -> PyErr {
    let retry_after_ms = if let ErrorKind::Busy { retry_after_ms } = error.kind { retry_after_ms } else { 0 };
    let advice = advice(error.kind);
    let kind = name(error.kind);
    let raised = Error::new_err(format!("{} ({advice})", error.message));
    let value = raised.value(py);
    let set = value
        .setattr("kind", kind)
        .and_then(|()| value.setattr("advice", advice))
        .and_then(|()| value.setattr("retry_after_ms", retry_after_ms));
    match set {
        Ok(()) => raised,
        Err(failed) => failed,
    }
}

/// A configuration that cannot be meant.
pub(crate) fn from_config(error: &ConfigError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "invalid",
        ErrorKind::Unavailable => "unavailable",
        ErrorKind::Deadline => "deadline",
        ErrorKind::BreakerOpen => "breaker_open",
        ErrorKind::Busy { .. } => "busy",
        ErrorKind::Draining => "draining",
        ErrorKind::NamespaceUnknown => "namespace_unknown",
        ErrorKind::SessionUnknown => "session_unknown",
        ErrorKind::LeaseExpired => "lease_expired",
        ErrorKind::Limit => "limit",
        ErrorKind::Device => "device",
        ErrorKind::Internal => "internal",
        ErrorKind::PermissionDenied => "permission_denied",
    }
}

fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "fix the input: the same call will fail again",
        ErrorKind::Unavailable => "recompute; check the address, and that the server runs there",
        ErrorKind::Deadline => "recompute; the pool did not answer in time",
        ErrorKind::BreakerOpen => "recompute; the pool failed a moment ago and is not called for now",
        ErrorKind::Busy { .. } => "recompute, or retry after retry_after_ms",
        ErrorKind::Draining => "recompute; the server is leaving",
        ErrorKind::NamespaceUnknown => "open the namespace again",
        ErrorKind::SessionUnknown => "begin a turn of the session",
        ErrorKind::LeaseExpired => "discard what was read and recompute",
        ErrorKind::Limit => "recompute; a limit named in the message is reached",
        ErrorKind::Device => "recompute; the device refused or broke, the message says which",
        ErrorKind::Internal => "recompute, and report this",
        ErrorKind::PermissionDenied => "recompute; an operator may grant it, by a certificate or in [access]",
    }
}
