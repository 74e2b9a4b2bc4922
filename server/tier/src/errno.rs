//! What the errno of a system call means for a tier: each that a call may give has one entry here.
//! Owns: that table. Must not know: who called, and what for.

use crate::limits::REREADS_MAX;
use rustix::io::Errno;
use std::io;

/// What is to be done after a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrnoClass {
    /// EINTR: a signal came first. The same call again, at once.
    Interrupted,
    /// EAGAIN, EBUSY, ENOMEM, ENOBUFS, EMFILE, ENFILE: the system has not enough of something that comes back
    /// (request slots, memory, descriptors). The same call again after a pause; the device is well.
    Short,
    /// ENOSPC, EDQUOT, EFBIG: no more space for now. What was to be written is not; the device is well.
    Full,
    /// Everything else (EIO, EROFS, ENXIO, ...): the device failed, or this program asked for what cannot be.
    Device,
}

impl ErrnoClass {
    /// Reads an errno.
    pub(crate) fn of(errno: Errno) -> ErrnoClass {
        match errno {
            Errno::INTR => ErrnoClass::Interrupted,
            Errno::AGAIN | Errno::BUSY | Errno::NOMEM | Errno::NOBUFS | Errno::MFILE | Errno::NFILE => {
                ErrnoClass::Short
            }
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => ErrnoClass::Full,
            _ => ErrnoClass::Device,
        }
    }

    /// Reads an error; one that no system call gave (a file that ends too early) is the device's.
    pub(crate) fn of_error(error: &io::Error) -> ErrnoClass {
        Errno::from_io_error(error).map_or(ErrnoClass::Device, ErrnoClass::of)
    }
}

/// How often one read was made again because the device failed it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rereads(u32);

impl Rereads {
    /// Is a call that failed so to be made again, as a read whose bytes may be well? Counts it if so. What a
    /// write left behind is not known: it is never made again.
    pub(crate) fn again(&mut self, is_read: bool, fault: ErrnoClass) -> bool {
        let again = is_read && fault == ErrnoClass::Device && self.0 < REREADS_MAX;
        self.0 += u32::from(again);
        again
    }
}
