//! What only the receiver in turn may touch. Owns: in which order frames come by ring and socket. Must not
//! know: waiting.

use std::io;

use crate::frame::{FLAG_ON_SOCKET, Frame};
use crate::inbound::Inbound;
use crate::ring::Rings;

/// A receiver's place in the stream of frames.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) inbound: Inbound,
    /// Its position in the ring, where there is one.
    pub(super) read: u64,
    /// The ring said that the next frame is on the socket.
    pub(super) on_socket: bool,
    /// The peer was told that this side dozes.
    pub(super) dozes: bool,
    /// A bell is on its way that nobody needs any more.
    pub(super) bell_due: bool,
}

impl Receiving {
    pub(super) fn new() -> Self {
        Self { inbound: Inbound::new(), read: 0, on_socket: false, dozes: false, bell_due: false }
    }

    /// Of frames that came over a network.
    pub(super) fn checked() -> Self {
        Self { inbound: Inbound::checked(), ..Self::new() }
    }

    /// The next frame, if it is there. Makes no system call.
    pub(super) fn next(&mut self, rings: Option<&Rings>) -> io::Result<Option<Frame>> {
        let Some(rings) = rings else { return self.inbound.take() };
        if !self.on_socket {
            match rings.read(&mut self.read)? {
                Some(frame) if frame.flags & FLAG_ON_SOCKET != 0 => self.on_socket = true,
                other => return Ok(other),
            }
        }
        if !self.inbound.skip_bells()? {
            return Ok(None);
        }
        let frame = self.inbound.take()?;
        self.on_socket = frame.is_none();
        Ok(frame)
    }

    /// Whether a part of the next frame is here.
    pub(super) fn has_begun(&self) -> bool {
        self.on_socket || !self.inbound.is_empty()
    }

    /// The peer need not ring any more.
    pub(super) fn rouse(&mut self, rings: &Rings) {
        if std::mem::take(&mut self.dozes) && rings.rouse() {
            self.bell_due = true;
        }
    }
}
