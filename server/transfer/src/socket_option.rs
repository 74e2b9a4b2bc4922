//! Options of sockets for which rustix has no name. Owns: reading one. Must not know: what it says.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Reads an option of this level; gives how many bytes of `value` the kernel wrote.
///
/// # Safety
/// `T` must be valid for any bytes.
pub(crate) unsafe fn socket_option<T>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &mut T,
) -> Result<usize, Errno> {
    let mut bytes = size_of::<T>() as libc::socklen_t;
    let target = std::ptr::from_mut(value).cast();
    // SAFETY: `target` is writable for `bytes`, and the kernel writes no more than that.
    let rc = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, target, &raw mut bytes) };
    if rc == 0 {
        return Ok(bytes as usize);
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}
