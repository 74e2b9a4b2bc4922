//! What is said to the service manager that started this process, in systemd's words (`sd_notify`). Owns: where it listens, one datagram
//! a message, descriptors that go with one, and how long all of it may take. Must not know: why something is said.

use crate::limits::{MANAGER_PAUSE, MANAGER_WAIT};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::time::{ClockId, clock_gettime};
use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where it listens, as the variable of the environment says.
pub(crate) const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// A service manager.
#[derive(Debug, Clone)]
pub(crate) struct ServiceManager {
    address: SocketAddrUnix,
    /// None: it has no file.
    path: Option<PathBuf>,
}

/// A connection to it, for a few messages.
pub(crate) struct Saying {
    socket: OwnedFd,
    until: Instant,
}

impl ServiceManager {
    /// The one that started this process; none: nobody wants to hear of it, or not in a way that is known here.
    pub(crate) fn of_environment() -> Option<ServiceManager> {
        ServiceManager::at(&std::env::var_os(SOCKET_VARIABLE)?)
    }

    fn at(place: &OsString) -> Option<ServiceManager> {
        match place.as_bytes() {
            [b'/', ..] => {
                let path = PathBuf::from(place);
                Some(ServiceManager { address: SocketAddrUnix::new(&path).ok()?, path: Some(path) })
            }
            [b'@', name @ ..] if !name.is_empty() => {
                Some(ServiceManager { address: SocketAddrUnix::new_abstract_name(name).ok()?, path: None })
            }
            _ => None,
        }
    }

    /// The file of its socket.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Begins to say something: all of it within [`MANAGER_WAIT`] from now on.
    ///
    /// # Errors
    /// It is not there.
    pub(crate) fn begin(&self) -> io::Result<Saying> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        rustix::net::connect(&socket, &self.address)?;
        Ok(Saying { socket, until: Instant::now() + MANAGER_WAIT })
    }

    /// This process serves.
    pub(crate) fn serves(&self) {
        self.hears("READY=1");
    }

    /// It goes on to serve with other settings, or as another program.
    pub(crate) fn changes(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let us = Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_micros();
        self.hears(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
    }

    /// It leaves.
    pub(crate) fn leaves(&self) {
        self.hears("STOPPING=1");
    }

    /// Says something that nobody answers.
    fn hears(&self, text: &str) {
        if let Err(error) = self.begin().and_then(|mut saying| saying.say(text, &[])) {
            tracing::warn!(%error, text, "the service manager does not hear how this server is");
        }
    }
}

impl Saying {
    /// One message, with descriptors.
    ///
    /// # Errors
    /// It is gone, or takes nothing in time.
    pub(crate) fn say(&mut self, text: &str, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    "one descriptor goes with a message",
                ));
            }
            let pieces = [IoSlice::new(text.as_bytes())];
            match rustix::net::sendmsg(&self.socket, &pieces, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                // Its queue is full.
                Err(Errno::AGAIN) => self.wait(&self.socket, PollFlags::OUT)?,
                // As many descriptors are on their way as this user may have, or its queue has no room for another reason.
                Err(Errno::TOOMANYREFS | Errno::NOBUFS) if Instant::now() < self.until => {
                    std::thread::sleep(MANAGER_PAUSE);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Waits until all that was said before has been heard: what is given with this message is closed then.
    ///
    /// # Errors
    /// That takes too long.
    pub(crate) fn is_heard(&mut self) -> io::Result<()> {
        let (here, there) = pipe_with(PipeFlags::CLOEXEC)?;
        self.say("BARRIER=1", &[there.as_fd()])?;
        drop(there);
        // A hang-up is told although nothing is asked for.
        self.wait(&here, PollFlags::empty())
    }

    fn wait(&self, fd: &OwnedFd, events: PollFlags) -> io::Result<()> {
        loop {
            let left = self.until.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            match poll(&mut [PollFd::new(fd, events)], Some(&timeout)) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "it does not answer")),
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Whether nobody has the other end of a pipe any more.
pub(crate) fn is_hung_up(pipe: &OwnedFd) -> io::Result<bool> {
    let mut looked = [PollFd::new(pipe, PollFlags::empty())];
    poll(&mut looked, Some(&Timespec::default()))?;
    Ok(looked[0].revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

#[cfg(test)]
mod tests;
