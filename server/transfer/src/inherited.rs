//! What a program hands to the one that takes its place in the same process. Owns: descriptors that stay open over `exec`, signals
//! that must not end the process in between. Must not know: which programs, what the descriptors are of.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::FdFlags;
use rustix::process::Signal;

/// Lets a descriptor stay open over `exec`.
///
/// # Errors
/// What the system says.
pub fn stays_open(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(fd, FdFlags::empty())?)
}

/// Takes the descriptors of these numbers, which the program before, or whoever started this one, was told to leave open for it; none of
/// them stays open over the next `exec`. None: no such descriptor was left open, or it is one of the standard streams. It can be done
/// once, before anything else of this program opens one.
///
/// # Errors
/// Not the first time; the same number twice.
pub fn take_inherited(numbers: &[RawFd]) -> io::Result<Vec<Option<OwnedFd>>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let mut different = BTreeSet::new();
    let twice = !numbers.iter().all(|number| different.insert(*number));
    if twice || TAKEN.swap(true, Ordering::AcqRel) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "descriptors are taken over only once"));
    }
    Ok(numbers.iter().map(|number| take_one(*number)).collect())
}

/// Called by [`take_inherited`] alone, which sees to it that the numbers differ and that it is done once.
fn take_one(number: RawFd) -> Option<OwnedFd> {
    if number <= 2 {
        return None;
    }
    // SAFETY: borrowed for one call, which fails where no descriptor has this number. Only those that are left open over `exec`
    // are taken: nothing in this program opens such a one, so nobody else owns it.
    let left_open = unsafe {
        let fd = BorrowedFd::borrow_raw(number);
        rustix::io::fcntl_getfd(fd).is_ok_and(|flags| !flags.contains(FdFlags::CLOEXEC))
    };
    if !left_open {
        return None;
    }
    // SAFETY: it is open, and the check above says that nobody else in this program owns it; the caller's numbers differ, and it asks
    // once.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC).is_ok().then_some(fd)
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
