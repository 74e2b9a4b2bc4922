//! Who is at the other end of a Unix socket, as the kernel says. Must not know: frames, what a process is.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::limits::{GROUPS_MAX, GROUPS_USUAL};
use crate::socket_option::socket_option;

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

/// `SO_PEERCRED`. Asked for with plain integers: a peer in another PID namespace has number 0.
pub(crate) fn peer_of(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    // SAFETY: `ucred` is three integers, so any bytes the kernel writes into it are valid; it outlives the
    // call.
    unsafe { socket_option(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, &mut credentials)? };
    Ok(Peer { pid: credentials.pid, uid: credentials.uid, gid: credentials.gid })
}

/// The other groups of the process at the other end, as they were when the connection was made (`SO_PEERGROUPS`).
///
/// # Errors
/// The kernel does not say, or the process has more than the system lets one have.
pub fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; GROUPS_USUAL];
    loop {
        let mut bytes = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        let (fd, target) = (socket.as_raw_fd(), groups.as_mut_ptr().cast());
        // SAFETY: `target` is writable for `bytes`, the kernel writes no more than that, and any integer is a group.
        let rc =
            unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERGROUPS, target, &raw mut bytes) };
        let count = bytes as usize / size_of::<u32>();
        if rc == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // There are more than there was room for: the kernel says how many.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut raw: libc::c_int = -1;
    // SAFETY: an integer, as in `peer_of`.
    unsafe { socket_option(socket, libc::SOL_SOCKET, libc::SO_PEERPIDFD, &mut raw)? };
    if raw < 0 {
        return Err(Errno::SRCH);
    }
    // SAFETY: the kernel has just made this descriptor for us, nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}
