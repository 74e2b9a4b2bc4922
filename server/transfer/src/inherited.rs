//! What a program hands to the one that takes its place in the same process. Owns: descriptors that stay open over `exec`, signals
//! that must not end the process in between. Must not know: which programs, what the descriptors are of.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, FdFlags};
use rustix::process::Signal;

/// Lets a descriptor stay open over `exec`.
///
/// # Errors
/// What the system says.
pub fn stays_open(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(fd, FdFlags::empty())?)
}

/// Takes the descriptors of these numbers, which the program before was told to leave open for this one; none of them stays open
/// over the next `exec`. It can be done once, before anything else of this program opens one.
///
/// # Errors
/// Not the first time; a number that no descriptor has, or one of the standard streams; the same number twice.
pub fn take_inherited(numbers: &[RawFd]) -> io::Result<Vec<OwnedFd>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let twice = (1..numbers.len()).any(|at| numbers[..at].contains(&numbers[at]));
    if twice || TAKEN.swap(true, Ordering::AcqRel) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "descriptors are taken over only once"));
    }
    let mut taken = Vec::with_capacity(numbers.len());
    for number in numbers {
        if *number <= 2 {
            return Err(Errno::BADF.into());
        }
        // SAFETY: borrowed for one call, which fails where no descriptor has this number. Only those that are left open over `exec`
        // are taken: nothing in this program opens such a one, so nobody else owns it.
        let left_open = unsafe {
            let fd = BorrowedFd::borrow_raw(*number);
            !rustix::io::fcntl_getfd(fd)?.contains(FdFlags::CLOEXEC)
        };
        if !left_open {
            return Err(Errno::BADF.into());
        }
        // SAFETY: it is open, and the check above says that nobody else in this program owns it; the numbers differ, and this is
        // done once.
        let fd = unsafe { OwnedFd::from_raw_fd(*number) };
        rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
        taken.push(fd);
    }
    Ok(taken)
}

/// From now on a signal does what it does to a program without a handler.
pub fn default_signal(signal: Signal) {
    // SAFETY: the default runs no code of this program; what handled the signal before is of a program that is about to be replaced.
    unsafe { libc::signal(signal.as_raw(), libc::SIG_DFL) };
}

/// From now on a signal does nothing, over `exec` too, until the next program has a handler of its own.
pub fn ignore_signal(signal: Signal) {
    // SAFETY: to ignore a signal runs no code; what handled it before is of a program that is about to be replaced.
    unsafe { libc::signal(signal.as_raw(), libc::SIG_IGN) };
}
