//! gRPC over HTTP/2 by hand, byte for byte, for callers that no library would be: one that opens no window, or stops within a frame.
//! Owns: frames, and one connection of them. Must not know: what a server does about it.

use crate::flood::{Knock, PREFACE, Target};
use anyhow::{Result, ensure};
use std::time::Duration;

/// Kinds of frames.
pub const DATA: u8 = 0;
/// See [`DATA`].
pub const HEADERS: u8 = 1;
/// See [`DATA`].
pub const RST_STREAM: u8 = 3;
/// See [`DATA`].
pub const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
/// How long a busy server may take to greet.
const GREETING: Duration = Duration::from_secs(10);
/// The last frame of its stream.
pub const END_STREAM: u8 = 1;
/// The last frame of its headers.
pub const END_HEADERS: u8 = 4;
/// The setting of how much a peer may send on a stream before it is told that it may send more.
const INITIAL_WINDOW_SIZE: u8 = 4;
/// A payload that every peer takes, whatever it was told.
const PAYLOAD_BYTES: usize = 16 << 10;

/// One frame.
#[must_use]
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&frame_header(kind, flags, stream, payload.len())[..], payload].concat()
}

/// What comes before a payload of so many bytes.
#[must_use]
pub fn frame_header(kind: u8, flags: u8, stream: u32, payload_bytes: usize) -> [u8; 9] {
    let [_, a, b, c] = (payload_bytes as u32).to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    [a, b, c, kind, flags, d, e, f, g]
}

/// A header, spelled out.
#[must_use]
pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let (name, value) = (name.as_bytes(), value.as_bytes());
    [&[0x40, name.len() as u8], name, &[value.len() as u8], value].concat()
}

/// The frames of an answer: their kinds and payloads, on one stream.
#[must_use]
pub fn frames(mut bytes: &[u8], stream: u8) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<9>() {
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]) as usize;
        let Some((payload, rest)) = rest.split_at_checked(length) else { break };
        if header[8] == stream {
            found.push((header[3], payload.to_vec()));
        }
        bytes = rest;
    }
    found
}

/// One connection.
pub struct Http2 {
    knock: Knock,
    streams: u32,
}

impl Http2 {
    /// Connects, says how much may be sent to it on each stream, and waits until it may send more than what every connection may
    /// to begin with: a server ends a connection that sends more than that before.
    ///
    /// # Errors
    /// Nobody listens, or nobody greets.
    pub fn connect(target: &Target, window_bytes: u32) -> Result<Http2> {
        let mut knock = target.knock()?;
        let setting = [&[0, INITIAL_WINDOW_SIZE][..], &window_bytes.to_be_bytes()].concat();
        knock.say(&[PREFACE, &frame(SETTINGS, 0, 0, &setting)].concat())?;
        let opens = |said: &[u8]| frames(said, 0).iter().any(|(kind, _)| *kind == WINDOW_UPDATE);
        let (_, said) = knock.listen_for(GREETING, opens)?;
        ensure!(opens(&said), "the server did not open the connection's window: {said:?}");
        Ok(Http2 { knock, streams: 0 })
    }

    /// Begins a call; its message is still to be said.
    ///
    /// # Errors
    /// The server hung up.
    pub fn begin(&mut self, path: &str) -> Result<u32> {
        let stream = 2 * self.streams + 1;
        self.streams += 1;
        let fields = [
            literal(":path", path),
            literal(":authority", "localhost"),
            vec![0x83, 0x86], // POST, http
            literal("content-type", "application/grpc"),
            literal("te", "trailers"),
        ];
        self.knock.say(&frame(HEADERS, END_HEADERS, stream, &fields.concat()))?;
        Ok(stream)
    }

    /// A whole call of one message.
    ///
    /// # Errors
    /// The server hung up.
    pub fn call(&mut self, path: &str, message: &[u8]) -> Result<u32> {
        let stream = self.begin(path)?;
        let prefixed = [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat();
        let mut pieces = prefixed.chunks(PAYLOAD_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            let flags = if pieces.peek().is_none() { END_STREAM } else { 0 };
            self.knock.say(&frame(DATA, flags, stream, piece))?;
        }
        Ok(stream)
    }

    /// Says bytes as they are.
    ///
    /// # Errors
    /// The server hung up.
    pub fn say(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.knock.say(bytes)?)
    }

    /// Takes what comes, and says nothing to it, until the server hangs up or for so long; whether it hung up, and what it said.
    ///
    /// # Errors
    /// The socket cannot be set up.
    pub fn listen(&mut self, wait: Duration) -> Result<(bool, Vec<u8>)> {
        self.knock.listen(wait)
    }
}
