//! ZeroMQ's wire (ZMTP 3.0, mechanism NULL), as far as a socket that listens needs it. Owns: greetings, commands and frames as bytes.
//! Must not know: connections, events. Specified in <https://rfc.zeromq.org/spec/23/>.
//!
//! ```text
//!   greeting (64 bytes) both ways --> READY (a command with the socket's type) both ways --> messages of frames
//! ```

use crate::limits::EVENTS_FRAME_BYTES_MAX;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes of a greeting.
pub(super) const GREETING_BYTES: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
const MECHANISM: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
/// Where a greeting has its version, and where its mechanism.
const VERSION_AT: usize = 10;
const MECHANISM_AT: usize = 12;

/// Why a connection ends.
#[derive(Debug, Error)]
pub(super) enum WireError {
    /// It ended, or broke.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It took too long.
    #[error("it took too long")]
    Late,
    /// It is not ZeroMQ, or not what this socket speaks with.
    #[error("{0}")]
    Foreign(&'static str),
}

/// One frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Not a part of a message.
    pub(super) is_command: bool,
    /// The message goes on.
    pub(super) more: bool,
    /// What it carries.
    pub(super) body: Vec<u8>,
}

/// What is said first.
pub(super) fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    (bytes[0], bytes[9]) = (0xff, 0x7f);
    bytes[VERSION_AT] = 3;
    bytes[MECHANISM_AT..MECHANISM_AT + MECHANISM.len()].copy_from_slice(MECHANISM);
    bytes
}

/// Whether the other end's first words are those of ZeroMQ 3 or later without a mechanism of security.
pub(super) fn check_greeting(bytes: &[u8; GREETING_BYTES]) -> Result<(), WireError> {
    if bytes[0] != 0xff || bytes[9] & 1 != 1 {
        return Err(WireError::Foreign("it does not speak ZeroMQ"));
    }
    if bytes[VERSION_AT] < 3 {
        return Err(WireError::Foreign("it speaks ZeroMQ as it was before version 3"));
    }
    match bytes[MECHANISM_AT..].starts_with(MECHANISM) {
        true => Ok(()),
        false => Err(WireError::Foreign("it asks for a mechanism of security that is not here")),
    }
}

/// The command that says which type of socket this is.
pub(super) fn ready(socket: &str) -> Vec<u8> {
    let name = b"Socket-Type";
    let mut body = b"\x05READY".to_vec();
    body.push(name.len() as u8);
    body.extend_from_slice(name);
    body.extend_from_slice(&(socket.len() as u32).to_be_bytes());
    body.extend_from_slice(socket.as_bytes());
    let mut bytes = Vec::new();
    put_frame(&mut bytes, COMMAND, &body);
    bytes
}

/// The type of socket that a READY names.
pub(super) fn socket_of(ready: &Frame) -> Option<String> {
    let mut rest = ready.body.strip_prefix(b"\x05READY").filter(|_| ready.is_command)?;
    while let Some((name_bytes, after)) = rest.split_first() {
        let (name, after) = after.split_at_checked(usize::from(*name_bytes))?;
        let (size, after) = after.split_first_chunk::<4>()?;
        let (value, after) = after.split_at_checked(u32::from_be_bytes(*size) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return String::from_utf8(value.to_vec()).ok();
        }
        rest = after;
    }
    None
}

/// What answers a command, if anything does: a PING wants its own context back.
pub(super) fn answer(command: &Frame) -> Option<Vec<u8>> {
    let context = command.body.strip_prefix(b"\x04PING")?.get(2..)?;
    let mut bytes = Vec::new();
    put_frame(&mut bytes, COMMAND, &[b"\x04PONG", context].concat());
    Some(bytes)
}

/// The bytes of a message of these frames.
pub(super) fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frames.iter().map(|frame| frame.len() + 9).sum());
    for (at, frame) in frames.iter().enumerate() {
        put_frame(&mut bytes, if at + 1 < frames.len() { MORE } else { 0 }, frame);
    }
    bytes
}

/// Reads a frame; one that is larger than any that is of use ends the connection before it takes memory.
pub(super) async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> Result<Frame, WireError> {
    let flags = stream.read_u8().await?;
    let size = match flags & LONG {
        0 => u64::from(stream.read_u8().await?),
        _ => stream.read_u64().await?,
    };
    if size > EVENTS_FRAME_BYTES_MAX {
        return Err(WireError::Foreign("it sends more than a topic or a number"));
    }
    let mut body = vec![0; size as usize];
    stream.read_exact(&mut body).await?;
    Ok(Frame { is_command: flags & COMMAND != 0, more: flags & MORE != 0, body })
}

fn put_frame(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(size) => bytes.extend([flags, size]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend((body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test says what it expected by failing")]

    use super::*;

    async fn frames(mut bytes: &[u8]) -> Vec<Frame> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            found.push(read_frame(&mut bytes).await.unwrap());
        }
        found
    }

    #[tokio::test]
    async fn what_is_written_is_read() {
        let long = vec![7; 300];
        let found = frames(&message(&[b"topic", b"", &long])).await;
        assert_eq!(found.iter().map(|frame| frame.more).collect::<Vec<_>>(), [true, true, false]);
        assert_eq!(found.iter().map(|frame| frame.body.len()).collect::<Vec<_>>(), [5, 0, 300]);
        let ready = frames(&ready("PUB")).await.remove(0);
        assert_eq!(socket_of(&ready).as_deref(), Some("PUB"));
        check_greeting(&greeting()).unwrap();
    }

    #[tokio::test]
    async fn a_frame_that_is_too_large_or_cut_off_ends_the_connection() {
        let large = [&[LONG][..], &u64::MAX.to_be_bytes()].concat();
        assert!(matches!(read_frame(&mut &large[..]).await, Err(WireError::Foreign(_))));
        for cut in [&[][..], &[0], &[0, 5, 1], &[LONG, 0, 0]] {
            assert!(matches!(read_frame(&mut &cut[..]).await, Err(WireError::Io(_))));
        }
    }

    #[test]
    fn words_of_others_are_refused() {
        for change in [(0, 0), (9, 0), (VERSION_AT, 1), (MECHANISM_AT, b'C')] {
            let mut other = greeting();
            other[change.0] = change.1;
            assert!(check_greeting(&other).is_err(), "{change:?}");
        }
        let command = |body: &[u8]| Frame { is_command: true, more: false, body: body.to_vec() };
        for body in [&b"\x05READY\xffabc"[..], b"\x05READY\x01a\0\0\0\xffb", b"\x05READY", b""] {
            assert_eq!(socket_of(&command(body)), None);
        }
        assert_eq!(answer(&command(b"\x04PING")), None);
        assert_eq!(answer(&command(b"\x04PING\0\x01ab")).unwrap(), b"\x04\x07\x04PONGab");
    }
}
