//! What a peer is told that is not served, or not any more. Owns: the words on the socket. Must not know: why.

use crate::connections::asking::Asking;
use crate::connections::{Cause, Refused};
use crate::limits::REFUSAL_MS_MAX;
use prost::Message;
use std::time::{Duration, Instant};
use turnkv_proto::wire::Verb;
use turnkv_proto::{Error, ErrorKind};
use turnkv_transfer::{FLAG_FAILURE, LocalSocket};

/// What a peer is told that nobody can serve.
pub(in crate::doors) const NO_THREAD: &str = "the system has no thread for another connection: try later";

/// Answers the Hello that the peer is about to say.
pub(in crate::doors) fn refuse(socket: &LocalSocket, refused: &Refused) {
    let deadline = Instant::now() + Duration::from_millis(REFUSAL_MS_MAX);
    say(socket, Verb::Hello, &Error::new(ErrorKind::Limit, refused.to_string()), deadline);
}

/// Says why a connection ends; without a verb, whatever its peer asks.
pub(in crate::doors) fn say(socket: &LocalSocket, verb: Verb, why: &Error, deadline: Instant) {
    let failure = why.to_failure();
    let sent = socket.send_by(verb as u8, FLAG_FAILURE, &failure.encode_to_vec(), &[], deadline);
    if let Err(error) = sent {
        tracing::debug!(%error, "a peer that is not served had left");
    }
}

/// A connection is ended by its own thread: counts why, and says so where the peer may still listen.
pub(in crate::doors) fn end(socket: &LocalSocket, asking: &Asking, cause: Cause) {
    asking.ended(cause);
    if cause != Cause::Unread {
        let deadline = Instant::now() + Duration::from_millis(REFUSAL_MS_MAX);
        say(socket, Verb::Unspecified, &why(cause), deadline);
    }
}

/// What the peer of a connection is told that ends. What is damaged may come whole the next time: it reaches no limit.
pub(in crate::doors) fn why(cause: Cause) -> Error {
    let kind = if cause == Cause::Malformed { ErrorKind::Unavailable } else { ErrorKind::Limit };
    Error::new(kind, cause.words())
}
