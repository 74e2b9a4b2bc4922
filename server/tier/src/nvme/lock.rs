//! The lock on the tier's place: one process at a time. Owns: taking it, and saying who has it. Must not
//! know: what lies there.

use super::config::{OpenError, failed};
use crate::limits::{LOCK_RETRY, LOCK_WAIT};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

/// The file in a directory that says who has it.
pub(super) const NAME: &str = "LOCK";

/// Another process has the place.
pub(super) fn in_use(path: &Path, holder: String) -> OpenError {
    OpenError::InUse { path: path.to_owned(), holder }
}

/// Takes the lock. The kernel may hold a killed process's descriptors for a moment, so it asks for a while.
pub(super) fn take(fd: &OwnedFd, path: &Path, holder: impl FnOnce() -> String) -> Result<(), OpenError> {
    let deadline = Instant::now() + LOCK_WAIT;
    loop {
        match rustix::fs::flock(fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => std::thread::sleep(LOCK_RETRY),
            Err(Errno::WOULDBLOCK) => return Err(in_use(path, holder())),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("cannot lock", path, errno.into())),
        }
    }
}

/// Holds the directory until the returned descriptor is closed, by whatever end of the process.
pub(super) fn directory(dir: &OwnedFd, path: &Path) -> Result<OwnedFd, OpenError> {
    let holder = || {
        let text = std::fs::read_to_string(path.join(NAME)).unwrap_or_default();
        text.trim().parse::<u32>().map_or_else(|_| String::new(), |pid| format!(" (process {pid})"))
    };
    take(dir, path, holder)?; // the file may be deleted by hand
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::openat(dir, NAME, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|errno| failed("cannot open the lock file of", path, errno.into()))?;
    take(&file, path, holder)?;
    let pid = format!("{}\n", std::process::id());
    let written = rustix::fs::ftruncate(&file, 0).and_then(|()| rustix::io::pwrite(&file, pid.as_bytes(), 0));
    written.map_err(|errno| failed("cannot write the lock file of", path, errno.into()))?;
    Ok(file)
}
