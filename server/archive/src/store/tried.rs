//! What one try of a request came to. Owns: telling a store's errors apart by what to do about them. Must not know: which request it was.

use crate::error::Error;
use crate::store::folder::NotPlain;
use object_store::Error as StoreError;
use std::error::Error as StdError;
use std::io::ErrorKind;
use std::time::Duration;

/// What one try came to.
pub(super) enum Tried {
    /// Not worth another.
    Ended(Error),
    /// May go better.
    Passing(Error),
    /// Something has that name.
    Exists,
    /// The service does not know how to do this; what it said.
    Unknown(String),
}

impl Tried {
    /// The fault if it may pass; an error if not.
    pub(super) fn passing_at(self, object: &str) -> Result<Error, Error> {
        match self {
            Tried::Passing(fault) => Ok(fault),
            Tried::Ended(fault) => Err(fault),
            Tried::Exists => Err(Error::Exists { object: object.to_owned() }),
            Tried::Unknown(answer) => Err(Error::invalid(object, answer)),
        }
    }
}

/// A try that was given up.
pub(super) fn too_slow(object: &str, after: Duration) -> Error {
    Error::Unreachable { object: object.to_owned(), fault: format!("no answer within {after:?}") }
}

/// What to do about a store's error.
pub(super) fn sorted(object: &str, fault: &StoreError) -> Tried {
    let answer = answer(fault);
    let object = object.to_owned();
    let text = told(answer.as_ref().map_or(&fault.to_string(), |answer| &answer.text));
    if let Some(NotPlain(what)) = causes(fault).find_map(not_plain) {
        return Tried::Ended(Error::damaged(object, *what));
    }
    match fault {
        StoreError::NotFound { .. } => Tried::Ended(Error::NotFound { object }),
        StoreError::AlreadyExists { .. }
        | StoreError::Precondition { .. }
        | StoreError::NotModified { .. } => Tried::Exists,
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            Tried::Ended(Error::CredentialsRefused { object, fault: text })
        }
        StoreError::NotImplemented { .. } => Tried::Unknown(text),
        StoreError::InvalidPath { .. }
        | StoreError::NotSupported { .. }
        | StoreError::UnknownConfigurationKey { .. } => Tried::Ended(Error::invalid(object, text)),
        _ => match (io_kind(fault), answer) {
            (Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge), _) => {
                Tried::Ended(Error::Full { object, fault: text })
            }
            (Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem), _) => {
                Tried::Ended(Error::CredentialsRefused { object, fault: text })
            }
            (Some(ErrorKind::NotADirectory | ErrorKind::IsADirectory), _) => {
                Tried::Ended(Error::damaged(object, format!("it is no plain file ({text})")))
            }
            (Some(ErrorKind::NotFound), _) => Tried::Ended(Error::NotFound { object }),
            (_, Some(answer)) if answer.says_full() => Tried::Ended(Error::Full { object, fault: text }),
            (_, Some(answer)) if answer.says_refused() => {
                Tried::Ended(Error::CredentialsRefused { object, fault: text })
            }
            (_, Some(Answer { status: Some(501), .. })) => Tried::Unknown(text),
            _ => Tried::Passing(Error::Unreachable { object, fault: text }),
        },
    }
}

/// What a service answered, in the store's words: the status and the body, without the object's name, in which any digits may be.
struct Answer {
    text: String,
    status: Option<u16>,
}

impl Answer {
    /// Services say it by their status, or by the name of a fault.
    fn says_full(&self) -> bool {
        self.status == Some(507)
            || ["StorageFull", "QuotaExceeded"].iter().any(|word| self.text.contains(word))
    }

    /// Also keys that were good for a while only, with status 400.
    fn says_refused(&self) -> bool {
        matches!(self.status, Some(401 | 403))
            || ["ExpiredToken", "InvalidToken"].iter().any(|word| self.text.contains(word))
    }
}

/// The answer that a fault came from, if a service answered.
fn answer(fault: &StoreError) -> Option<Answer> {
    const WITH_STATUS: &str = "Server returned non-2xx status code: ";
    const WITHOUT: &str = "Server returned error response: ";
    causes(fault).find_map(|cause| {
        let text = cause.to_string();
        let status = |text: &str| text.get(..3).and_then(|digits| digits.parse().ok());
        match (text.strip_prefix(WITH_STATUS), text.strip_prefix(WITHOUT)) {
            (Some(text), _) => Some(Answer { text: text.to_owned(), status: status(text) }),
            (_, Some(text)) => Some(Answer { text: text.to_owned(), status: None }),
            _ => None,
        }
    })
}

/// What stands in a file's place, also where it is within an error of the file system.
fn not_plain<'a>(cause: &'a (dyn StdError + 'static)) -> Option<&'a NotPlain> {
    let within = || cause.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref();
    cause.downcast_ref().or_else(within)
}

fn io_kind(fault: &StoreError) -> Option<ErrorKind> {
    causes(fault).find_map(|cause| cause.downcast_ref::<std::io::Error>()).map(std::io::Error::kind)
}

/// An error, what it came from, and so on.
fn causes(fault: &StoreError) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    let first: &(dyn StdError + 'static) = fault;
    std::iter::successors(Some(first), |cause: &&(dyn StdError + 'static)| (*cause).source())
}

/// A text in one line that is not too long.
fn told(text: &str) -> String {
    const CHARACTERS_MAX: usize = 300;
    text.replace('\n', " ").chars().take(CHARACTERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As an error of a client that spoke to a service.
    #[derive(Debug, thiserror::Error)]
    #[error("Error performing PUT http://store/bucket/{name}.pack in 1ms - {source}")]
    struct Request {
        name: &'static str,
        source: Said,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str);

    fn sorted_as(said: &'static str) -> Tried {
        // Names have any digits, also those of statuses.
        let source = Box::new(Request { name: "0192507501StorageFull", source: Said(said) });
        sorted("pack 1", &StoreError::Generic { store: "S3", source })
    }

    #[test]
    fn a_status_counts_and_the_digits_of_a_name_do_not() {
        let down = sorted_as("Server returned non-2xx status code: 503 Service Unavailable: SlowDown");
        let Tried::Passing(Error::Unreachable { fault, .. }) = down else { panic!("it may pass") };
        assert_eq!(fault, "503 Service Unavailable: SlowDown");
        assert!(matches!(sorted_as("connection reset"), Tried::Passing(Error::Unreachable { .. })));
        for full in [
            "Server returned non-2xx status code: 507 Insufficient Storage: ",
            "Server returned non-2xx status code: 400 Bad Request: <Code>XMinioStorageFull</Code>",
            "Server returned error response: <Code>QuotaExceeded</Code>",
        ] {
            assert!(matches!(sorted_as(full), Tried::Ended(Error::Full { .. })), "{full}");
        }
        let denied = sorted_as("Server returned non-2xx status code: 403 Forbidden: ");
        assert!(matches!(denied, Tried::Ended(Error::CredentialsRefused { .. })));
        let expired = sorted_as("Server returned non-2xx status code: 400 Bad Request: ExpiredToken");
        assert!(matches!(expired, Tried::Ended(Error::CredentialsRefused { .. })));
        let unknown = sorted_as("Server returned non-2xx status code: 501 Not Implemented: ");
        assert!(matches!(unknown, Tried::Unknown(_)));
    }
}
