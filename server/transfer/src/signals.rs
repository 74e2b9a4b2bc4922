//! The program's handlers of signals stay its own while libraries are loaded. Owns: telling a handler that a library brought from
//! one that the program set meanwhile. Must not know: libraries, what signals are for.
//!
//! Some libraries' constructors take signals: those behind libfabric (psm) end the process at the first SIGTERM or SIGINT, also where
//! there is no such NIC, so a server would not drain and an engine's own handlers would not run.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null;

use parking_lot::Mutex;

/// The last signal of Linux.
const SIGNAL_MAX: c_int = 64;

/// Does what loads libraries. Signals whose handler lies in a library that came by it get back the handler that they had.
pub(crate) fn keep_handlers<T>(load: impl FnOnce() -> T) -> T {
    // Two at once would each take the other's newcomers for the program's own.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let loaded = loaded();
    let before: Vec<_> = (1..=SIGNAL_MAX).map(|signal| (signal, action(signal))).collect();
    let made = load();
    for (signal, before) in before {
        let (Some(before), Some(now)) = (before, action(signal)) else { continue };
        let handler = now.sa_sigaction;
        let is_function = handler != libc::SIG_DFL && handler != libc::SIG_IGN;
        if is_function && handler != before.sa_sigaction && !loaded.iter().any(|code| code.contains(&handler))
        {
            // SAFETY: what was the signal's action a moment ago may be it again.
            unsafe { libc::sigaction(signal, &raw const before, std::ptr::null_mut()) };
        }
    }
    made
}

/// What happens at a signal; none where nobody may ask.
fn action(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: changes nothing, and writes all of the action where it succeeds.
    unsafe { (libc::sigaction(signal, null(), action.as_mut_ptr()) == 0).then(|| action.assume_init()) }
}

/// Addresses of everything that is loaded.
fn loaded() -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    // SAFETY: the function is called before this returns, with the vector that it expects.
    unsafe { libc::dl_iterate_phdr(Some(add_ranges), (&raw mut ranges).cast()) };
    ranges
}

/// Adds the addresses of one object.
unsafe extern "C" fn add_ranges(
    info: *mut libc::dl_phdr_info,
    _: libc::size_t,
    ranges: *mut c_void,
) -> c_int {
    // SAFETY: the loader describes one object, with all its headers; `ranges` is `loaded`'s.
    let (ranges, info, headers) = unsafe {
        let info = &*info;
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        (&mut *ranges.cast::<Vec<Range<usize>>>(), info, headers)
    };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        ranges.push(start..start.saturating_add(header.p_memsz as usize));
    }
    0
}

#[cfg(test)]
mod tests {
    use super::{action, keep_handlers};
    use crate::library::Library;
    use std::ffi::CString;
    use std::process::Command;

    extern "C" fn own(_: libc::c_int) {}

    fn set(signal: libc::c_int) {
        // SAFETY: a handler that does nothing may run at any time.
        unsafe { libc::signal(signal, own as *const () as libc::sighandler_t) };
    }

    #[test]
    fn a_library_takes_no_signal_and_the_program_may() {
        let dir = tempfile::tempdir().unwrap();
        let (source, library) = (dir.path().join("taker.c"), dir.path().join("taker.so"));
        let taker = "#include <signal.h>\nstatic void take(int s) {}\n\
                     __attribute__((constructor)) static void all(void) { signal(SIGUSR1, take); signal(SIGUSR2, take); }\n";
        std::fs::write(&source, taker).unwrap();
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
        assert!(built.unwrap().success());
        set(libc::SIGUSR2);
        let name = CString::new(library.to_str().unwrap()).unwrap();
        Library::open(&[&name]).unwrap();
        let handler = |signal| action(signal).unwrap().sa_sigaction;
        assert_eq!(handler(libc::SIGUSR1), libc::SIG_DFL, "nobody had it");
        assert_eq!(handler(libc::SIGUSR2), own as *const () as usize, "the program had it");
        keep_handlers(|| set(libc::SIGUSR1));
        assert_eq!(handler(libc::SIGUSR1), own as *const () as usize, "the program took it meanwhile");
    }
}
