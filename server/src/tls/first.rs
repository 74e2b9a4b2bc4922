//! What the first bytes of a connection say of the rest. Owns: telling TLS, HTTP/2 and frames apart, and parting from who came to the
//! wrong port. Must not know: what is spoken.

use crate::limits::{FIRST_BYTES_PAUSE, HANDSHAKE_PARTING_BYTES_MAX, HANDSHAKE_PARTING_MS_MAX};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The first bytes of every handshake of TLS: a record of a handshake, of any version 3.
const HANDSHAKE_RECORD: [u8; 2] = [22, 3];
/// The first bytes of HTTP/2.
const HTTP2: &[u8; 4] = b"PRI ";
/// A fatal alert, as TLS says it before anything is agreed: handshake_failure.
pub(crate) const NO_TLS_HERE: [u8; 7] = [21, 3, 3, 0, 2, 2, 40];
/// The same of a server that has no room: internal_error, the only alert that blames neither the peer nor its certificate.
pub(crate) const NO_ROOM_UNDER_TLS: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

/// What a connection begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// A handshake of TLS.
    Tls,
    /// HTTP/2.
    Http2,
    /// Something else: frames.
    Frames,
}

/// What begins on a connection; none: its peer left. Takes nothing off it.
///
/// As a frame's header `PRI ` would announce a body over `FRAME_BYTES_MAX`, and a record of TLS one of at least 790 bytes, which no
/// Hello has: so nothing is ambiguous.
pub(crate) async fn begins(io: &TcpStream) -> io::Result<Option<First>> {
    let mut first = [0; HTTP2.len()];
    loop {
        let came = io.peek(&mut first).await?;
        match &first[..came] {
            [] => return Ok(None),
            bytes if bytes.starts_with(&HANDSHAKE_RECORD) => return Ok(Some(First::Tls)),
            bytes if bytes == HTTP2 => return Ok(Some(First::Http2)),
            bytes if HTTP2.starts_with(bytes) || HANDSHAKE_RECORD.starts_with(bytes) => {
                // What there is of them would be seen again at once.
                tokio::time::sleep(FIRST_BYTES_PAUSE).await;
            }
            _ => return Ok(Some(First::Frames)),
        }
    }
}

/// Says a last word and closes. What the peer still sends is dropped for a moment: a socket that is closed with bytes unread takes
/// back what was said.
pub(crate) async fn part(mut io: TcpStream, word: &[u8]) {
    let parting = async {
        io.write_all(word).await?;
        io.shutdown().await?;
        let (mut dropped, mut bytes) = (0, [0u8; 1024]);
        while dropped < HANDSHAKE_PARTING_BYTES_MAX {
            match io.read(&mut bytes).await? {
                0 => break,
                read => dropped += read,
            }
        }
        io::Result::Ok(())
    };
    let patience = Duration::from_millis(HANDSHAKE_PARTING_MS_MAX);
    if let Ok(Err(error)) = tokio::time::timeout(patience, parting).await {
        tracing::debug!(%error, "a refused peer had left");
    }
}
