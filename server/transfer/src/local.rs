//! The local socket: frames and descriptors over a Unix stream socket.
//!
//! Owns: sending and receiving whole frames, waiting, noticing that the peer hung up. Must not know: what a verb means.
//!
//! The same type serves a server's thread ([`LocalSocket::recv`], [`LocalSocket::recv_spin`]) and an asynchronous client:
//! [`LocalSocket::try_recv_spin`] waits a moment on the calling thread, because an answer is usually microseconds away, then
//! says `WouldBlock`; the caller goes on with its reactor on [`AsFd`] and calls [`LocalSocket::try_recv`] when the socket is
//! readable. The socket itself is in blocking mode; calls that must not block say so one by one.
//!
//! Waiting awake is what makes small pages fast. Measured between two threads of a virtual machine, round trip p50: both
//! sides sleep 43 us (the cores go idle and must be woken), one side spins 17 us, both spin 5 us. The spin yields the core
//! at every turn, so whoever else has work there is served first.
//!
//! Errors: `UnexpectedEof` the peer is gone; `TimedOut` the deadline passed; `WouldBlock` nothing there yet; `InvalidData`
//! the peer does not speak this protocol; `OutOfMemory` there was no room for a large frame by the deadline; else what the system says. After any error but `WouldBlock`, and `TimedOut` of a
//! receive, the connection is of no further use.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::frame::{Frame, FrameHeader};
use crate::inbound::Inbound;
use crate::large::LargeFrames;
#[cfg(doc)]
use crate::limits::FRAME_BYTES_MAX;
use crate::limits::{FDS_PER_FRAME_MAX, HOLD_WAIT, SEND_BUFFER_BYTES, SEND_WAIT};

/// Who is at the other end, as the kernel saw it when the connection was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its process, or 0 if that is not visible from this process's PID namespace.
    pub pid: i32,
    /// Its effective user.
    pub uid: u32,
    /// Its effective group.
    pub gid: u32,
}

/// One connection that carries frames. Receivers exclude one another, so do senders; the two directions are independent.
#[derive(Debug)]
pub struct LocalSocket {
    fd: OwnedFd,
    inbound: Mutex<Inbound>,
    outbound: Mutex<()>,
    /// Where the memory of large frames is bounded over all connections.
    large: Option<Arc<LargeFrames>>,
}

impl LocalSocket {
    /// Speaks frames over a connected Unix stream socket.
    ///
    /// # Errors
    /// The descriptor cannot be put into blocking mode.
    pub fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        Ok(Self::from_fd(stream.into()))
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        // The system caps the wish; where it holds less, a long frame takes more calls.
        rustix::net::sockopt::set_socket_send_buffer_size(&fd, SEND_BUFFER_BYTES).unwrap_or_default();
        Self { fd, inbound: Mutex::new(Inbound::new()), outbound: Mutex::new(()), large: None }
    }

    /// Takes the memory of its large frames from what all connections may have.
    #[must_use]
    pub fn with_large(self, large: &Arc<LargeFrames>) -> Self {
        Self { large: Some(Arc::clone(large)), ..self }
    }

    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// `TimedOut` if nobody accepts before the deadline (a stopped server whose backlog is full), else what the system says.
    pub fn connect(path: &Path, deadline: Instant) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let flags = SocketFlags::CLOEXEC;
        let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(timed_out("to connect"));
            }
            // A connect to a full backlog waits as long as a send would.
            let timeout = rustix::net::sockopt::Timeout::Send;
            rustix::net::sockopt::set_socket_timeout(&fd, timeout, Some(left.max(Duration::from_millis(1))))?;
            match rustix::net::connect(&fd, &address) {
                Ok(()) => {
                    rustix::net::sockopt::set_socket_timeout(&fd, timeout, None)?;
                    return Ok(Self::from_fd(fd));
                }
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Two connected sockets.
    ///
    /// # Errors
    /// The process or the system is out of descriptors.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok((Self::from_fd(one), Self::from_fd(other)))
    }

    /// Sends a frame, waiting at most [`SEND_WAIT`] for a peer that does not read.
    ///
    /// # Errors
    /// See the module text; `InvalidInput` for a body over [`FRAME_BYTES_MAX`] or too many descriptors (nothing was sent).
    pub fn send(&self, verb: u8, flags: u8, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_by(verb, flags, body, fds, Instant::now() + SEND_WAIT)
    }

    /// Sends a frame by a deadline. A frame that could be sent only in part breaks the connection: both directions are
    /// shut down, so that the peer cannot take the rest for a frame.
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
        let header = FrameHeader::new(verb, flags, body.len())?.encode();
        if fds.len() > FDS_PER_FRAME_MAX {
            let message =
                format!("{} descriptors are over FDS_PER_FRAME_MAX ({FDS_PER_FRAME_MAX})", fds.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let _turn = self.outbound(deadline)?;
        let total = header.len() + body.len();
        let mut sent = 0;
        while sent < total {
            // Short writes resume from the remainder. Header of 8 bytes, body of 100:
            //   sent   0: header[0..] body[0..]    with the descriptors
            //   sent   5: header[5..] body[0..]    the descriptors went with the first byte: never again
            //   sent  60:             body[52..]
            let pieces = [
                IoSlice::new(&header[sent.min(header.len())..]),
                IoSlice::new(&body[sent.saturating_sub(header.len())..]),
            ];
            let attached = if sent == 0 { fds } else { &[] };
            match send_some(&self.fd, &pieces, attached) {
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if !self.wait(PollFlags::OUT, Some(deadline))? {
                        return self.abandon(sent, timed_out("to send"));
                    }
                }
                // PIPE, CONNRESET: the peer is gone. NOBUFS, NOMEM, TOOMANYREFS: the system's limits. None can be resumed.
                Err(errno) => return self.abandon(sent, errno.into()),
            }
        }
        Ok(())
    }

    /// Receives the next frame, waiting until `deadline`, or as long as the peer lives.
    ///
    /// # Errors
    /// See the module text. After `TimedOut` a later call goes on where this one stopped.
    pub fn recv(&self, deadline: Option<Instant>) -> io::Result<Frame> {
        self.receive(deadline, None)
    }

    /// `whole`: how long a frame may take from its first byte on, where that is bounded.
    fn receive(&self, mut deadline: Option<Instant>, mut whole: Option<Duration>) -> io::Result<Frame> {
        let mut inbound = self.inbound();
        loop {
            if let Some(frame) = inbound.take()? {
                return Ok(frame);
            }
            if let Some(whole) = whole.take_if(|_| !inbound.is_empty()) {
                let end = Instant::now() + whole;
                deadline = Some(deadline.map_or(end, |deadline| deadline.min(end)));
            }
            if !self.begin_large(&mut inbound, deadline.unwrap_or_else(|| Instant::now() + HOLD_WAIT)) {
                return Err(io::Error::new(
                    io::ErrorKind::OutOfMemory,
                    "no room for a large frame by the deadline",
                ));
            }
            if deadline.is_some() && !self.wait(PollFlags::IN, deadline)? {
                return Err(timed_out("to receive"));
            }
            match self.fill(&mut inbound, RecvFlags::empty()) {
                // Somebody else took the bytes that the wait saw, or made the descriptor non-blocking.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if !self.wait(PollFlags::IN, deadline)? {
                        return Err(timed_out("to receive"));
                    }
                }
                filled => filled?,
            }
        }
    }

    /// The next frame if it is there, else `WouldBlock` (and then the system's own buffer is empty, as edge-triggered
    /// reactors want it).
    ///
    /// # Errors
    /// See the module text.
    pub fn try_recv(&self) -> io::Result<Frame> {
        let mut inbound = self.inbound();
        loop {
            if let Some(frame) = inbound.take()? {
                return Ok(frame);
            }
            if !self.begin_large(&mut inbound, Instant::now()) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.fill(&mut inbound, RecvFlags::DONTWAIT)?;
        }
    }

    /// As [`LocalSocket::try_recv`], but looks again and again for up to `spin` before it says `WouldBlock`.
    ///
    /// # Errors
    /// See the module text.
    pub fn try_recv_spin(&self, spin: Duration) -> io::Result<Frame> {
        let end = Instant::now() + spin;
        loop {
            match self.try_recv() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < end => {
                    rustix::thread::sched_yield();
                }
                received => return received,
            }
        }
    }

    /// The next frame for a server: stays awake for up to `spin` first, because its client may ask again soon; then waits
    /// as long as the peer lives for a frame to begin, but at most `whole` for one that began to be there whole.
    ///
    /// # Errors
    /// See the module text.
    pub fn recv_spin(&self, spin: Duration, whole: Duration) -> io::Result<Frame> {
        match self.try_recv_spin(spin) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.receive(None, Some(whole)),
            received => received,
        }
    }

    /// Whether the peer closed its end, without reading anything. Frames sent before may still be there to receive.
    ///
    /// # Errors
    /// The system has no memory for `poll`.
    pub fn peer_hung_up(&self) -> io::Result<bool> {
        self.wait(PollFlags::RDHUP, Some(Instant::now()))
    }

    /// Whether the peer closed its end altogether, or the connection was ended here: nobody will read what is sent. A peer that
    /// only sends no more can still read.
    ///
    /// # Errors
    /// The system has no memory for `poll`.
    pub fn peer_is_gone(&self) -> io::Result<bool> {
        // No event is asked for: a hang-up is told nevertheless.
        self.wait(PollFlags::empty(), Some(Instant::now()))
    }

    /// Bytes that were sent and that the peer has not read yet, as the system accounts for them: 0 only if it has read all, or
    /// is gone.
    ///
    /// # Errors
    /// The system does not say.
    pub fn unread_bytes(&self) -> io::Result<usize> {
        // SAFETY: on a socket, this request writes one integer to where the getter has room for one.
        let unread = unsafe {
            let getter =
                rustix::ioctl::Getter::<{ libc::TIOCOUTQ as rustix::ioctl::Opcode }, libc::c_int>::new();
            rustix::ioctl::ioctl(&self.fd, getter)?
        };
        Ok(usize::try_from(unread).unwrap_or(0))
    }

    /// Ends the connection in both directions. Threads that wait in it wake with `UnexpectedEof`.
    pub fn shutdown(&self) {
        // NOTCONN: it has ended already.
        rustix::net::shutdown(&self.fd, Shutdown::Both).unwrap_or_default();
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// The system does not know.
    pub fn peer(&self) -> io::Result<Peer> {
        crate::process::peer_of(self.fd.as_fd())
    }

    fn inbound(&self) -> MutexGuard<'_, Inbound> {
        self.inbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn to send. One whose deadline is over does not wait for another sender.
    fn outbound(&self, deadline: Instant) -> io::Result<MutexGuard<'_, ()>> {
        match self.outbound.try_lock() {
            Ok(turn) => Ok(turn),
            Err(TryLockError::Poisoned(turn)) => Ok(turn.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => Err(timed_out("to send")),
            Err(TryLockError::WouldBlock) => Ok(self.outbound.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    /// Gives a large frame that began its memory; false: there was none by the deadline.
    fn begin_large(&self, inbound: &mut Inbound, deadline: Instant) -> bool {
        let Some(bytes) = inbound.wanted_bytes() else { return true };
        let held = match &self.large {
            None => None,
            Some(large) => match large.hold(bytes, deadline) {
                None => return false,
                held => held,
            },
        };
        inbound.begin_large(held);
        true
    }

    /// One `recvmsg`. Descriptors arrive close-on-exec.
    fn fill(&self, inbound: &mut Inbound, flags: RecvFlags) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_FRAME_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut pieces = [IoSliceMut::new(inbound.space())];
            match rustix::net::recvmsg(&self.fd, &mut pieces, &mut ancillary, flags | RecvFlags::CMSG_CLOEXEC)
            {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                // AGAIN becomes WouldBlock; CONNRESET: the peer left with our bytes unread.
                Err(Errno::CONNRESET) => return Err(gone("the peer left")),
                Err(errno) => return Err(errno.into()),
            }
        };
        let fds = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        // Only the first descriptor belongs to a frame; others are closed here as they are dropped.
        let fd = fds.flatten().fold(None, |first: Option<OwnedFd>, fd| first.or(Some(fd)));
        if received.flags.contains(ReturnFlags::CTRUNC) {
            let message = "descriptors were lost: this process is at its limit of open files, or the peer sent over \
                           FDS_PER_FRAME_MAX at once";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        if received.bytes == 0 {
            let within =
                if inbound.is_empty() { "the peer hung up" } else { "the peer hung up within a frame" };
            return Err(gone(within));
        }
        inbound.advance(received.bytes, fd)
    }

    /// Waits for `events`; false if the deadline passed first. A hang-up counts as every event.
    fn wait(&self, events: PollFlags, deadline: Option<Instant>) -> io::Result<bool> {
        loop {
            let timeout = deadline.map(|deadline| {
                let left = deadline.saturating_duration_since(Instant::now());
                Timespec {
                    tv_sec: left.as_secs().min(1 << 31).cast_signed(),
                    tv_nsec: i64::from(left.subsec_nanos()),
                }
            });
            match rustix::event::poll(&mut [PollFd::new(&self.fd, events)], timeout.as_ref()) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
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

impl AsFd for LocalSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for LocalSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// One `sendmsg` that neither blocks nor raises SIGPIPE.
fn send_some(fd: &OwnedFd, pieces: &[IoSlice<'_>], fds: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_FRAME_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let pushed = ancillary.push(SendAncillaryMessage::ScmRights(fds));
        assert!(pushed, "the space is made for FDS_PER_FRAME_MAX descriptors, which the caller checked");
    }
    rustix::net::sendmsg(fd, pieces, &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the deadline {what} passed"))
}

fn gone(how: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, how.to_owned())
}

#[cfg(test)]
mod tests;
