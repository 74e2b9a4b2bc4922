//! A TCP socket that does not block. Owns: not asking the system for what it said a moment ago that there is not.
//! Must not know: what the bytes are.
//!
//! A read that gave less than there was room for emptied the socket, and a write that took less than it was given
//! filled it. The next one would only fail, so it fails here, until [`Socket::wait`] heard from the system.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::sockopt;

use super::near::hold_little_if_near;
use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_PROBE_PAUSE, KEEPALIVE_PROBES};

/// A connected socket, and what it may be asked for.
#[derive(Debug)]
pub(super) struct Socket {
    stream: TcpStream,
    readable: bool,
    writable: bool,
}

/// What a wait ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    /// There is room to write.
    pub(super) room: bool,
    /// The waker was rung.
    pub(super) waker: bool,
}

impl Socket {
    /// Small headers leave at once, a peer that vanished while nothing is under way is noticed, no call blocks, and what
    /// waits for a near end is little.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE_PROBE_PAUSE)?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        hold_little_if_near(&stream)?;
        Ok(Self { stream, readable: true, writable: true })
    }

    /// Reads into the pieces, one after another. 0: the peer closed its end, or there is no room in them.
    pub(super) fn receive(&mut self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if !self.readable {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let room: usize = pieces.iter().map(|piece| piece.len()).sum();
        let read = again(|| self.stream.read_vectored(pieces));
        // The end of the stream is there to be read again.
        self.readable = matches!(read, Ok(count) if count == room || count == 0);
        read
    }

    /// The next read asks the system.
    pub(super) fn look_again(&mut self) {
        self.readable = true;
    }

    /// The next read and the next write ask the system.
    pub(super) fn ask_again(&mut self) {
        (self.readable, self.writable) = (true, true);
    }

    /// The descriptor alone.
    pub(super) fn into_fd(self) -> OwnedFd {
        self.stream.into()
    }

    /// A second descriptor of the same socket.
    pub(super) fn second_fd(&self) -> io::Result<OwnedFd> {
        self.stream.as_fd().try_clone_to_owned()
    }

    /// Writes the pieces, one after another, as far as there is room.
    pub(super) fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.writable {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let written = again(|| self.stream.write_vectored(pieces));
        self.writable = matches!(written, Ok(count) if count == bytes);
        match written {
            Ok(0) if bytes > 0 => Err(io::ErrorKind::WriteZero.into()),
            written => written,
        }
    }

    /// Waits for bytes or room or both, for a hang-up, for the waker, or for so long. It may end for nothing.
    pub(super) fn wait(
        &mut self,
        bytes: bool,
        room: bool,
        waker: BorrowedFd<'_>,
        wait: Option<Duration>,
    ) -> io::Result<Heard> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::IN, bytes);
        events.set(PollFlags::OUT, room);
        let timeout = wait.map(timespec);
        let mut fds = [
            PollFd::from_borrowed_fd(self.stream.as_fd(), events),
            PollFd::from_borrowed_fd(waker, PollFlags::IN),
        ];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Heard { room: false, waker: true }),
            Err(errno) => return Err(errno.into()),
        }
        let (stream, waker) = (fds[0].revents(), !fds[1].revents().is_empty());
        let ended = stream.intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        self.readable |= ended || stream.contains(PollFlags::IN);
        self.writable |= ended || stream.contains(PollFlags::OUT);
        Ok(Heard { room: self.writable, waker })
    }

    /// Waits for any of `events`, or for a hang-up.
    ///
    /// # Errors
    /// `TimedOut` if the deadline passed first.
    pub(super) fn wait_until(&mut self, events: PollFlags, deadline: Instant) -> io::Result<()> {
        let timeout = timespec(deadline.saturating_duration_since(Instant::now()));
        match rustix::event::poll(&mut [PollFd::new(&self.stream, events)], Some(&timeout)) {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::INTR) => {
                self.ask_again();
                Ok(())
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Ends the connection both ways.
    pub(super) fn shutdown(&self) {
        // NotConnected: it has ended already.
        self.stream.shutdown(Shutdown::Both).unwrap_or_default();
    }
}

/// For rustls: ciphertext that leaves.
impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send(pieces)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn timespec(wait: Duration) -> Timespec {
    Timespec { tv_sec: wait.as_secs().min(1 << 31).cast_signed(), tv_nsec: i64::from(wait.subsec_nanos()) }
}

/// A call that a signal interrupted is made again.
fn again(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
