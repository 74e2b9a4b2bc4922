//! What a server and its keeper say to one another, as frames of a local socket. Owns: verbs, bodies, the version. Must not
//! know: who says it, what a descriptor is of.
//!
//! ```text
//!   server                                 keeper
//!   HELLO version, ms without a server ->
//!                                       <- KEPT name + descriptor (one for each; FLAG_MORE)
//!                                       <- DONE
//!   KEEP name + descriptor             ->
//!                                       <- DONE, or a failure in words
//!   DROP name                          ->
//!                                       <- DONE
//! ```
//! There is one server at a time: the next one is answered when the last one's connection has ended, which is when none of its
//! threads can write any memory any more.

use std::io;
use std::time::Duration;

/// The version of these words; it changes when an old keeper could not serve a new server.
const VERSION: u32 = 1;

/// The server is there: it gets what is kept.
pub(super) const HELLO: u8 = 1;
/// One descriptor that is kept.
pub(super) const KEPT: u8 = 2;
/// It is done.
pub(super) const DONE: u8 = 3;
/// A descriptor is to be kept under a name.
pub(super) const KEEP: u8 = 4;
/// What is kept under a name is to go.
pub(super) const DROP: u8 = 5;

/// The body of `HELLO`.
pub(super) fn hello(without_server: Duration) -> Vec<u8> {
    let ms = without_server.as_millis() as u64;
    [&VERSION.to_le_bytes()[..], &ms.to_le_bytes()[..]].concat()
}

/// How long to keep without a server, as `HELLO` says.
///
/// # Errors
/// It is of another version, or none.
pub(super) fn read_hello(body: &[u8]) -> io::Result<Duration> {
    let (version, ms) = body.split_first_chunk::<4>().ok_or_else(|| wrong("a hello is too short"))?;
    if u32::from_le_bytes(*version) != VERSION {
        return Err(wrong("a server of another version said hello"));
    }
    let ms: &[u8; 8] = ms.try_into().map_err(|_| wrong("a hello has another length"))?;
    Ok(Duration::from_millis(u64::from_le_bytes(*ms)))
}

/// What came is not of these words.
pub(super) fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
