//! Errors as an operator reads them: one line what, one line what to do. Owns: how a chain of causes becomes these lines.
//! Must not know: what the commands do.

use crate::catalog::CatalogError;
use crate::config::ConfigError;
use crate::connections::caps::TooFew;
use std::backtrace::BacktraceStatus;
use std::io;
use tonic::{Code, Status};
use turnkv_proto::ErrorKind;
use turnkv_sim::trace::TraceError;
use turnkv_tier::dram::DramError;
use turnkv_tier::nvme::OpenError;

/// An error whose maker knows what to do about it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what}")]
pub(crate) struct Advised {
    what: String,
    todo: String,
}

/// Says of a failure what it was and what to do.
pub(crate) trait Advise<T> {
    /// `what` failed; `todo` is what helps.
    fn advise(self, what: impl FnOnce() -> String, todo: &str) -> anyhow::Result<T>;
}

impl<T, E> Advise<T> for Result<T, E>
where
    Result<T, E>: anyhow::Context<T, E>,
{
    fn advise(self, what: impl FnOnce() -> String, todo: &str) -> anyhow::Result<T> {
        anyhow::Context::with_context(self, || Advised { what: what(), todo: todo.to_owned() })
    }
}

/// A failure whose cause says what helps.
pub(crate) fn failed<E>(error: E, what: String, todo: String) -> anyhow::Error
where
    E: std::error::Error + Send + Sync + 'static,
{
    anyhow::Error::new(error).context(Advised { what, todo })
}

/// A use of a command that makes no sense.
pub(crate) fn misused(what: impl Into<String>, todo: impl Into<String>) -> anyhow::Error {
    Advised { what: what.into(), todo: todo.into() }.into()
}

/// What went wrong and what to do; of what is nobody's misuse, also where it was, if `RUST_BACKTRACE` asks.
pub(crate) fn lines(error: &anyhow::Error) -> (String, String) {
    match advice(error) {
        Some(todo) => (what(error), todo),
        None => {
            let trace = error.backtrace();
            let place = match trace.status() {
                BacktraceStatus::Captured => format!("\n{trace}"),
                _ => String::new(),
            };
            (what(error), format!("report this: it is a fault of turnkv, not of its use{place}"))
        }
    }
}

/// The causes in one line; one that repeats what the text before it says is left out.
fn what(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let said = match cause.downcast_ref::<Status>() {
            Some(status) => match turnkv_proto::Error::parting_words(status) {
                Some(words) => return joined(&text, &words), // what is beneath has them again
                // The transport's own words, and those beneath them, are for who debugs it.
                None if is_lost(status) => return joined(&text, LOST),
                None => status.message().to_owned(),
            },
            None => cause.to_string(),
        };
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        if said.is_empty() || text.contains(&said) {
            continue;
        }
        text = joined(&text, &said);
    }
    text
}

/// What is said of a connection that ended before the answer came.
const LOST: &str = "the connection to the server was lost";

/// Whether a status was not said by a server, but made of what became of the connection.
fn is_lost(status: &Status) -> bool {
    let by_server = turnkv_proto::Error::from_status(status).is_some();
    let is_of_connection =
        matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal);
    !by_server && is_of_connection && std::error::Error::source(status).is_some()
}

fn joined(text: &str, said: &str) -> String {
    if text.is_empty() { said.to_owned() } else { format!("{text}: {said}") }
}

fn advice(error: &anyhow::Error) -> Option<String> {
    if let Some(advised) = error.downcast_ref::<Advised>() {
        return Some(advised.todo.clone());
    }
    error.chain().find_map(|cause| {
        if let Some(config) = cause.downcast_ref::<ConfigError>() {
            return Some(config.advice());
        }
        if let Some(few) = cause.downcast_ref::<TooFew>() {
            return Some(few.advice());
        }
        if let Some(todo) = cause.downcast_ref::<CatalogError>().and_then(CatalogError::advice) {
            return Some(todo.to_owned());
        }
        if cause.is::<OpenError>() || cause.is::<DramError>() {
            return Some(
                "correct what this names, in the configuration or on this host, and start again".to_owned(),
            );
        }
        if cause.is::<TraceError>() {
            return Some("give a trace as docs/operating/sizing.md describes it".to_owned());
        }
        if let Some(status) = cause.downcast_ref::<Status>() {
            return Some(status_advice(status));
        }
        cause.downcast_ref::<io::Error>().and_then(|io| io_advice(io.kind())).map(str::to_owned)
    })
}

fn status_advice(status: &Status) -> String {
    if let Some(error) = turnkv_proto::Error::from_status(status) {
        return match error.kind {
            ErrorKind::Busy { retry_after_ms } if retry_after_ms > 0 => {
                format!("try again in {retry_after_ms} ms")
            }
            kind => kind.advice().to_owned(),
        };
    }
    if turnkv_proto::Error::parting_words(status).is_some() {
        return "the server took no call on this connection: do as it says".to_owned();
    }
    let advice = match status.code() {
        Code::Unimplemented => {
            "see that the address is the one of gRPC (listen or tcp, not metrics); if it is, the server is older: update it"
        }
        Code::DeadlineExceeded => "the server is busy or stopped: look at its log, then try again",
        _ => "see whether the server still runs, and what its log says",
    };
    advice.to_owned()
}

fn io_advice(kind: io::ErrorKind) -> Option<&'static str> {
    use io::ErrorKind;
    Some(match kind {
        ErrorKind::NotFound => "see whether the path is right and exists",
        ErrorKind::PermissionDenied => "run as a user who may do that, or change the path's owner or mode",
        ErrorKind::AddrInUse => "stop the process that is there, or choose another address",
        ErrorKind::AddrNotAvailable => "choose an address that this host has",
        ErrorKind::ConnectionRefused => "see whether the server runs, and at which address",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space, or choose another place",
        ErrorKind::ReadOnlyFilesystem => "choose a place that may be written",
        ErrorKind::OutOfMemory => "free some memory, or ask for less",
        ErrorKind::AlreadyExists | ErrorKind::NotADirectory | ErrorKind::IsADirectory => {
            "choose another path, or move aside what is there"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::{Advise, lines, misused};
    use anyhow::Context;
    use std::io;
    use tonic::Status;

    #[test]
    fn a_wait_is_said_with_its_time() {
        let error = turnkv_proto::Error::busy(250, "another one is under way");
        let (what, todo) = lines(&anyhow::Error::new(Status::from(error)).context("not now"));
        assert_eq!(
            (what.as_str(), todo.as_str()),
            ("not now: another one is under way", "try again in 250 ms")
        );
    }

    #[test]
    fn a_cause_is_said_once_in_one_line() {
        let inner = io::Error::new(io::ErrorKind::NotFound, "No such file");
        let error = anyhow::Error::new(inner).context("cannot read x:\n  No such file").context("starting");
        let (what, todo) = lines(&error);
        assert_eq!(what, "starting: cannot read x: No such file");
        assert!(todo.contains("path"), "{todo}");
    }

    #[test]
    fn whoever_knows_what_to_do_says_it() {
        let failed: Result<(), io::Error> = Err(io::ErrorKind::AddrInUse.into());
        let error = failed.advise(|| "cannot listen at y".to_owned(), "choose another y").context("outer");
        let (what, todo) = lines(&error.unwrap_err());
        assert!(what.starts_with("outer: cannot listen at y: "), "{what}");
        assert_eq!(todo, "choose another y");
        assert_eq!(lines(&misused("no trace", "name one")), ("no trace".to_owned(), "name one".to_owned()));
    }

    #[test]
    fn what_nobody_knows_is_to_be_reported() {
        let (_, todo) = lines(&anyhow::anyhow!("impossible"));
        assert!(todo.starts_with("report this"), "{todo}");
    }
}
