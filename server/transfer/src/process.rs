//! Other processes. Owns: a hold on one, and whether it still lives. Must not know: leases.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::local::LocalSocket;
use crate::peer::peer_pidfd;

/// The file system that process descriptors are of where each process has an inode of its own.
const PIDFS_MAGIC: rustix::fs::FsWord = 0x5049_4446;

/// A hold on a process that stays true when its number is reused.
#[derive(Debug)]
pub struct Process {
    pidfd: OwnedFd,
}

impl Process {
    /// The process at the other end of a socket, without a race where the kernel can say (Linux 6.5), else by
    /// its number.
    ///
    /// # Errors
    /// `NotFound` if it is gone already or not visible from here.
    pub fn of_peer(socket: &LocalSocket) -> io::Result<Self> {
        match peer_pidfd(socket.as_fd()) {
            Ok(pidfd) => Ok(Self { pidfd }),
            // SRCH and NODATA: it was reaped already. INVAL: its number is not visible here.
            Err(Errno::SRCH | Errno::NODATA | Errno::INVAL) => Err(vanished()),
            Err(Errno::NOPROTOOPT) => Self::open(socket.peer()?.pid),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The process with this number now.
    ///
    /// # Errors
    /// `NotFound` if there is none.
    pub fn open(pid: i32) -> io::Result<Self> {
        Ok(Self { pidfd: open_pidfd(pid)? })
    }

    /// What tells it from every other process since the machine started, where the kernel says (Linux 6.9):
    /// its number may be another's by now, or not be visible from here.
    ///
    /// # Errors
    /// The descriptor cannot be looked at.
    pub fn identity(&self) -> io::Result<Option<u64>> {
        if rustix::fs::fstatfs(&self.pidfd)?.f_type != PIDFS_MAGIC {
            return Ok(None);
        }
        Ok(Some(rustix::fs::fstat(&self.pidfd)?.st_ino))
    }

    /// The process with this number that began at this moment (see [`began`]). None: it is gone, whoever has its number now.
    ///
    /// # Errors
    /// The system has no descriptor for it.
    pub fn find(pid: i32, began_at: u32) -> io::Result<Option<Self>> {
        let process = match Self::open(pid) {
            Ok(process) => process,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // Looked at while its descriptor is held: one that lives now is the one that the descriptor is of.
        let same = began(pid) == Some(began_at);
        Ok(if same && !process.is_gone()? { Some(process) } else { None })
    }

    /// Whether it has ended: no thread of it can write any memory any more.
    ///
    /// # Errors
    /// The system has no memory for `poll`.
    pub fn is_gone(&self) -> io::Result<bool> {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            match rustix::event::poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&at_once)) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Readable once the process has ended.
impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// When a process of this host began, in the kernel's ticks since the machine started, as far as 32 bits say. None: it is
/// gone, or not visible from here.
#[must_use]
pub fn began(pid: i32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold any of them; the field is the 20th after it.
    let (_, after) = text.rsplit_once(')')?;
    let ticks: u64 = after.split_ascii_whitespace().nth(19)?.parse().ok()?;
    Some(ticks as u32)
}

/// A descriptor of the process `pid`, readable once it has ended.
///
/// # Errors
/// `NotFound` if there is no such process.
pub fn open_pidfd(pid: i32) -> io::Result<OwnedFd> {
    let pid = if pid > 0 { Pid::from_raw(pid) } else { None };
    let pid = pid.ok_or_else(vanished)?;
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => Ok(pidfd),
        Err(Errno::SRCH) => Err(vanished()),
        Err(errno) => Err(errno.into()),
    }
}

fn vanished() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the process is gone, or not visible from here")
}

#[cfg(test)]
mod tests;
