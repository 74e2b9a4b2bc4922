//! What can go wrong, by what its receiver must do. Owns: [`Error`]. Must not know: which store it was.

use std::time::Duration;

/// Why an archive did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store does not answer, or not in time, after every retry. Try again later; nothing was harmed.
    #[error("the store is unreachable at {object}: {fault}; try again later")]
    Unreachable {
        /// What was asked for.
        object: String,
        /// What the store, or the network, said.
        fault: String,
    },
    /// The store refuses the credentials, or what they may do. Give it others, or mount it for writing.
    #[error("the store does not allow it for {object}: {fault}; check keys, permissions and mounts")]
    CredentialsRefused {
        /// What was asked for.
        object: String,
        /// What the store said.
        fault: String,
    },
    /// The store has no room. Delete manifests and collect, or give it more.
    #[error(
        "there is no room for {object}: {fault}; give its place more, or, in an archive, delete snapshots and collect"
    )]
    Full {
        /// What was to be written.
        object: String,
        /// What the store said.
        fault: String,
    },
    /// An object is not what was written. Restore it from elsewhere, or delete what needs it.
    #[error("{object} is damaged: {fault}")]
    Damaged {
        /// The object.
        object: String,
        /// What differed, and where.
        fault: String,
    },
    /// There is no such object.
    #[error("{object} is not there")]
    NotFound {
        /// The object.
        object: String,
    },
    /// Something else has this name already. Choose another one.
    #[error("{object} exists already, with something else in it; choose another name")]
    Exists {
        /// The object.
        object: String,
    },
    /// More than a limit allows. Ask for less.
    #[error("{what}: {got} is more than {max}")]
    TooLarge {
        /// What is limited.
        what: String,
        /// How much there was.
        got: u64,
        /// How much there may be.
        max: u64,
    },
    /// What was asked for took longer than may be. Begin again, with less at once, or with a longer grace time.
    #[error("{what} took {took:?}, more than the {max:?} that the grace time allows; begin again")]
    TooLate {
        /// What was too slow.
        what: &'static str,
        /// How long it took until now.
        took: Duration,
        /// How long it may take.
        max: Duration,
    },
    /// What was given does not hold together. Mend the input.
    #[error("{field}: {fault}")]
    Invalid {
        /// What of it.
        field: String,
        /// What is wrong with it.
        fault: String,
    },
    /// The process is short of something: threads, memory. Try again.
    #[error("this process is short of something: {0}")]
    Short(String),
}

impl Error {
    /// An input that does not hold together.
    pub(crate) fn invalid(field: impl Into<String>, fault: impl Into<String>) -> Error {
        Error::Invalid { field: field.into(), fault: fault.into() }
    }

    /// An object that is not what was written.
    pub(crate) fn damaged(object: impl Into<String>, fault: impl Into<String>) -> Error {
        Error::Damaged { object: object.into(), fault: fault.into() }
    }

    /// Fails if there is more than there may be.
    pub(crate) fn bound(what: &str, got: u64, max: u64) -> Result<(), Error> {
        if got <= max { Ok(()) } else { Err(Error::TooLarge { what: what.to_owned(), got, max }) }
    }

    /// Whether it may pass by itself: the store was not reached, or the process was short.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Error::Unreachable { .. } | Error::Short(_) | Error::TooLate { .. })
    }
}
