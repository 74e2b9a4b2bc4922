//! The socket itself. Owns: connecting, agreeing on rings, waiting, noticing that the peer hung up. Must not
//! know: how a frame comes or goes.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt};

use super::outbound::Outbound;
use super::receiving::Receiving;
use crate::fabric::framed::FramedStream;
use crate::large::LargeFrames;
use crate::limits::SEND_BUFFER_BYTES;
use crate::peer::{Peer, peer_of};
use crate::ring::Rings;

/// One connection that carries frames. Receivers exclude one another, so do senders; the two directions are
/// independent.
#[derive(Debug)]
pub struct LocalSocket {
    pub(super) fd: OwnedFd,
    pub(super) receiving: Mutex<Receiving>,
    pub(super) outbound: Mutex<Outbound>,
    /// Once both sides have agreed on them, all frames go in their order.
    pub(super) rings: OnceLock<Rings>,
    /// Where the memory of large frames is bounded over all connections.
    pub(super) large: Option<Arc<LargeFrames>>,
    /// The peer is on another host, or speaks as if it were.
    network: bool,
    /// What carries the bytes where it is not the descriptor alone: that is a second one of its socket then.
    pub(super) secured: Option<Mutex<FramedStream>>,
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

    /// Speaks frames that end with a check over a stream to another host: no descriptors, no rings. A host that vanished is noticed
    /// within about a minute, whether anything is sent or not.
    ///
    /// # Errors
    /// The system refuses one of the stream's settings, or has no descriptor.
    pub fn over_network(stream: FramedStream) -> io::Result<Self> {
        let (fd, secured) = stream.take_apart()?;
        if secured.is_none() {
            rustix::io::ioctl_fionbio(&fd, false)?;
        }
        let receiving = Mutex::new(Receiving::checked());
        Ok(Self { network: true, receiving, secured: secured.map(Mutex::new), ..Self::on(fd) })
    }

    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        // The system caps the wish; where it holds less, a long frame takes more calls.
        sockopt::set_socket_send_buffer_size(&fd, SEND_BUFFER_BYTES).unwrap_or_default();
        Self::on(fd)
    }

    fn on(fd: OwnedFd) -> Self {
        Self {
            fd,
            receiving: Mutex::new(Receiving::new()),
            outbound: Mutex::default(),
            rings: OnceLock::new(),
            large: None,
            network: false,
            secured: None,
        }
    }

    /// Whether the peer is on another host, or speaks as if it were.
    #[must_use]
    pub fn is_network(&self) -> bool {
        self.network
    }

    /// Takes the memory of its large frames from what all connections may have.
    #[must_use]
    pub fn with_large(self, large: &Arc<LargeFrames>) -> Self {
        Self { large: Some(Arc::clone(large)), ..self }
    }

    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// `TimedOut` if nobody accepts before the deadline (a stopped server whose backlog is full), else what
    /// the system says.
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

    /// Makes rings, and sends their descriptor with this frame, the last one that does not go by them. Where
    /// they cannot be made, the frame goes alone and the socket stays as it is.
    ///
    /// # Errors
    /// As [`LocalSocket::send_by`].
    pub fn send_with_rings(&self, verb: u8, flags: u8, body: &[u8], deadline: Instant) -> io::Result<()> {
        let Ok((rings, fd)) = Rings::create() else { return self.send_by(verb, flags, body, &[], deadline) };
        self.send_by(verb, flags, body, &[fd.as_fd()], deadline)?;
        self.agree(rings)
    }

    /// Takes the rings that a peer sent with the frame just received.
    ///
    /// # Errors
    /// The memory is not fit for it, or cannot be mapped: the connection is of no further use.
    pub fn take_rings(&self, fd: &OwnedFd) -> io::Result<()> {
        self.agree(Rings::open(fd)?)
    }

    fn agree(&self, rings: Rings) -> io::Result<()> {
        let twice = |_| io::Error::new(io::ErrorKind::AlreadyExists, "this connection has rings already");
        self.rings.set(rings).map_err(twice)
    }

    /// Whether the peer closed its end, without reading anything. Frames sent before may still be there to
    /// receive.
    ///
    /// # Errors
    /// The system has no memory for `poll`.
    pub fn peer_hung_up(&self) -> io::Result<bool> {
        self.wait(PollFlags::RDHUP, Some(Instant::now()))
    }

    /// Whether the peer closed its end altogether, or the connection was ended here: nobody will read what is
    /// sent. A peer of this host that only sends no more can still read; over a network that is not told apart
    /// from one that is gone, and no peer of ours does it.
    ///
    /// # Errors
    /// The system has no memory for `poll`.
    pub fn peer_is_gone(&self) -> io::Result<bool> {
        // Where no event is asked for, a hang-up is told nevertheless.
        let events = if self.network { PollFlags::RDHUP } else { PollFlags::empty() };
        self.wait(events, Some(Instant::now()))
    }

    /// Bytes that were sent and that the peer has not read yet, as the system accounts for them: 0 only if it
    /// has read all, or is gone.
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

    /// Takes nothing more from the peer: what it had sent is still received, and can be answered; then comes `UnexpectedEof`.
    pub fn finish(&self) {
        // NOTCONN: it has ended already.
        rustix::net::shutdown(&self.fd, Shutdown::Read).unwrap_or_default();
    }

    /// Ends the connection in both directions. Threads that wait in it wake with `UnexpectedEof`.
    pub fn shutdown(&self) {
        if let Some(rings) = self.rings.get() {
            rings.close();
        }
        // NOTCONN: it has ended already.
        rustix::net::shutdown(&self.fd, Shutdown::Both).unwrap_or_default();
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// The system does not know.
    pub fn peer(&self) -> io::Result<Peer> {
        peer_of(self.fd.as_fd())
    }

    /// Waits for `events`; false if the deadline passed first. A hang-up counts as every event.
    pub(super) fn wait(&self, events: PollFlags, deadline: Option<Instant>) -> io::Result<bool> {
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

pub(super) fn timed_out(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("the deadline {what} passed"))
}

pub(super) fn gone(how: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, how.to_owned())
}
