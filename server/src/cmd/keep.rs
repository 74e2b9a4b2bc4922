//! `turnkv keep`: holds page memory for a server that is gone. Owns: how its end is said. Must not know: what it holds.

use crate::keep::keeper;
use crate::report::Advise;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// Keeps until no server came for so long. Where another keeper is, there is nothing to do.
pub(crate) fn run(socket: &Path, without_server: Duration) -> anyhow::Result<()> {
    match keeper::run(socket, without_server) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => Ok(()),
        kept => kept.advise(
            || format!("cannot keep memory at {}", socket.display()),
            "name a place where this user may make a socket (--socket)",
        ),
    }
}
