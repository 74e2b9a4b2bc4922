//! Receiving frames. Owns: which way the next frame comes, spinning, dozing, waiting. Must not know: who
//! sends, what a verb means.
//!
//! Beside rings, frames come in the ring's order, and the socket brings only those that the ring announces,
//! and bells:
//!
//! ```text
//!   look at the ring --a frame--> done                 --"on the socket"--> receive there as without a ring
//!     |  nothing for long
//!     v
//!   doze, look once more, wait on the socket --bell--> look at the ring
//! ```

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};

use super::receiving::Receiving;
use super::socket::{LocalSocket, gone, timed_out};
use crate::frame::Frame;
use crate::inbound::Inbound;
use crate::limits::{FDS_PER_FRAME_MAX, FRAME_HEADER_BYTES, HOLD_WAIT, RING_LOOKS};

impl LocalSocket {
    /// Receives the next frame, waiting until `deadline`, or as long as the peer lives.
    ///
    /// # Errors
    /// See the module text. After `TimedOut` a later call goes on where this one stopped.
    pub fn recv(&self, deadline: Option<Instant>) -> io::Result<Frame> {
        self.receive(deadline, None)
    }

    /// `whole`: how long a frame may take from its first byte on, where that is bounded.
    fn receive(&self, mut deadline: Option<Instant>, mut whole: Option<Duration>) -> io::Result<Frame> {
        let mut receiving = self.receiving();
        loop {
            if let Some(frame) = self.look(&mut receiving)? {
                return Ok(frame);
            }
            if let Some(whole) = whole.take_if(|_| receiving.has_begun()) {
                let end = Instant::now() + whole;
                deadline = Some(deadline.map_or(end, |deadline| deadline.min(end)));
            }
            let inbound = &mut receiving.inbound;
            if !self.begin_large(inbound, deadline.unwrap_or_else(|| Instant::now() + HOLD_WAIT)) {
                return Err(io::Error::new(
                    io::ErrorKind::OutOfMemory,
                    "no room for a large frame by the deadline",
                ));
            }
            // What was decrypted already the system knows nothing of.
            if deadline.is_some() && self.secured.is_none() && !self.wait(PollFlags::IN, deadline)? {
                return Err(timed_out("to receive"));
            }
            match self.fill(&mut receiving, RecvFlags::empty()) {
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

    /// The next frame if it is there, else `WouldBlock` (and then the system's own buffer is empty, as
    /// edge-triggered reactors want it).
    ///
    /// # Errors
    /// See the module text.
    pub fn try_recv(&self) -> io::Result<Frame> {
        let mut receiving = self.receiving();
        loop {
            if let Some(frame) = self.look(&mut receiving)? {
                return Ok(frame);
            }
            if !self.begin_large(&mut receiving.inbound, Instant::now()) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            self.fill(&mut receiving, RecvFlags::DONTWAIT)?;
        }
    }

    /// As [`LocalSocket::try_recv`], but looks again and again for up to `spin` before it says `WouldBlock`.
    ///
    /// # Errors
    /// See the module text.
    pub fn try_recv_spin(&self, spin: Duration) -> io::Result<Frame> {
        let end = Instant::now() + spin;
        loop {
            if let Some(frame) = self.look_awake()? {
                return Ok(frame);
            }
            if Instant::now() >= end {
                return self.try_recv();
            }
            rustix::thread::sched_yield();
        }
    }

    /// The next frame for a server: stays awake for up to `spin` first, because its client may ask again
    /// soon; then waits as long as the peer lives for a frame to begin, but at most `whole` for one that
    /// began to be there whole.
    ///
    /// # Errors
    /// See the module text.
    pub fn recv_spin(&self, spin: Duration, whole: Duration) -> io::Result<Frame> {
        match self.try_recv_spin(spin) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.receive(None, Some(whole)),
            received => received,
        }
    }

    /// One turn of a spin: in the ring some looks without a system call, else one at the socket.
    fn look_awake(&self) -> io::Result<Option<Frame>> {
        let mut receiving = self.receiving();
        if let Some(rings) = self.rings.get() {
            receiving.rouse(rings);
            for _ in 0..RING_LOOKS {
                if let Some(frame) = receiving.next(Some(rings))? {
                    self.take_bell(&mut receiving);
                    return Ok(Some(frame));
                }
                if receiving.on_socket {
                    break;
                }
                std::hint::spin_loop();
            }
            if !receiving.on_socket {
                return Ok(None);
            }
        }
        drop(receiving);
        match self.try_recv() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            received => received.map(Some),
        }
    }

    /// The next frame if it is there. If it is not, and would come in the ring, the peer rings from now on.
    fn look(&self, receiving: &mut Receiving) -> io::Result<Option<Frame>> {
        let rings = self.rings.get();
        let mut found = receiving.next(rings)?;
        let Some(rings) = rings else { return Ok(found) };
        if found.is_none() && !receiving.on_socket {
            rings.doze();
            receiving.dozes = true;
            found = receiving.next(Some(rings))?;
        }
        if found.is_some() || receiving.on_socket {
            receiving.rouse(rings);
            self.take_bell(receiving);
        } else if receiving.inbound.skip_bells()? {
            // Announced first, sent then: what came before its announcement is not of this protocol.
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a frame came that the ring does not announce",
            ));
        }
        Ok(found)
    }

    /// Takes a bell that nobody needs off the socket, if it has come: what lies there counts as unread.
    fn take_bell(&self, receiving: &mut Receiving) {
        if receiving.bell_due && !receiving.has_begun() && self.fill(receiving, RecvFlags::DONTWAIT).is_ok() {
            receiving.bell_due = false;
        }
    }

    /// Takes back bytes that were read from the stream before it became this socket: fewer than a header has.
    ///
    /// # Errors
    /// `InvalidInput` for more.
    pub fn put_back(&self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() >= FRAME_HEADER_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "more than a part of a header"));
        }
        let inbound = &mut self.receiving().inbound;
        inbound.space()[..bytes.len()].copy_from_slice(bytes);
        inbound.advance(bytes.len(), None)
    }

    fn receiving(&self) -> MutexGuard<'_, Receiving> {
        self.receiving.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn fill(&self, receiving: &mut Receiving, flags: RecvFlags) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_PER_FRAME_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let inbound = &mut receiving.inbound;
        if let Some(secured) = &self.secured {
            let mut stream = secured.lock().unwrap_or_else(PoisonError::into_inner);
            stream.ask_again();
            let count = stream.read(inbound.space(), &mut []).map_err(left)?;
            return inbound.advance(count, None);
        }
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
}

/// A peer that left with our bytes unread has left like any other.
fn left(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::ConnectionReset => gone("the peer left"),
        io::ErrorKind::UnexpectedEof => gone("the peer hung up"),
        _ => error,
    }
}
