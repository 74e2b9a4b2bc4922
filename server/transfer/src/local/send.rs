//! Sending frames. Owns: which way a frame takes, short writes, waiting for room, what a send in part means.
//! Must not know: who waits for the answer.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::outbound::Outbound;
use super::socket::{LocalSocket, gone, timed_out};
use crate::frame::{FrameHeader, frame_check};
#[cfg(doc)]
use crate::limits::FRAME_BYTES_MAX;
use crate::limits::{
    FDS_PER_FRAME_MAX, FRAME_CHECK_BYTES, RING_BODY_BYTES_MAX, RING_ROOM_PAUSE_MAX, SEND_WAIT,
};
use crate::ring::Rings;

impl LocalSocket {
    /// Sends a frame, waiting at most [`SEND_WAIT`] for a peer that does not read.
    ///
    /// # Errors
    /// See the module text; `InvalidInput` for a body over [`FRAME_BYTES_MAX`] or too many descriptors
    /// (nothing was sent).
    pub fn send(&self, verb: u8, flags: u8, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_by(verb, flags, body, fds, Instant::now() + SEND_WAIT)
    }

    /// Sends a frame by a deadline. A frame that could be sent only in part breaks the connection: both
    /// directions are shut down, so that the peer cannot take the rest for a frame.
    ///
    /// # Errors
    /// As [`LocalSocket::send`].
    pub fn send_by(
        &self,
        verb: u8,
        flags: u8,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> io::Result<()> {
        let check_bytes = if self.is_network() { FRAME_CHECK_BYTES } else { 0 };
        let header = FrameHeader::new(verb, flags, body.len() + check_bytes)?;
        if fds.len() > FDS_PER_FRAME_MAX {
            let message =
                format!("{} descriptors are over FDS_PER_FRAME_MAX ({FDS_PER_FRAME_MAX})", fds.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut outbound = self.outbound(deadline)?;
        if let Some(rings) = self.rings.get() {
            let fits = fds.is_empty() && body.len() <= RING_BODY_BYTES_MAX;
            if fits && !outbound.owed {
                return self.send_in_ring(rings, &mut outbound, header, body, deadline);
            }
            if !outbound.owed {
                self.send_in_ring(rings, &mut outbound, FrameHeader::ON_SOCKET, &[], deadline)?;
                outbound.owed = true;
            }
        }
        self.send_on_socket(header, body, fds, deadline)?;
        outbound.owed = false;
        Ok(())
    }

    fn send_on_socket(
        &self,
        header: FrameHeader,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
        deadline: Instant,
    ) -> io::Result<()> {
        let check = if self.is_network() { &frame_check(header, body)[..] } else { &[] };
        let header = header.encode();
        let total = header.len() + body.len() + check.len();
        let mut sent = 0;
        while sent < total {
            // Short writes resume from the remainder. Header of 8 bytes, body of 100, check of 4:
            //   sent   0: header[0..] body[0..]  check[0..]   with the descriptors
            //   sent   5: header[5..] body[0..]  check[0..]   the descriptors went with the first byte: never again
            //   sent  60:             body[52..] check[0..]
            let mut before = 0;
            let pieces = [&header[..], body, check].map(|piece| {
                let rest = &piece[sent.saturating_sub(before).min(piece.len())..];
                before += piece.len();
                IoSlice::new(rest)
            });
            let attached = if sent == 0 { fds } else { &[] };
            match self.send_pieces(&pieces, attached) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait(PollFlags::OUT, Some(deadline))? {
                        return self.abandon(sent, timed_out("to send"));
                    }
                }
                // PIPE, CONNRESET: the peer is gone. NOBUFS, NOMEM, TOOMANYREFS: the system's limits. None
                // can be resumed.
                Err(error) => return self.abandon(sent, error),
            }
        }
        self.flush(deadline)
    }

    fn send_pieces(&self, pieces: &[IoSlice<'_>; 3], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
        match &self.secured {
            None => Ok(send_some(&self.fd, pieces, fds)?),
            Some(secured) => {
                let mut stream = secured.lock().unwrap_or_else(PoisonError::into_inner);
                stream.ask_again();
                stream.write(pieces)
            }
        }
    }

    /// Sends what was encrypted and has not left: a frame that was sent in part would keep its reader waiting.
    fn flush(&self, deadline: Instant) -> io::Result<()> {
        let Some(secured) = &self.secured else { return Ok(()) };
        loop {
            {
                let mut stream = secured.lock().unwrap_or_else(PoisonError::into_inner);
                stream.ask_again();
                match stream.write(&[]) {
                    Ok(_) if !stream.has_unsent() => return Ok(()),
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return self.abandon(1, error),
                }
            }
            if !self.wait(PollFlags::OUT, Some(deadline))? {
                return self.abandon(1, timed_out("to send"));
            }
        }
    }

    /// Writes into the ring, waiting for room, and rings if the peer dozes.
    fn send_in_ring(
        &self,
        rings: &Rings,
        outbound: &mut Outbound,
        header: FrameHeader,
        body: &[u8],
        deadline: Instant,
    ) -> io::Result<()> {
        let mut pause = Duration::ZERO;
        loop {
            if rings.is_closed() {
                return Err(gone("the peer hung up"));
            }
            if rings.write(&mut outbound.written, header, body)? {
                break;
            }
            if Instant::now() >= deadline {
                return Err(timed_out("to send"));
            }
            if self.peer_is_gone()? {
                return Err(gone("the peer hung up"));
            }
            // A reader that keeps up makes room at once; one that does not must not cost a core.
            std::thread::sleep(pause);
            pause = (pause * 2 + Duration::from_micros(10)).min(RING_ROOM_PAUSE_MAX);
        }
        if !rings.must_ring() {
            return Ok(());
        }
        match send_some(&self.fd, &[IoSlice::new(&FrameHeader::BELL.encode())], &[]) {
            // A socket that is full wakes its reader without a bell.
            Err(Errno::AGAIN) => Ok(()),
            Ok(bytes) if bytes == FrameHeader::BELL.encode().len() => Ok(()),
            Ok(bytes) => self.abandon(bytes, timed_out("to send")),
            Err(errno) => self.abandon(0, errno.into()),
        }
    }

    /// The turn to send. One whose deadline is over does not wait for another sender.
    fn outbound(&self, deadline: Instant) -> io::Result<MutexGuard<'_, Outbound>> {
        match self.outbound.try_lock() {
            Ok(turn) => Ok(turn),
            Err(TryLockError::Poisoned(turn)) => Ok(turn.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => Err(timed_out("to send")),
            Err(TryLockError::WouldBlock) => Ok(self.outbound.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Gives up a send. What was sent in part cannot be taken back, so nothing may follow it.
    fn abandon(&self, sent: usize, error: io::Error) -> io::Result<()> {
        if sent > 0 {
            self.shutdown();
        }
        Err(if error.kind() == io::ErrorKind::BrokenPipe { gone("the peer hung up") } else { error })
    }
}

/// One `sendmsg` that neither blocks nor raises SIGPIPE.
pub(super) fn send_some(
    fd: &OwnedFd,
    pieces: &[IoSlice<'_>],
    fds: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_FRAME_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(fds));
        assert!(pushed, "the space is made for FDS_PER_FRAME_MAX descriptors, which the caller checked");
    }
    rustix::net::sendmsg(fd, pieces, &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}
