//! A connection to a server process. Owns: what it is, why none could be had. Must not know: who lends
//! connections.

use super::writes::Account;
use crate::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Instant;
use turnkv_transfer::LocalSocket;

/// One server process, as Hello named it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Server {
    /// Names this process's leases; 0: not known yet.
    pub(crate) client: u64,
    /// A new one knows no old lease, slab or namespace.
    pub(crate) instance: u64,
    /// Its version, for people.
    pub(crate) version: Arc<str>,
}

/// A connection that has said Hello.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: LocalSocket,
    pub(crate) server: Server,
    /// When the server last answered on it.
    pub(super) heard: Instant,
    /// Where slots are accounted for that are asked for here; none: the server's memory ends with it.
    pub(super) account: Option<Arc<Account>>,
}

/// Why no connection could be had.
#[derive(Debug)]
pub(crate) enum ConnectError {
    /// Nobody listens: trying again later, or starting a server, is safe.
    NobodyThere(io::Error),
    /// Something else than frames is spoken there.
    NoFrames(Error),
    /// All else.
    Failed(Error),
}

impl From<Error> for ConnectError {
    fn from(error: Error) -> ConnectError {
        ConnectError::Failed(error)
    }
}

impl From<ConnectError> for Error {
    fn from(fault: ConnectError) -> Error {
        match fault {
            ConnectError::NobodyThere(error) => {
                Error::unavailable(format!("no server listens there: {error}"))
            }
            ConnectError::NoFrames(error) => error,
            ConnectError::Failed(error) => error,
        }
    }
}
