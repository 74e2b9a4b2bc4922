//! The receiving half of a socket, without the socket. Owns: putting frames together from whatever pieces arrive, and
//! giving each descriptor to the frame that it was sent with. Must not know: system calls.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;

use crate::frame::{Frame, FrameHeader, take_check};
use crate::large::Held;
use crate::limits::{FDS_PENDING_MAX, FRAME_HEADER_BYTES, READ_BUFFER_BYTES};

/// Bytes that arrived and are not taken as frames yet.
///
/// Small frames are cut out of `buffer`. A frame that is larger than the buffer gets a body of its own once its header is known
/// and there is memory for it, and the rest of it is received straight into that:
///
/// ```text
///   buffer: ..taken.. [start) header body header bo (end] free
///   large:  none, or  [ body: filled ) still to come ]   and then the buffer is empty
/// ```
#[derive(Debug)]
pub(crate) struct Inbound {
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    large: Option<Large>,
    /// The header of a large frame that has no memory yet; it and what came of the body are in the buffer.
    wanted: Option<FrameHeader>,
    /// Bytes received since the connection began.
    received: u64,
    /// Whether each body ends with a check, as over a network.
    checked: bool,
    /// Descriptors, each with `received` as it was after the receive that brought it.
    fds: VecDeque<(u64, OwnedFd)>,
}

#[derive(Debug)]
struct Large {
    header: FrameHeader,
    body: Vec<u8>,
    filled: usize,
    /// Its part of what all large frames may take, where that is bounded.
    held: Option<Held>,
}

impl Inbound {
    pub(crate) fn new() -> Self {
        let buffer = vec![0; READ_BUFFER_BYTES].into_boxed_slice();
        Self {
            buffer,
            start: 0,
            end: 0,
            large: None,
            wanted: None,
            received: 0,
            checked: false,
            fds: VecDeque::new(),
        }
    }

    /// For frames that end with a check.
    pub(crate) fn checked() -> Self {
        Self { checked: true, ..Self::new() }
    }

    /// Whether no part of a frame is waiting for its rest.
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.end && self.large.is_none()
    }

    /// Bytes of a large frame whose header is here: [`Inbound::begin_large`] is due before anything else is received.
    pub(crate) fn wanted_bytes(&self) -> Option<usize> {
        self.wanted.map(|header| header.body_bytes as usize)
    }

    /// Gives the large frame its memory. `held`: its part of what all may take, where that is bounded.
    pub(crate) fn begin_large(&mut self, held: Option<Held>) {
        let Some(header) = self.wanted.take() else { return };
        let rest = &self.buffer[self.start + FRAME_HEADER_BYTES..self.end];
        let filled = rest.len();
        let mut body = vec![0; header.body_bytes as usize];
        body[..filled].copy_from_slice(rest);
        self.large = Some(Large { header, body, filled, held });
        self.start = self.end;
    }

    /// Where the next bytes go. Never empty if [`Inbound::take`] has just said that there is no whole frame.
    pub(crate) fn space(&mut self) -> &mut [u8] {
        if let Some(large) = &mut self.large {
            return &mut large.body[large.filled..];
        }
        // What is left is less than a frame that fits the buffer: moved to the front, there is room for its rest.
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        &mut self.buffer[self.end..]
    }

    /// `bytes` were put into [`Inbound::space`], and `fd` came with them.
    pub(crate) fn advance(&mut self, bytes: usize, fd: Option<OwnedFd>) -> io::Result<()> {
        match &mut self.large {
            Some(large) => large.filled += bytes,
            None => self.end += bytes,
        }
        debug_assert!(self.end <= self.buffer.len());
        self.received += bytes as u64;
        if let Some(fd) = fd {
            if self.fds.len() >= FDS_PENDING_MAX {
                let message =
                    format!("over FDS_PENDING_MAX ({FDS_PENDING_MAX}) descriptors came within one frame");
                return Err(io::Error::new(io::ErrorKind::InvalidData, message));
            }
            self.fds.push_back((self.received, fd));
        }
        Ok(())
    }

    /// The next whole frame, if it is there.
    pub(crate) fn take(&mut self) -> io::Result<Option<Frame>> {
        if let Some(large) = self.large.take() {
            if large.filled < large.body.len() {
                self.large = Some(large);
                return Ok(None);
            }
            return self.complete(large.header, large.body, large.held).map(Some);
        }
        if self.wanted.is_some() {
            return Ok(None);
        }
        let waiting = &self.buffer[self.start..self.end];
        let Some((header, rest)) = waiting.split_first_chunk::<FRAME_HEADER_BYTES>() else {
            return Ok(None);
        };
        let header = FrameHeader::decode(*header)?;
        let body_bytes = header.body_bytes as usize;
        if let Some(body) = rest.get(..body_bytes) {
            let body = body.to_vec();
            self.start += FRAME_HEADER_BYTES + body_bytes;
            return self.complete(header, body, None).map(Some);
        }
        if FRAME_HEADER_BYTES + body_bytes > self.buffer.len() {
            self.wanted = Some(header);
        }
        Ok(None)
    }

    /// Takes bells out of what comes next. Whether anything but bells is there.
    pub(crate) fn skip_bells(&mut self) -> io::Result<bool> {
        if self.large.is_some() {
            return Ok(true); // a frame that has begun: the buffer is empty beside it
        }
        while let Some((header, _)) = self.buffer[self.start..self.end].split_first_chunk() {
            if !FrameHeader::decode(*header)?.is_bell() {
                return Ok(true);
            }
            self.start += FRAME_HEADER_BYTES;
        }
        Ok(false)
    }

    /// A descriptor arrives with the first byte of its frame, and the kernel ends a receive after bytes that carry one. So it
    /// belongs to the last frame that began in that receive: the first one whose end is not before the receive's end.
    ///
    /// ```text
    ///   received at once:  [ frame A ][ frame B, with fd )     A ends before the receive does, B does not: it is B's
    /// ```
    fn complete(&mut self, header: FrameHeader, mut body: Vec<u8>, held: Option<Held>) -> io::Result<Frame> {
        if self.checked {
            take_check(header, &mut body)?;
        }
        let frame_end = self.received - (self.end - self.start) as u64;
        let mut fd = None;
        while self.fds.front().is_some_and(|(received, _)| *received <= frame_end) {
            let next = self.fds.pop_front().map(|(_, fd)| fd);
            fd = fd.or(next);
        }
        Ok(Frame { verb: header.verb, flags: header.flags, body, fd, _held: held })
    }
}

#[cfg(test)]
mod tests;
