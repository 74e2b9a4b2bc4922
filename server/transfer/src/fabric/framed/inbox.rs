//! What comes in. Owns: putting headers together, and reading the next one with the end of a payload. Must not
//! know: what headers say.

use std::io;

use super::stream::FramedStream;
use super::wire::HEADER_BYTES;
use crate::limits::HEADERS_WAITING_MAX;

/// The header that is arriving, and those behind it.
#[derive(Debug)]
pub(super) struct Inbox {
    headers: [u8; HEADERS_WAITING_MAX * HEADER_BYTES],
    /// `[taken, got)` has arrived and was not given out.
    taken: usize,
    got: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { headers: [0; HEADERS_WAITING_MAX * HEADER_BYTES], taken: 0, got: 0 }
    }

    /// Whether a header has begun to arrive.
    pub(super) fn has_begun(&self) -> bool {
        self.got > self.taken
    }

    /// The next header, once all of it is there. `alone`: no payload can come before the next headers, so that
    /// several are read at once.
    ///
    /// # Errors
    /// `WouldBlock` when the rest is not there yet; else as reading.
    pub(super) fn header(
        &mut self,
        stream: &mut FramedStream,
        alone: bool,
    ) -> io::Result<[u8; HEADER_BYTES]> {
        while self.got - self.taken < HEADER_BYTES {
            // What is left of several headers is less than one: it goes to the front.
            self.headers.copy_within(self.taken..self.got, 0);
            (self.taken, self.got) = (0, self.got - self.taken);
            let room = if alone { self.headers.len() } else { HEADER_BYTES };
            self.got += stream.read(&mut self.headers[self.got..room], &mut [])?;
        }
        let mut header = [0; HEADER_BYTES];
        header.copy_from_slice(&self.headers[self.taken..self.taken + HEADER_BYTES]);
        self.taken += HEADER_BYTES;
        Ok(header)
    }

    /// Reads what is there of a payload, of which `left` bytes are to come, and, if `into` has room for all of
    /// them, what is there of the header behind it. Gives the bytes of the payload.
    ///
    /// # Errors
    /// As reading.
    pub(super) fn payload(
        &mut self,
        stream: &mut FramedStream,
        into: &mut [u8],
        left: usize,
    ) -> io::Result<usize> {
        assert!(!self.has_begun() && into.len() <= left, "a payload follows its header, and ends with it");
        let room = into.len();
        let behind = if room == left { HEADER_BYTES } else { 0 };
        let read = stream.read(into, &mut self.headers[..behind])?;
        (self.taken, self.got) = (0, read.saturating_sub(room));
        Ok(read - self.got)
    }
}
