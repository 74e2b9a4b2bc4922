//! What goes out. Owns: headers that wait to leave, with one payload behind them. Must not know: what they say.

use std::io::{self, IoSlice};

use super::stream::FramedStream;
use super::wire::HEADER_BYTES;
use crate::limits::HEADERS_WAITING_MAX;

/// Headers that have not left yet.
#[derive(Debug)]
pub(super) struct Outbox {
    headers: Vec<u8>,
    sent: usize,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self { headers: Vec::with_capacity(HEADERS_WAITING_MAX * HEADER_BYTES), sent: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.headers.is_empty()
    }

    /// Whether no more headers may be added before some have left.
    pub(super) fn is_full(&self) -> bool {
        self.headers.len() >= HEADERS_WAITING_MAX * HEADER_BYTES
    }

    /// Adds a header behind the others.
    pub(super) fn push(&mut self, header: [u8; HEADER_BYTES]) {
        assert!(!self.is_full(), "whoever adds headers looks whether there is room");
        self.headers.extend_from_slice(&header);
    }

    /// Writes the headers and then the payload, as much as there is room for; gives the bytes of the payload
    /// that left.
    ///
    /// # Errors
    /// `WouldBlock` if nothing could leave; else as writing.
    pub(super) fn send(&mut self, stream: &mut FramedStream, payload: &[u8]) -> io::Result<usize> {
        let waiting = self.headers.len() - self.sent;
        let written = stream.write(&[IoSlice::new(&self.headers[self.sent..]), IoSlice::new(payload)])?;
        // Headers of 64 bytes, a payload of 100: 40 written leave 24 and 100; 80 leave none and 84.
        self.sent += written.min(waiting);
        if self.sent == self.headers.len() {
            self.headers.clear();
            self.sent = 0;
        }
        Ok(written.saturating_sub(waiting))
    }
}
