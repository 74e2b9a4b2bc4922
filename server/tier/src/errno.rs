//! What the errno of a system call means for a tier: each that a call may give has one entry here.
//! Owns: that table. Must not know: who called, and what for.

use rustix::io::Errno;
use std::io;

/// What is to be done after a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// EINTR: a signal came first. The same call again, at once.
    Interrupted,
    /// EAGAIN, EBUSY, ENOMEM, ENOBUFS, EMFILE, ENFILE: the system has not enough of something that comes back (request
    /// slots, memory, descriptors). The same call again after a pause; the device is well.
    Short,
    /// ENOSPC, EDQUOT, EFBIG: no more space for now. What was to be written is not; the device is well.
    Full,
    /// Everything else (EIO, EROFS, ENXIO, ...): the device failed, or this program asked for what cannot be.
    Device,
}

impl Fault {
    /// Reads an errno.
    pub(crate) fn of(errno: Errno) -> Fault {
        match errno {
            Errno::INTR => Fault::Interrupted,
            Errno::AGAIN | Errno::BUSY | Errno::NOMEM | Errno::NOBUFS | Errno::MFILE | Errno::NFILE => {
                Fault::Short
            }
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Fault::Full,
            _ => Fault::Device,
        }
    }

    /// Reads an error; one that no system call gave (a file that ends too early) is the device's.
    pub(crate) fn of_error(error: &io::Error) -> Fault {
        Errno::from_io_error(error).map_or(Fault::Device, Fault::of)
    }
}
